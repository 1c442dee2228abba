// SPDX-License-Identifier: MIT
// bfloat16, the upper half of a float, as kernels spell it: storage, and exact conversions. What the
// toolkit's header has beyond that is not emulated and does not compile.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

class __nv_bfloat16 {
 public:
  __nv_bfloat16() = default;
  friend __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits);
  friend unsigned short __bfloat16_as_ushort(__nv_bfloat16 value);

 private:
  unsigned short bits_;
};

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  __nv_bfloat16 value;
  value.bits_ = bits;
  return value;
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits_; }

// To the nearest, ties to even; any NaN becomes 0x7FFF, as on a device.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFF'FFFFU) > 0x7F80'0000U) return __ushort_as_bfloat16(0x7FFF);
  return __ushort_as_bfloat16(
      static_cast<unsigned short>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16));
}
inline __nv_bfloat16 __float2bfloat16(float value) { return __float2bfloat16_rn(value); }

inline float __bfloat162float(__nv_bfloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(__bfloat16_as_ushort(value)) << 16);
}

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 pair) {
  return {__bfloat162float(pair.x), __bfloat162float(pair.y)};
}

namespace cuda_emulator {
inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
}  // namespace cuda_emulator
