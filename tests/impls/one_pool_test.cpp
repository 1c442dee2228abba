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

TEST(OnePool, NoOtherFlavourIsLoaded) {
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> libraries;
  for (std::string line; std::getline(maps, line);) {
    const std::size_t path = line.find('/');
    if (path == std::string::npos || line.find("openblas", path) == std::string::npos) continue;
    libraries.insert(std::filesystem::canonical(line.substr(path)).string());
  }
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
