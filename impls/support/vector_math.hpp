// SPDX-License-Identifier: MIT
// exp, tanh and sigmoid in f32 for loops marked `#pragma omp simd`: no branch, no table, no call,
// so that a compiler vectorises the loop around them without -ffast-math. A scalar libm expf would
// be more than half of a three-step attention.
//
// Error against float64, over the domain whose result is a normal number: exp 2 ulp, tanh 2 ulp,
// sigmoid 3 ulp. exp(-inf) = 0, exp(+inf) = inf, exp(0) = 1; results below the least normal number
// round to a denormal or 0 (sigmoid: to 0); NaN stays NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace attn {

// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2 (Cody and Waite's two-part ln 2), with
// exp(r) = 1 + r + r^2 Q(r), Q of degree 4 interpolating at Chebyshev nodes (error 1e-9, 0.02 ulp).
inline float simd_exp(float x) {
  constexpr float log2_e = 1.44269504F;
  constexpr float ln2_high = 0.693359375F;  // 9 bits, so that n * ln2_high is exact
  constexpr float ln2_low = -2.12194440e-4F;
  constexpr float round_bias = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  // Past these the result is 0 or inf anyway; written so that a NaN passes through.
  x = x < -104.0F ? -104.0F : x;
  x = x > 89.0F ? 89.0F : x;
  const float biased = x * log2_e + round_bias;
  const float n = biased - round_bias;
  const float r = (x - n * ln2_high) - n * ln2_low;
  float q = 1.39262034e-3F;
  q = q * r + 8.36319488e-3F;
  q = q * r + 4.16665545e-2F;
  q = q * r + 1.66665769e-1F;
  q = q * r + 0.5F;
  const float mantissa = (q * r) * r + r + 1.0F;
  // 2^n in two factors, because n reaches from -150 (denormal results) to 128 (results near the
  // end).
  const std::int32_t exponent =
      std::bit_cast<std::int32_t>(biased) - std::bit_cast<std::int32_t>(round_bias);
  const std::int32_t half = exponent >> 1;
  const float first = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const float second =
      std::bit_cast<float>(static_cast<std::uint32_t>(exponent - half + 127) << 23);
  return mantissa * first * second;
}

// tanh(x) = x + x^3 P(x^2) below 0.625, where 1 - 2 / (exp(2 x) + 1) would cancel.
inline float simd_tanh(float x) {
  const float size = std::fabs(x);
  const float z = x * x;
  float p = -6.04516509e-3F;
  p = p * z + 2.09613291e-2F;
  p = p * z + -5.38432632e-2F;
  p = p * z + 1.33327188e-1F;
  p = p * z + -3.33333284e-1F;
  const float small = size + size * z * p;
  const float large = 1.0F - 2.0F / (simd_exp(2.0F * size) + 1.0F);
  return std::copysign(size < 0.625F ? small : large, x);
}

inline float simd_sigmoid(float x) { return 1.0F / (1.0F + simd_exp(-x)); }

}  // namespace attn
