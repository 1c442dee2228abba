// SPDX-License-Identifier: MIT
#include "harness/inputs.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace attn {
namespace {

std::vector<float> row(std::uint64_t seed, TensorId tensor, std::int64_t index, std::size_t width,
                       InputDist dist = InputDist::normal, double scale = 1.0) {
  std::vector<float> values(width);
  fill_row(seed, tensor, index, dist, scale, values);
  return values;
}

// What SplitMix64 and Box-Muller give with the standard library's functions.
std::uint64_t splitmix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

TEST(Inputs, NormalRowsAreBoxMullerOfTheCounterStream) {
  const std::uint64_t gamma = 0x9e3779b97f4a7c15;
  const std::uint64_t stream = splitmix(7 + gamma) ^ (static_cast<std::uint64_t>(TensorId::v) + 1);
  const std::uint64_t key = splitmix(splitmix(stream) + 41 * gamma);
  const std::vector<float> values = row(7, TensorId::v, 41, 4001, InputDist::normal, 0.5);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t bits = splitmix(key + i / 2 * gamma);
    const double u = (static_cast<double>(bits >> 32) + 0.5) * 0x1p-32;
    // Quadrant from the two highest bits, the rest of the angle around it.
    const double low = (static_cast<double>((bits << 2) & 0xffffffff) + 0.5) * 0x1p-32;
    const double turn = static_cast<double>(bits >> 30 & 3) * 0.25 + (low - 0.5) * 0.25;
    const double angle = 2 * M_PI * turn;
    const double expected =
        0.5 * std::sqrt(-2 * std::log(u)) * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    ASSERT_NEAR(values[i], expected, 1e-6) << "element " << i;
  }
}

TEST(Inputs, KnownAnswers) {
  EXPECT_EQ(random_bits(1, 0), 6791897765849424158U);
  EXPECT_EQ(random_bits(1, 1), 17405687883870564846U);
  const std::vector<float> values = row(1, TensorId::q, 0, 4);
  EXPECT_NEAR(values[0], 0.636750042, 1e-6);
  EXPECT_NEAR(values[3], 0.952714324, 1e-6);
}

TEST(Inputs, NormalMoments) {
  double moment[5] = {};
  double tail = 0;
  double neighbours = 0;
  const std::int64_t rows = 4000;
  const std::size_t width = 500;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::vector<float> values = row(3, TensorId::k, r, width);
    for (std::size_t i = 0; i < width; ++i) {
      double power = 1;
      for (double& m : moment) {
        m += power;
        power *= values[i];
      }
      tail += std::abs(values[i]) > 3.0F ? 1 : 0;
      if (i > 0) neighbours += static_cast<double>(values[i]) * values[i - 1];
    }
  }
  // Five standard errors of each, N = 2e6.
  const double n = moment[0];
  EXPECT_NEAR(moment[1] / n, 0.0, 5 / std::sqrt(n));
  EXPECT_NEAR(moment[2] / n, 1.0, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(moment[3] / n, 0.0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(moment[4] / n, 3.0, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(tail / n, 0.0026998, 5 * std::sqrt(0.0027 / n));
  EXPECT_NEAR(neighbours / n, 0.0, 5 / std::sqrt(n));
}

TEST(Inputs, TheFarTailIsThere) {
  float largest = 0;
  std::vector<float> values(1 << 16);
  for (std::int64_t r = 0; r < 128; ++r) {
    fill_row(5, TensorId::x, r, InputDist::normal, 1.0, values);
    for (const float value : values) largest = std::max(largest, std::abs(value));
  }
  EXPECT_GT(largest, 4.8F);  // expected near 5.3 of 8.4 million
  EXPECT_LT(largest, 6.7F);
}

TEST(Inputs, NeighbouringRowsTensorsAndSeedsAreUncorrelated) {
  const std::size_t width = 100000;
  const std::vector<float> base = row(1, TensorId::q, 0, width);
  for (const auto& other : {row(1, TensorId::q, 1, width), row(1, TensorId::k, 0, width),
                            row(2, TensorId::q, 0, width), row(1, TensorId::q, 1LL << 40, width)}) {
    double dot = 0;
    for (std::size_t i = 0; i < width; ++i) dot += static_cast<double>(base[i]) * other[i];
    EXPECT_LT(std::abs(dot), 5 * std::sqrt(static_cast<double>(width)));
  }
}

TEST(Inputs, ARowDependsOnItsPlaceOnly) {
  const std::vector<float> once = row(9, TensorId::v, 1234, 77);
  row(9, TensorId::v, 1235, 4096);
  EXPECT_EQ(once, row(9, TensorId::v, 1234, 77));
  const std::vector<float> longer = row(9, TensorId::v, 1234, 80);
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(longer[i], once[i], 1e-6F);
}

TEST(Inputs, UniformAndZeros) {
  double sum = 0;
  double squares = 0;
  for (const float value : row(1, TensorId::q, 0, 1000000, InputDist::uniform, 2.0)) {
    ASSERT_LE(std::abs(value), 2.0F);
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(sum / 1e6, 0.0, 0.006);
  EXPECT_NEAR(squares / 1e6, 4.0 / 3, 0.006);
  for (const float value : row(1, TensorId::q, 0, 100, InputDist::zeros)) EXPECT_EQ(value, 0.0F);
}

TEST(Inputs, LotsDiffer) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (std::uint64_t counter = 0; counter < 100; ++counter)
      seen.insert(random_bits(seed, counter));
  }
  EXPECT_EQ(seen.size(), 10000U);
}

}  // namespace
}  // namespace attn
