// SPDX-License-Identifier: MIT
// The 16-bit elements of tensors. Both only store: arithmetic happens in f32, to which they convert
// by themselves and from which they are rounded, to nearest and to even in the middle. NaN stays NaN,
// and what is too large becomes infinite. Loops over either direction vectorise.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>

#include "impls/attention.hpp"

namespace attn {

// f32 without its lower 16 bits.
struct BFloat16 {
  std::uint16_t bits;

  BFloat16() = default;
  explicit constexpr BFloat16(float value) : bits(round(std::bit_cast<std::uint32_t>(value))) {}
  explicit BFloat16(std::integral auto) = delete;  // a value or its bits? std::bit_cast takes bits
  constexpr operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

 private:
  static constexpr std::uint16_t round(std::uint32_t value) {
    const std::uint32_t nearest = (value + 0x7fff + (value >> 16 & 1)) >> 16;
    const std::uint32_t quiet = value >> 16 | 0x40;
    return static_cast<std::uint16_t>((value & 0x7fffffff) > 0x7f800000 ? quiet : nearest);
  }
};

// IEEE 754 binary16. By bit arithmetic, because clang 14 has _Float16 on x86 with AVX512-FP16 alone.
struct Float16 {
  std::uint16_t bits;

  Float16() = default;
  explicit constexpr Float16(float value) : bits(round(std::bit_cast<std::uint32_t>(value))) {}
  explicit Float16(std::integral auto) = delete;
  constexpr operator float() const {
    // With the exponent where f32 has its own, a number is too small by the difference of the
    // biases, 2^(127 - 15), a subnormal one too.
    const std::uint32_t magnitude = (bits & 0x7fffU) << 13;
    const float finite = std::bit_cast<float>(magnitude) * 0x1p112F;
    const std::uint32_t value =
        magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : std::bit_cast<std::uint32_t>(finite);
    return std::bit_cast<float>(value | (bits & 0x8000U) << 16);
  }

 private:
  static constexpr std::uint16_t round(std::uint32_t value) {
    const std::uint32_t magnitude = value & 0x7fffffff;
    const std::uint32_t normal = (magnitude - (112U << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    // The last place of 0.5 is the unit of the subnormals, 2^-24: an addition rounds to it.
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
        std::bit_cast<std::uint32_t>(0.5F);
    std::uint32_t result = magnitude < 0x38800000 ? subnormal : normal;
    if (magnitude >= 0x47800000) result = 0x7c00;
    if (magnitude > 0x7f800000) result = 0x7e00;
    return static_cast<std::uint16_t>(result | (value >> 16 & 0x8000));
  }
};

// f(element), whose type is that of the dtype and whose value means nothing.
template <class F>
decltype(auto) with_element(DType dtype, F&& f) {
  switch (dtype) {
    case DType::bf16:
      return f(BFloat16{});
    case DType::f16:
      return f(Float16{});
    case DType::f32:
      break;
  }
  return f(float{});
}

}  // namespace attn
