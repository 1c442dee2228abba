// SPDX-License-Identifier: MIT
#include "harness/work.hpp"

#include <stdexcept>

#include "harness/names.hpp"

namespace attn {
namespace {

// Tokens whose keys and values a layer computes: in decode those of the cache are there already.
std::int64_t projected_kv_tokens(const Problem& p) {
  return p.regime == Regime::decode ? p.n_q : p.n_kv;
}

}  // namespace

std::int64_t gates(Family family) {
  switch (family) {
    case Family::rnn:
      return 1;
    case Family::gru:
      return 3;
    case Family::lstm:
      return 4;
    default:
      return 0;
  }
}

std::int64_t flops_model(const Problem& p, Family family) {
  const std::int64_t tokens = p.batch * p.n_q;
  const std::int64_t d = p.d_model;
  if (gates(family) > 0) return 4 * gates(family) * tokens * d * d;
  if (family == Family::convolution) return 2 * p.width * tokens * d * d;
  if (family != Family::attention) {
    throw std::invalid_argument(
        "flops_model: this family counts the products of its own definition");
  }
  return attention_flops(p).total();
}

AttentionFlops attention_flops(const Problem& p) {
  AttentionFlops flops;
  flops.scores = 2 * p.heads * p.pairs() * p.head_dim;
  flops.mixing = 2 * p.heads * p.pairs() * p.head_dim_v;
  if (p.scope == Scope::core) return flops;
  const std::int64_t tokens = p.batch * p.n_q;
  const std::int64_t kv_tokens = p.batch * projected_kv_tokens(p);
  flops.projections =
      2 * p.d_model *
      (tokens * p.heads * p.head_dim + kv_tokens * p.heads_kv * (p.head_dim + p.head_dim_v));
  if (p.output_projection) flops.output = 2 * tokens * p.heads * p.head_dim_v * p.d_model;
  return flops;
}

std::optional<double> tokens_where_equal(double per_token, double per_pair, Mask mask) {
  const double n = per_token / per_pair;
  if (!(n >= 1)) return std::nullopt;
  return mask == Mask::causal ? 2 * n - 1 : n;
}

TensorElements tensor_elements(const Problem& p, Family family) {
  TensorElements e;
  const std::int64_t d = p.d_model;
  if (!has_heads(family)) {
    e.x = e.y = p.batch * p.n_q * d;
    e.w = (family == Family::convolution ? p.width : gates(family)) * d * d;
    e.u = gates(family) * d * d;
    e.b = (family == Family::convolution ? 1 : gates(family)) * d;
    return e;
  }
  if (p.scope == Scope::core) {
    e.q = p.batch * p.heads * p.n_q * p.head_dim;
    e.k = p.batch * p.heads_kv * p.n_kv * p.head_dim;
    e.v = p.batch * p.heads_kv * p.n_kv * p.head_dim_v;
    e.out = p.batch * p.heads * p.n_q * p.head_dim_v;
    return e;
  }
  e.x = p.batch * p.n_q * d;
  e.context = p.n_kv == p.n_q ? 0 : p.batch * p.n_kv * d;
  e.y = p.batch * p.n_q * (p.output_projection ? d : p.heads * p.head_dim_v);
  e.w_q = p.heads * p.head_dim * d;
  e.w_k = p.heads_kv * p.head_dim * d;
  e.w_v = p.heads_kv * p.head_dim_v * d;
  e.w_o = p.output_projection ? d * p.heads * p.head_dim_v : 0;
  return e;
}

std::int64_t bytes_min(const Problem& p, Family family) {
  const TensorElements e = tensor_elements(p, family);
  return bytes_per_element(p.dtype) * (e.inputs() + e.outputs());
}

std::int64_t score_elements(const Problem& p) { return p.batch * p.heads * p.n_q * p.n_kv; }

std::int64_t bias_elements(const Problem& p) {
  return p.heads * p.head_dim + p.heads_kv * (p.head_dim + p.head_dim_v) +
         (p.output_projection ? p.d_model : 0);
}

std::int64_t kv_cache_bytes(const Problem& p, Family family) {
  if (family != Family::attention && family != Family::sparse) return 0;
  return bytes_per_element(p.dtype) * p.batch * p.heads_kv * p.n_kv * (p.head_dim + p.head_dim_v);
}

}  // namespace attn
