// SPDX-License-Identifier: MIT
#include "harness/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace attn {
namespace {

std::vector<Sample> rounds(const std::vector<double>& times) {
  std::vector<Sample> samples;
  samples.reserve(times.size());
  for (std::size_t i = 0; i < times.size(); ++i)
    samples.push_back({0, static_cast<int>(i), times[i], "warm"});
  return samples;
}

// A drift that both share: pairing removes it, comparing medians would not.
std::vector<double> drifting(double factor, int n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> noise(0, 0.005);
  std::vector<double> times(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < times.size(); ++i) {
    times[i] = factor * (1 + 0.5 * static_cast<double>(i) / n) * std::exp(noise(engine));
  }
  return times;
}

TEST(Compare, FindsASmallDifferenceUnderALargeDrift) {
  const Comparison c =
      compare_rounds(rounds(drifting(1.0, 20, 1)), rounds(drifting(1.05, 20, 2)), 0.02);
  EXPECT_EQ(c.verdict, "faster");
  EXPECT_NEAR(c.ratio, 1 / 1.05, 0.005);
  EXPECT_LT(c.ratio_lo, c.ratio);
  EXPECT_GT(c.ratio_hi, c.ratio);
  const Comparison back =
      compare_rounds(rounds(drifting(1.05, 20, 2)), rounds(drifting(1.0, 20, 1)), 0.02);
  EXPECT_EQ(back.verdict, "slower");
}

TEST(Compare, EqualProgramsAreUndecided) {
  int decided = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Comparison c = compare_rounds(rounds(drifting(1, 20, 2 * seed)),
                                        rounds(drifting(1, 20, 2 * seed + 1)), 0.02);
    decided += c.verdict != "undecided" ? 1 : 0;
  }
  EXPECT_EQ(decided, 0);
}

TEST(Compare, BelowTheThresholdIsUndecided) {
  const Comparison c =
      compare_rounds(rounds(drifting(1.0, 20, 1)), rounds(drifting(1.015, 20, 2)), 0.02);
  EXPECT_EQ(c.verdict, "undecided");
  EXPECT_LT(c.ratio_hi, 1);
}

TEST(Compare, FewRoundsDecideNothing) {
  const Comparison c = compare_rounds(rounds({1, 1, 1, 1, 1}), rounds({2, 2, 2, 2, 2}), 0.02);
  EXPECT_EQ(c.verdict, "undecided");
  EXPECT_EQ(c.rounds, 5);
}

TEST(Compare, PairsByRoundNotByPosition) {
  std::vector<Sample> a = rounds({1, 10, 100, 1, 10, 100});
  std::vector<Sample> b = rounds({2, 20, 200, 2, 20, 200});
  std::swap(b[0], b[2]);
  EXPECT_NEAR(compare_rounds(a, b, 0.02).ratio, 0.5, 1e-12);
}

}  // namespace
}  // namespace attn
