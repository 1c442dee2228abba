// SPDX-License-Identifier: MIT
#include "harness/stats.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace attn {
namespace {

using testing::Optional;
using testing::Pair;

TEST(Stats, MedianOfEvenAndOddCounts) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(Stats, QuantilesInterpolate) {
  EXPECT_DOUBLE_EQ(quantile({1, 2, 3, 4, 5}, 0.25), 2);
  EXPECT_DOUBLE_EQ(quantile({1, 2}, 0.75), 1.75);
}

// The ranks are those of published tables of the sign test's interval.
TEST(Stats, MedianIntervalTakesThePublishedRanks) {
  EXPECT_EQ(median_interval({1, 2, 3, 4, 5}), std::nullopt);
  EXPECT_THAT(median_interval({6, 5, 4, 3, 2, 1}), Optional(Pair(1, 6)));
  EXPECT_THAT(median_interval({1, 2, 3, 4, 5, 6, 7, 8, 9}), Optional(Pair(2, 8)));
  std::vector<double> twenty;
  for (int i = 1; i <= 20; ++i) twenty.push_back(i);
  EXPECT_THAT(median_interval(twenty), Optional(Pair(6, 15)));
  std::vector<double> thirty;
  for (int i = 1; i <= 30; ++i) thirty.push_back(i);
  EXPECT_THAT(median_interval(thirty), Optional(Pair(10, 21)));
}

TEST(Stats, MedianIntervalCoversAtLeastAsOftenAsItSays) {
  std::mt19937_64 engine(7);
  std::exponential_distribution<double> skewed(1);
  const double truth = std::log(2.0);
  int covered = 0;
  constexpr int trials = 4000;
  for (int t = 0; t < trials; ++t) {
    std::vector<double> values(10);
    for (double& value : values) value = skewed(engine);
    const auto interval = median_interval(values);
    covered += interval->first <= truth && truth <= interval->second ? 1 : 0;
  }
  EXPECT_GE(covered, 0.95 * trials);
}

TEST(Stats, OutliersAreCountedBeyondTheFences) {
  EXPECT_EQ(count_outliers({1, 1.1, 0.9, 1, 5}), 1);
  EXPECT_EQ(count_outliers({1, 2, 3, 4, 5}), 0);
}

}  // namespace
}  // namespace attn
