// SPDX-License-Identifier: MIT
// Counter-based inputs: any row of any tensor can be made alone from (seed, tensor, row).
#pragma once

#include <cstdint>
#include <span>

namespace attn {

enum class InputDist { normal, uniform, zeros };  // N(0,1); uniform on [-1, 1]; all 0

enum class TensorId : std::uint32_t { q, k, v, x, context, w_q, w_k, w_v, w_o, w, u, b, change };

// Fills one row with values of the distribution times `scale`. The row of token t of q, k and v is
// (b * heads + h) * n + t, of x and context b * n + t, of weights the output's number; b is one
// row. Normal values are N(0,1) by Box and Muller, up to 6.7 standard deviations.
void fill_row(std::uint64_t seed, TensorId tensor, std::int64_t row, InputDist dist, double scale,
              std::span<float> values);

// Seeds of the inputs of a closing call, and of its repetitions.
constexpr std::uint64_t fresh_seed(std::uint64_t seed, int attempt) {
  return seed ^ (std::uint64_t{0x66726573682d696e} + static_cast<std::uint64_t>(attempt));
}

// 64 random bits of (seed, counter): for every choice the harness makes by lot.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter);

}  // namespace attn
