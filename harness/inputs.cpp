// SPDX-License-Identifier: MIT
#include "harness/inputs.hpp"

#include <bit>
#include <cstddef>

namespace attn {
namespace {

constexpr std::uint64_t gamma = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio, odd

// SplitMix64's finaliser (Stafford's variant 13): a bijection of 64 bits whose outputs at multiples
// of gamma pass BigCrush. Branch-free, so the loops below vectorise.
constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// The middle of one of 2^32 equal cells of (0, 1): never 0, so its logarithm is finite and the
// normal below reaches 6.7 standard deviations. Bits are put under the exponent of 1: no integer
// conversion, which AVX2 does not have for 64 bits.
inline double unit(std::uint64_t bits32) {
  return std::bit_cast<double>(0x3ff0000000000000 | bits32 << 20 | std::uint64_t{1} << 19) - 1.0;
}

// -ln(u) for u in (0, 1): u = m 2^e with m in [1/sqrt 2, sqrt 2), ln m = 2 artanh((m - 1) / (m +
// 1)). The series stops where its rest is below 1e-13.
inline double minus_log(double u) {
  constexpr std::uint64_t sqrt_half = 0x3fe6a09e667f3bcd;
  const std::uint64_t shifted = std::bit_cast<std::uint64_t>(u) - sqrt_half;
  const auto exponent = static_cast<std::int64_t>(shifted) >> 52;
  const double m = std::bit_cast<double>((shifted & 0x000fffffffffffff) + sqrt_half);
  // The exponent as a double, again without a conversion: a small integer on top of 1.5 * 2^52.
  constexpr double magic = 6755399441055744.0;
  const double e = std::bit_cast<double>(std::bit_cast<std::int64_t>(magic) + exponent) - magic;
  const double s = (m - 1.0) / (m + 1.0);
  const double t = s * s;
  const double series =
      1.0 +
      t * (1.0 / 3 +
           t * (1.0 / 5 +
                t * (1.0 / 7 + t * (1.0 / 9 + t * (1.0 / 11 + t * (1.0 / 13 + t * (1.0 / 15)))))));
  constexpr double ln2 = 0.69314718055994530942;
  return -(2.0 * s * series + e * ln2);
}

struct Direction {
  double cosine, sine;
};

// A point of the unit circle: the two highest of 32 bits choose a quadrant, the others an angle in
// (-pi/4, pi/4), where the Taylor polynomials are good to 1e-13.
inline Direction direction(std::uint64_t bits32) {
  constexpr double half_pi = 1.57079632679489661923;
  const double x = (unit((bits32 << 2) & 0xffffffff) - 0.5) * half_pi;
  const double t = x * x;
  const double s =
      x * (1 + t * (-1.0 / 6 +
                    t * (1.0 / 120 +
                         t * (-1.0 / 5040 + t * (1.0 / 362880 + t * (-1.0 / 39916800 +
                                                                     t * (1.0 / 6227020800)))))));
  const double c =
      1 + t * (-1.0 / 2 +
               t * (1.0 / 24 + t * (-1.0 / 720 +
                                    t * (1.0 / 40320 +
                                         t * (-1.0 / 3628800 +
                                              t * (1.0 / 479001600 + t * (-1.0 / 87178291200)))))));
  const bool odd = (bits32 >> 30 & 1) != 0;
  const std::uint64_t sign = (bits32 >> 31) << 63;
  const double a = odd ? -s : c;
  const double b = odd ? c : s;
  return {std::bit_cast<double>(std::bit_cast<std::uint64_t>(a) ^ sign),
          std::bit_cast<double>(std::bit_cast<std::uint64_t>(b) ^ sign)};
}

// Box and Muller 1958: two values from 64 random bits.
inline void normal_pair(std::uint64_t bits, double scale, float& first, float& second) {
  const double radius = scale * __builtin_sqrt(2.0 * minus_log(unit(bits >> 32)));
  const Direction d = direction(bits & 0xffffffff);
  first = static_cast<float>(radius * d.cosine);
  second = static_cast<float>(radius * d.sine);
}

// Where the stream of one row starts. Streams are pieces of one cycle of 2^64; that two of a
// million rows of a thousand elements overlap has a chance of 1e-4.
std::uint64_t row_key(std::uint64_t seed, TensorId tensor, std::int64_t row) {
  const std::uint64_t stream = mix(seed + gamma) ^ (static_cast<std::uint64_t>(tensor) + 1);
  return mix(mix(stream) + static_cast<std::uint64_t>(row) * gamma);
}

void fill_normal(std::uint64_t key, double scale, float* values, std::size_t count) {
  const std::size_t pairs = count / 2;
  // Vectorised (0.6 ns a value instead of 3.9, Zen 4) only with -fno-math-errno: a square root that
  // may have to set errno is control flow.
#pragma omp simd
  for (std::size_t i = 0; i < pairs; ++i) {
    normal_pair(mix(key + i * gamma), scale, values[2 * i], values[2 * i + 1]);
  }
  if (count % 2 != 0) {
    float unused = 0;
    normal_pair(mix(key + pairs * gamma), scale, values[count - 1], unused);
  }
}

void fill_uniform(std::uint64_t key, double scale, float* values, std::size_t count) {
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) {
    const double u = unit(mix(key + i * gamma) >> 32);
    values[i] = static_cast<float>(scale * (2.0 * u - 1.0));
  }
}

}  // namespace

void fill_row(std::uint64_t seed, TensorId tensor, std::int64_t row, InputDist dist, double scale,
              std::span<float> values) {
  const std::uint64_t key = row_key(seed, tensor, row);
  switch (dist) {
    case InputDist::normal:
      fill_normal(key, scale, values.data(), values.size());
      break;
    case InputDist::uniform:
      fill_uniform(key, scale, values.data(), values.size());
      break;
    case InputDist::zeros:
      for (float& value : values) value = 0.0F;
      break;
  }
}

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  return mix(mix(seed + gamma) + (counter + 1) * gamma);
}

}  // namespace attn
