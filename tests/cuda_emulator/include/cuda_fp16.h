// SPDX-License-Identifier: MIT
// The 16-bit float of IEEE 754 as kernels spell it: storage, and exact conversions. What the
// toolkit's header has beyond that is not emulated and does not compile.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

class __half {
 public:
  __half() = default;
  friend __half __ushort_as_half(unsigned short bits);
  friend unsigned short __half_as_ushort(__half value);

 private:
  unsigned short bits_;
};
using half = __half;

inline __half __ushort_as_half(unsigned short bits) {
  __half value;
  value.bits_ = bits;
  return value;
}
inline unsigned short __half_as_ushort(__half value) { return value.bits_; }

// To the nearest, ties to even; any NaN becomes 0x7FFF, as on a device.
inline __half __float2half_rn(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U, size = bits & 0x7FFF'FFFFU;
  std::uint32_t result = 0;
  if (size > 0x7F80'0000U) return __ushort_as_half(0x7FFF);
  if (size >= 0x4780'0000U) {  // 65536 and above
    result = 0x7C00U;
  } else if (size < 0x3880'0000U) {
    // Below 2^-14 results are multiples of 2^-24, the last place of 0.5: an addition rounds to it.
    result = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F) -
             std::bit_cast<std::uint32_t>(0.5F);
  } else {
    result = (size - (112U << 23) + 0xFFFU + (size >> 13 & 1U)) >> 13;
  }
  return __ushort_as_half(static_cast<unsigned short>(sign | result));
}
inline __half __float2half(float value) { return __float2half_rn(value); }

inline float __half2float(__half value) {
  const std::uint32_t bits = __half_as_ushort(value), size = bits & 0x7FFFU;
  // The exponent's bias differs by 112, and a product with 2^112 also makes subnormals normal.
  auto result = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size << 13) * 0x1p112F);
  if (size >= 0x7C00U) result |= 0x7F80'0000U;
  return std::bit_cast<float>(result | (bits & 0x8000U) << 16);
}

struct alignas(4) __half2 {
  __half x, y;
};
using half2 = __half2;
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline float2 __half22float2(__half2 pair) { return {__half2float(pair.x), __half2float(pair.y)}; }

namespace cuda_emulator {
inline float to_float(__half value) { return __half2float(value); }
}  // namespace cuda_emulator
