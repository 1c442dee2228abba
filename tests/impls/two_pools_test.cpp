// SPDX-License-Identifier: MIT
// Runs with a library preloaded whose openblas_get_parallel answers as the pthread flavour does:
// every backend that would use that library must say that it is unavailable, and why.
#include <cblas.h>
#include <gtest/gtest.h>

#include "harness/layer.hpp"
#include "harness/registry.hpp"
#include "tests/impls/cases.hpp"

namespace attn::test {
namespace {

TEST(TwoPools, BlasBackendsAreUnavailable) {
  ASSERT_EQ(openblas_get_parallel(), OPENBLAS_THREAD) << "the stub is not preloaded";
  int seen = 0;
  for (const Entry& entry : registry()) {
    if (!entry.built() || entry.backend.memory != Memory::host) continue;
    for (const Case& c : cases_for(entry.backend.family)) {
      const auto refusal = refuses(entry.backend, c.problem);
      if (!entry.name.starts_with("blas.")) continue;
      ++seen;
      ASSERT_TRUE(refusal.has_value()) << entry.name << " " << c.name;
      EXPECT_EQ(refusal->kind, Refusal::Kind::unavailable);
      EXPECT_NE(refusal->sentence.find("pthread"), std::string::npos) << refusal->sentence;
      EXPECT_NE(refusal->sentence.find("libopenblas-openmp-dev"), std::string::npos);
    }
  }
  EXPECT_GT(seen, 0);
}

TEST(TwoPools, OthersStayAvailable) {
  for (const Entry& entry : registry()) {
    if (!entry.built() || !entry.name.starts_with("cpu.")) continue;
    for (const Case& c : cases_for(entry.backend.family)) {
      EXPECT_FALSE(refuses(entry.backend, c.problem).has_value()) << entry.name << " " << c.name;
    }
  }
}

}  // namespace
}  // namespace attn::test
