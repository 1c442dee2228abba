// SPDX-License-Identifier: MIT
// The work that a problem is, by formula: one per family, in this one place.
#pragma once

#include <optional>

#include "impls/attention.hpp"

namespace attn {

// Multiplications and additions of matrix and vector products, the same for every exact backend:
// core 2 B h pairs (d_k + d_v); attention layer plus its projections; RNN 4, GRU 12, LSTM 16 B n
// d^2; convolution 2 B width n d^2.
std::int64_t flops_model(const Problem& problem, Family family);

// The same of attention, by part; a core has the two in the middle only.
struct AttentionFlops {
  std::int64_t projections = 0;  // X W_Q, X W_K, X W_V
  std::int64_t scores = 0;       // Q K^T
  std::int64_t mixing = 0;       // A V
  std::int64_t output = 0;       // the product with W_O
  [[nodiscard]] std::int64_t core() const { return scores + mixing; }
  [[nodiscard]] std::int64_t total() const { return projections + core() + output; }
};
AttentionFlops attention_flops(const Problem& problem);

// The n at which a cost of `per_token` n equals one of `per_pair` for each visible pair of n tokens
// with n tokens, n^2 or causally n (n + 1) / 2; nothing where the second is greater from n = 1 on.
std::optional<double> tokens_where_equal(double per_token, double per_pair, Mask mask);

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
  [[nodiscard]] std::int64_t parameters() const { return w_q + w_k + w_v + w_o + w + u + b; }
};
TensorElements tensor_elements(const Problem& problem, Family family);

// What an implementation that keeps S = Q K^T keeps: batch * heads * n_q * n_kv.
std::int64_t score_elements(const Problem& problem);

// What biases would add to the attention layer's parameters: one for every output of W_Q, W_K and
// W_V, and of W_O where there is one. The layer has none.
std::int64_t bias_elements(const Problem& problem);

std::int64_t gates(Family family);  // rnn 1, gru 3, lstm 4, others 0
inline bool is_recurrent(Family family) { return gates(family) > 0; }

}  // namespace attn
