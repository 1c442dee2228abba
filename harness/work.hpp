// SPDX-License-Identifier: MIT
// The work that a problem is, by formula: one per family, in this one place.
#pragma once

#include "impls/attention.hpp"

namespace attn {

// Multiplications and additions of matrix and vector products, the same for every exact backend:
// core 2 B h pairs (d_k + d_v); attention layer plus its projections; RNN 4, GRU 12, LSTM 16 B n
// d^2; convolution 2 B width n d^2.
std::int64_t flops_model(const Problem& problem, Family family);

// Every input (parameters included) read once, the output written once.
std::int64_t bytes_min(const Problem& problem, Family family);

// K and V of every KV head and key; 0 for families without a cache.
std::int64_t kv_cache_bytes(const Problem& problem, Family family);

// The elements of each tensor of a problem, 0 where it has none.
struct TensorElements {
  std::int64_t q = 0, k = 0, v = 0, out = 0;        // core
  std::int64_t x = 0, context = 0, y = 0;           // layer
  std::int64_t w_q = 0, w_k = 0, w_v = 0, w_o = 0;  // attention layer
  std::int64_t w = 0, u = 0, b = 0;                 // recurrences and convolutions
  [[nodiscard]] std::int64_t inputs() const {
    return q + k + v + x + context + w_q + w_k + w_v + w_o + w + u + b;
  }
  [[nodiscard]] std::int64_t outputs() const { return out + y; }
};
TensorElements tensor_elements(const Problem& problem, Family family);

std::int64_t bytes_per_element(DType dtype);
std::int64_t gates(Family family);  // rnn 1, gru 3, lstm 4, others 0
inline bool is_recurrent(Family family) { return gates(family) > 0; }

}  // namespace attn
