// SPDX-License-Identifier: MIT
// One thread pool: the library that is loaded is OpenBLAS's OpenMP flavour and no other is beside
// it.
#include <cblas.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "harness/registry.hpp"

namespace attn {
namespace {

TEST(OnePool, OpenBlasThreadsThroughOpenMp) { EXPECT_EQ(openblas_get_parallel(), OPENBLAS_OPENMP); }

// The loaded libraries whose file name begins with one of `names`.
std::set<std::string> loaded(const std::vector<std::string>& names) {
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> libraries;
  for (std::string line; std::getline(maps, line);) {
    const std::size_t path = line.find('/');
    if (path == std::string::npos) continue;
    const std::string file = std::filesystem::path(line.substr(path)).filename();
    for (const std::string& name : names) {
      if (!file.starts_with(name)) continue;
      libraries.insert(std::filesystem::canonical(line.substr(path)).string());
    }
  }
  return libraries;
}

TEST(OnePool, NoOtherFlavourIsLoaded) {
  const std::set<std::string> libraries = loaded({"libopenblas"});
  for (const std::string& library : libraries) {
    EXPECT_EQ(library.find("pthread"), std::string::npos) << library;
  }
  EXPECT_EQ(libraries.size(), 1U);
}

std::ptrdiff_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(OnePool, ProductsRunOnTheThreadsThatAreThere) {
  // A second OpenMP beside ours would start threads of its own for the product.
  omp_set_num_threads(3);
  std::vector<float> values(512 * 512, 1.0F);
#pragma omp parallel for
  for (float& value : values) value += 1.0F;
  const std::ptrdiff_t threads = threads_of_this_process();
  EXPECT_GE(threads, 3);
  std::vector<float> product(values.size());
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 512, 512, 512, 1.0F, values.data(), 512,
              values.data(), 512, 0.0F, product.data(), 512);
  EXPECT_EQ(product.back(), 2048.0F);
  EXPECT_EQ(threads_of_this_process(), threads);
}

TEST(OnePool, PeersThatHaveRunHaveBroughtNoOtherOpenMp) {
  const std::size_t before = loaded({"libgomp", "libomp", "libiomp"}).size();
  int seen = 0;
  for (const Entry& entry : registry()) {
    if (!entry.built() || !entry.peer) continue;
    Problem p;
    p.threads = 2;
    p.n_q = p.n_kv = 64;
    const Backend& backend = entry.backend;
    if (backend.refuses(p)) continue;
    const Cost cost = backend.cost(p);
    std::vector<float> q(64 * 64, 1.0F), out(q.size());
    std::vector<float> state(cost.state_bytes / 4 + 1), scratch(cost.scratch_bytes / 4 + 1);
    Io io;
    io.q = io.k = io.v = {q.data(), 64 * 64, 64 * 64, 64};
    io.out = {out.data(), 64 * 64, 64 * 64, 64};
    omp_set_num_threads(p.threads);
    if (backend.prepare != nullptr) backend.prepare(p, {}, state.data());
    backend.run(p, io, state.data(), scratch.data());
    EXPECT_FLOAT_EQ(out.back(), 1.0F) << entry.name;
    ++seen;
  }
  if (seen == 0) GTEST_SKIP() << "no peer runs here";
  EXPECT_EQ(loaded({"libgomp", "libomp", "libiomp"}).size(), before);
}

TEST(OnePool, BackendsSayWhichLibraryRan) {
  int seen = 0;
  for (const Entry& entry : registry()) {
    if (!entry.built() || !entry.name.starts_with("blas.")) continue;
    ASSERT_NE(entry.backend.resolved_impl, nullptr) << entry.name;
    const std::string impl = entry.backend.resolved_impl({});
    EXPECT_NE(impl.find(openblas_get_corename()), std::string::npos) << impl;
    EXPECT_NE(impl.find("OpenMP"), std::string::npos) << impl;
    ++seen;
  }
  EXPECT_GE(seen, 4);
}

}  // namespace
}  // namespace attn
