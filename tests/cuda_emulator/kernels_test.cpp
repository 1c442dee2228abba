// SPDX-License-Identifier: MIT
// The test kernels are right whatever the order of their threads, and so are the single words.
#include "tests/cuda_emulator/kernels/kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tests/cuda_emulator/emulator.hpp"
#include "tests/cuda_emulator/subjects.hpp"

namespace attn::test {
namespace {

using cuda_emulator::AsyncCopies;
using cuda_emulator::options;
using cuda_emulator::Schedule;

// Sanitized code is many times slower.
#ifdef __SANITIZE_ADDRESS__
constexpr int sizes[] = {77};
#else
constexpr int sizes[] = {64, 77, 128, 200};
#endif

class TestKernel : public testing::TestWithParam<std::size_t> {
 protected:
  void TearDown() override { options() = {}; }
};

TEST_P(TestKernel, IsRightInEveryOrder) {
  const Subject kernel = test_kernels()[GetParam()];
  for (const Schedule schedule :
       {Schedule::in_order, Schedule::reverse, Schedule::random, Schedule::greedy}) {
    for (const AsyncCopies copies : {AsyncCopies::lazy, AsyncCopies::eager}) {
      options() = {.schedule = schedule, .async_copies = copies};
      for (const int n : sizes) {
        EXPECT_EQ(kernel.fault(n, false), "") << "n = " << n;
        EXPECT_EQ(kernel.fault(n, true), "") << "n = " << n << ", causal";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TestKernel, testing::Range(std::size_t{0}, test_kernels().size()),
                         [](const auto& subject) { return test_kernels()[subject.param].name; });

// The matrices of ldmatrix against the layout's definition, element by element.
TEST(Words, LdmatrixHandsOutPairsOfRowsOrColumns) {
  alignas(16) std::uint16_t a[32 * 8];
  for (int e = 0; e < 32 * 8; ++e) a[e] = static_cast<std::uint16_t>(e * 257 + 1);
  for (const int count : {2, 4}) {
    for (const bool transposed : {false, true}) {
      unsigned b[32 * 4];
      load_matrices(a, b, count, transposed);
      for (int lane = 0; lane < 32; ++lane) {
        for (int m = 0; m < count; ++m) {
          const int across = lane / 4, along = lane % 4 * 2;
          const std::uint16_t* matrix = a + 64 * m;
          const unsigned low = transposed ? matrix[8 * along + across] : matrix[8 * across + along];
          const unsigned high =
              transposed ? matrix[8 * (along + 1) + across] : matrix[8 * across + along + 1];
          ASSERT_EQ(b[lane * count + m], low | high << 16) << "lane " << lane << ", matrix " << m;
        }
      }
    }
  }
}

// Small integers are exact in every type and every order of summation.
TEST(Words, MmaIsTheProduct) {
  for (const bool bfloat : {false, true}) {
    std::mt19937 random(7);
    std::uniform_int_distribution<int> digits(-8, 8);
    float a[16 * 16], b[16 * 8], c[16 * 8];
    std::uint16_t a_bits[16 * 16], b_bits[16 * 8];
    const auto bits = [&](float value) {
      return bfloat ? __bfloat16_as_ushort(__float2bfloat16(value))
                    : __half_as_ushort(__float2half(value));
    };
    for (int e = 0; e < 16 * 16; ++e) {
      a[e] = static_cast<float>(digits(random));
      a_bits[e] = bits(a[e]);
    }
    for (int e = 0; e < 16 * 8; ++e) {
      b[e] = static_cast<float>(digits(random));
      b_bits[e] = bits(b[e]);
    }
    multiply(a_bits, b_bits, c, bfloat);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        float sum = 0.0F;
        for (int e = 0; e < 16; ++e) sum += a[16 * i + e] * b[8 * e + j];
        ASSERT_EQ(c[8 * i + j], sum) << "row " << i << ", column " << j;
      }
    }
  }
}

// The value of 16 bits by the definition of the format.
double value_of(unsigned bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = std::ldexp(bits & ((1U << mantissa_bits) - 1), -mantissa_bits);
  const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  return sign * (exponent == 0 ? std::ldexp(mantissa, 1 - bias)
                               : std::ldexp(1.0 + mantissa, exponent - bias));
}

// A format of 16 bits: its conversions are exact one way, and to the nearest even the other way.
template <class ToFloat, class ToBits>
void check_format(int exponent_bits, int mantissa_bits, const ToFloat& to_float,
                  const ToBits& to_bits) {
  const auto value = [&](unsigned bits) { return value_of(bits, exponent_bits, mantissa_bits); };
  const unsigned infinity = ((1U << exponent_bits) - 1) << mantissa_bits;
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const float number = to_float(static_cast<unsigned short>(bits));
    if (std::isnan(value(bits))) {
      ASSERT_TRUE(std::isnan(number)) << bits;
      ASSERT_EQ(to_bits(number), 0x7FFF);
      continue;
    }
    ASSERT_EQ(number, value(bits)) << bits;
    ASSERT_EQ(std::signbit(number), bits >> 15 != 0) << bits;
    ASSERT_EQ(to_bits(number), bits);
  }
  // Between two neighbours (infinity counts as the next power of two) to the nearer one, and from
  // the middle to the even one.
  const auto check = [&](float number) {
    const unsigned rounded = to_bits(number), size = rounded & 0x7FFF;
    ASSERT_EQ(rounded >> 15 != 0, std::signbit(number)) << number;
    const auto position = [&](unsigned bits) {
      return bits == infinity ? 2 * value(infinity - (1U << mantissa_bits)) : value(bits);
    };
    const double wanted = std::abs(static_cast<double>(number));
    if (std::isinf(wanted)) {
      ASSERT_EQ(size, infinity);
      return;
    }
    ASSERT_LE(size, infinity) << number;
    const double off = std::abs(position(size) - wanted);
    if (size > 0) {
      const double below = std::abs(position(size - 1) - wanted);
      ASSERT_TRUE(off < below || (off == below && size % 2 == 0)) << number;
    }
    if (size < infinity) {
      const double above = std::abs(position(size + 1) - wanted);
      ASSERT_TRUE(off < above || (off == above && size % 2 == 0)) << number;
    } else if (wanted > position(infinity)) {
      return;  // far beyond
    }
  };
  std::mt19937 random(3);
  for (int i = 0; i < 300000; ++i) {
    const auto number = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(number)) check(number);
  }
  // All middles, and what is next to them.
  for (unsigned bits = 0; bits < infinity; ++bits) {
    const double above =
        bits + 1 == infinity ? 2 * value(infinity - (1U << mantissa_bits)) : value(bits + 1);
    const auto middle = static_cast<float>((value(bits) + above) / 2);
    check(middle), check(-middle);
    check(std::nextafter(middle, 0.0F)), check(std::nextafter(middle, 2 * middle));
  }
}

TEST(Numbers, HalfIsExact) {
  check_format(
      5, 10, [](unsigned short bits) { return __half2float(__ushort_as_half(bits)); },
      [](float value) { return __half_as_ushort(__float2half(value)); });
}

TEST(Numbers, Bfloat16IsExact) {
  check_format(
      8, 7, [](unsigned short bits) { return __bfloat162float(__ushort_as_bfloat16(bits)); },
      [](float value) { return __bfloat16_as_ushort(__float2bfloat16(value)); });
}

}  // namespace
}  // namespace attn::test
