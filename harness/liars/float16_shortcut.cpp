// SPDX-License-Identifier: MIT
// Lie: f32 was asked for; q and k are rounded to 11 bits first, as half-precision units would.
// Caught by: reference-rows: the bound is 8 times the error of plain f32.
#include <bit>

#include "harness/liars/honest.hpp"

namespace attn {
namespace {

// The mantissa of f16; its range does not matter here.
float to_half(float value) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000U) & 0xffffe000U);
}

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    honest::row(p, io, b, h, i, static_cast<float*>(scratch), {.rounded = to_half});
  });
}

}  // namespace

Liar liar_float16_shortcut() {
  return {.says = "f16 in place of f32",
          .lies = {{honest::problem(96), Safeguard::reference_rows}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
