// SPDX-License-Identifier: MIT
// Refusals and outputs that several backends share.
#pragma once

#include <cmath>
#include <optional>

#include "impls/attention.hpp"

namespace attn {

// The limits of every plain host core: f32, tensors in host memory.
inline std::optional<Refusal> refuse_unless_plain_core(const Problem& p) {
  if (p.dtype != DType::f32) return Refusal{.sentence = "computes in f32 only"};
  if (p.memory != Memory::host) return Refusal{.sentence = "reads host memory only"};
  return std::nullopt;
}

// The limits of every plain host recurrence, which reads one sequence of n_q tokens.
inline std::optional<Refusal> refuse_unless_plain_recurrence(const Problem& p) {
  if (p.scope != Scope::layer) {
    return Refusal{.sentence = "a recurrence is a whole layer and has no core"};
  }
  if (p.regime != Regime::prefill) {
    return Refusal{.sentence = "decode would need the state of the step before, which Io lacks"};
  }
  if (p.n_kv != p.n_q) return Refusal{.sentence = "a recurrence reads one sequence, not two"};
  if (!p.key_lengths.empty()) return Refusal{.sentence = "a recurrence has no keys to cut short"};
  if (p.d_model < 1) return Refusal{.sentence = "a recurrence needs d_model of at least 1"};
  return refuse_unless_plain_core(p);
}

// log(sum of exp(s_j)) = max + log(sum): -inf where no key is visible, because then sum is 0, and NaN
// where a score is.
template <class T>
inline void write_log_sum_exp(const View& view, std::int64_t b, std::int64_t h, std::int64_t i,
                              T max, T sum) {
  using std::log;
  *view.row<T>(b, h, i) = max + log(sum);
}

}  // namespace attn
