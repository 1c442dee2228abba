// SPDX-License-Identifier: MIT
#include "harness/roofs.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "harness/machine.hpp"

namespace attn {
namespace {

constexpr double sample = 0.01;

// Whether `upper` stays above `lower`, which a neighbour that takes the machine between two samples
// can hide: the best upper so far comes nearer to the truth with every attempt, and one attempt
// must do.
bool bounds(const Roof& upper, const Roof& lower, double factor) {
  double best = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    best = std::max(best, measure_roof(upper, sample));
    if (measure_roof(lower, sample) <= factor * best) return true;
  }
  return false;
}

TEST(Roofs, EveryAvailableRoofHasAValue) {
  for (const auto kind : {Roof::Kind::fma, Roof::Kind::gemm, Roof::Kind::read, Roof::Kind::triad}) {
    for (const auto dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Roof roof{kind, dtype, 1};
      const double value = measure_roof(roof, sample);
      EXPECT_EQ(value > 0, roof_available(roof)) << name(kind) << " " << value;
    }
  }
}

TEST(Roofs, FmaReadAndTriadExistEverywhere) {
  EXPECT_TRUE(roof_available({Roof::Kind::fma}));
  EXPECT_TRUE(roof_available({Roof::Kind::read}));
  EXPECT_TRUE(roof_available({Roof::Kind::triad}));
}

TEST(Roofs, GemmStaysUnderTheFmaPeak) {
  if (!roof_available({Roof::Kind::gemm})) GTEST_SKIP() << "no BLAS in this build";
  for (const int threads : {1, read_machine().default_threads()}) {
    EXPECT_TRUE(bounds({Roof::Kind::fma, DType::f32, threads},
                       {Roof::Kind::gemm, DType::f32, threads}, 1.05))
        << threads << " threads";
  }
}

TEST(Roofs, Bf16DotProductsAreNoSlowerThanF32) {
  const Roof bf16{Roof::Kind::fma, DType::bf16, 1};
  if (!roof_available(bf16)) GTEST_SKIP() << "no bf16 dot product in this build";
  EXPECT_TRUE(bounds(bf16, {Roof::Kind::fma, DType::f32, 1}, 1));
}

TEST(Roofs, MemoryIsAsDeclared) {
  const std::int64_t declared = roof_buffer_bytes();
  measure_roof({Roof::Kind::fma, DType::f32, 1}, sample);  // OpenMP's own memory is not counted
  if (!reset_peak_rss()) GTEST_SKIP() << "this kernel does not let the peak be reset";
  const std::int64_t before = current_rss_bytes();
  measure_roof({Roof::Kind::read, DType::f32, 1}, sample);
  const std::int64_t once = peak_rss_bytes();
  measure_roof({Roof::Kind::triad, DType::f32, 1}, sample);
  measure_roof({Roof::Kind::read, DType::f32, 1}, sample);
  constexpr std::int64_t slack = 4 * 1024 * 1024;
  EXPECT_LE(once - before, declared + slack);
  EXPECT_GE(once - before, declared * 3 / 4);
  EXPECT_LE(peak_rss_bytes() - once, slack);  // nothing is allocated twice
}

TEST(Roofs, NamesAndUnits) {
  EXPECT_EQ(name(Roof::Kind::triad), "triad");
  EXPECT_EQ(unit(Roof::Kind::gemm), "gflops");
  EXPECT_EQ(unit(Roof::Kind::read), "gbps");
}

}  // namespace
}  // namespace attn
