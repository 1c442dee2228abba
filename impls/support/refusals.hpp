// SPDX-License-Identifier: MIT
// Refusals and outputs that several backends share.
#pragma once

#include <cmath>
#include <limits>
#include <optional>

#include "impls/attention.hpp"

namespace attn {

// The limits of every plain host core: f32, tensors in host memory.
inline std::optional<Refusal> refuse_unless_plain_core(const Problem& p) {
  if (p.dtype != DType::f32) return Refusal{.sentence = "computes in f32 only"};
  if (p.memory != Memory::host) return Refusal{.sentence = "reads host memory only"};
  return std::nullopt;
}

// log(sum of exp(s_j)) = max + log(sum), -inf where no key is visible.
template <class T>
inline void write_log_sum_exp(const View& view, std::int64_t b, std::int64_t h, std::int64_t i, T max,
                              T sum) {
  using std::log;
  *view.row<T>(b, h, i) = sum > static_cast<T>(0)
                              ? max + log(sum)
                              : static_cast<T>(-std::numeric_limits<float>::infinity());
}

}  // namespace attn
