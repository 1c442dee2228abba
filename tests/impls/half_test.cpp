// SPDX-License-Identifier: MIT
#include "impls/support/half.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace attn::test {
namespace {

static_assert(static_cast<float>(BFloat16(1.0F)) == 1.0F);
static_assert(static_cast<float>(Float16(65504.0F)) == 65504.0F);
static_assert(sizeof(BFloat16) == 2 && sizeof(Float16) == 2);

template <class T>
class Half : public testing::Test {
 public:
  // Of the format, and where it ends: the least number that is rounded to infinity.
  static constexpr bool bf16 = std::is_same_v<T, BFloat16>;
  static constexpr int mantissa = bf16 ? 7 : 10;
  static constexpr int bias = bf16 ? 127 : 15;
  static constexpr unsigned infinity = bf16 ? 0x7f80 : 0x7c00;

  static T of_bits(unsigned bits) { return std::bit_cast<T>(static_cast<std::uint16_t>(bits)); }
  static T rounded(double exact) { return T(static_cast<float>(exact)); }

  // What the bits below those of infinity mean, by the definition of the formats.
  static double value(unsigned bits) {
    const unsigned exponent = bits >> mantissa;
    const unsigned fraction = bits & ((1U << mantissa) - 1);
    const unsigned hidden = exponent > 0 ? 1U << mantissa : 0;
    return std::ldexp(hidden + fraction,
                      static_cast<int>(std::max(exponent, 1U)) - bias - mantissa);
  }
};
using Halves = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(Half, Halves);

TYPED_TEST(Half, EveryNumberIsWhatItsBitsMean) {
  for (unsigned bits = 0; bits < this->infinity; ++bits) {
    for (const unsigned sign : {0U, 0x8000U}) {
      const float value = this->of_bits(bits | sign);
      ASSERT_EQ(value, (sign != 0 ? -1 : 1) * this->value(bits)) << bits;
      ASSERT_EQ(std::signbit(value), sign != 0) << bits;
      ASSERT_EQ(TypeParam(value).bits, bits | sign);
    }
  }
}

// To either side of the middle between two numbers, and to the even one from it.
TYPED_TEST(Half, RoundsToNearest) {
  for (unsigned bits = 0; bits < this->infinity; ++bits) {
    const double next =
        bits + 1 == this->infinity ? std::ldexp(1.0, this->bias + 1) : this->value(bits + 1);
    const auto middle = static_cast<float>((this->value(bits) + next) / 2);
    ASSERT_EQ(TypeParam(middle).bits, bits + (bits & 1)) << bits;
    ASSERT_EQ(TypeParam(-middle).bits, (bits + (bits & 1)) | 0x8000U) << bits;
    ASSERT_EQ(TypeParam(std::nextafter(middle, 0.0F)).bits, bits) << bits;
    ASSERT_EQ(TypeParam(std::nextafter(middle, INFINITY)).bits, bits + 1) << bits;
  }
}

TYPED_TEST(Half, WhatIsNoNumberStaysSo) {
  EXPECT_EQ(static_cast<float>(TypeParam(INFINITY)), INFINITY);
  EXPECT_EQ(static_cast<float>(TypeParam(-INFINITY)), -INFINITY);
  EXPECT_EQ(static_cast<float>(TypeParam(std::numeric_limits<float>::max())), INFINITY);
  // Also a NaN whose upper bits alone would be infinity, or would be carried into the sign.
  for (const std::uint32_t bits : {0x7fc00000U, 0x7f800001U, 0x7fffffffU, 0xffffffffU}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(std::bit_cast<float>(bits))))) << bits;
  }
  for (unsigned bits = this->infinity + 1; bits < 0x8000; ++bits) {
    ASSERT_TRUE(std::isnan(static_cast<float>(this->of_bits(bits)))) << bits;
    ASSERT_TRUE(std::isnan(static_cast<float>(this->of_bits(bits | 0x8000)))) << bits;
  }
}

}  // namespace
}  // namespace attn::test
