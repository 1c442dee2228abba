// SPDX-License-Identifier: MIT
#include "impls/support/vector_math.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace attn {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// Distance from the truth in units of the spacing of floats there.
double ulps(float value, double truth) {
  const double spacing = std::ldexp(1.0, std::max(std::ilogb(truth), -126) - 23);
  return std::abs(static_cast<double>(value) - truth) / spacing;
}

// The largest error of `f` against `truth` over floats from `begin` to `end`, a prime number of bit
// patterns apart, computed in a vectorised loop as the backends do.
template <class F, class Truth>
double worst_ulps(float begin, float end, F f, Truth truth) {
  std::vector<float> x, y;
  const auto add = [&](float magnitude_begin, float magnitude_end, float sign) {
    auto bits = std::bit_cast<std::uint32_t>(magnitude_begin);
    for (; bits <= std::bit_cast<std::uint32_t>(magnitude_end); bits += 613) {
      x.push_back(sign * std::bit_cast<float>(bits));
    }
  };
  if (begin < 0.0F) add(0.0F, -begin, -1.0F);
  if (end > 0.0F) add(0.0F, end, 1.0F);
  y.resize(x.size());
#pragma omp simd
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = f(x[i]);
  double worst = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, ulps(y[i], truth(static_cast<double>(x[i]))));
  }
  return worst;
}

// Function objects, which every compiler inlines into the loop.
constexpr auto float_exp = [](float x) { return simd_exp(x); };
constexpr auto float_tanh = [](float x) { return simd_tanh(x); };
constexpr auto float_sigmoid = [](float x) { return simd_sigmoid(x); };
double double_exp(double x) { return std::exp(x); }
double double_tanh(double x) { return std::tanh(x); }
double double_sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

TEST(VectorMath, ExpIsWithinTwoUlps) {
  EXPECT_LE(worst_ulps(-87.3F, 88.7F, float_exp, double_exp), 2.0);
}

TEST(VectorMath, ExpRoundsDenormalResults) {
  EXPECT_LE(worst_ulps(-103.9F, 0.0F, float_exp, double_exp), 2.0);
}

TEST(VectorMath, TanhIsWithinTwoUlps) {
  EXPECT_LE(worst_ulps(-20.0F, 20.0F, float_tanh, double_tanh), 2.0);
}

TEST(VectorMath, SigmoidIsWithinThreeUlps) {
  EXPECT_LE(worst_ulps(-87.3F, 30.0F, float_sigmoid, double_sigmoid), 3.0);
}

TEST(VectorMath, EndsOfTheDomain) {
  EXPECT_EQ(simd_exp(-infinity), 0.0F);
  EXPECT_EQ(simd_exp(infinity), infinity);
  EXPECT_EQ(simd_exp(1e30F), infinity);
  EXPECT_EQ(simd_exp(-1e30F), 0.0F);
  EXPECT_EQ(simd_exp(0.0F), 1.0F);
  EXPECT_EQ(simd_tanh(infinity), 1.0F);
  EXPECT_EQ(simd_tanh(-infinity), -1.0F);
  EXPECT_EQ(simd_tanh(0.0F), 0.0F);
  EXPECT_TRUE(std::signbit(simd_tanh(-0.0F)));
  EXPECT_EQ(simd_sigmoid(infinity), 1.0F);
  EXPECT_EQ(simd_sigmoid(-infinity), 0.0F);
  EXPECT_EQ(simd_sigmoid(0.0F), 0.5F);
}

TEST(VectorMath, NanStaysNan) {
  std::vector<float> x(37, std::numeric_limits<float>::quiet_NaN()), y(37);
#pragma omp simd
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = simd_exp(x[i]);
  for (const float value : y) EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(std::isnan(simd_tanh(x[0])));
  EXPECT_TRUE(std::isnan(simd_sigmoid(x[0])));
}

}  // namespace
}  // namespace attn
