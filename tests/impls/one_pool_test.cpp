// SPDX-License-Identifier: MIT
// One thread pool: the library that is loaded is OpenBLAS's OpenMP flavour and no other is beside
// it.
#include <cblas.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

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
