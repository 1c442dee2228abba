// SPDX-License-Identifier: MIT
// Idea: ONNX Runtime's GroupQueryAttention, as a model of one node: its causal prefill.
// Math: flash over the keys up to a row's own; the query heads of a KV head read the same keys.
// Memory traffic (elements): q, k, v and out once, which is the least; the operator also copies k and
//   v into the cache that it returns, inside the clock, as it does for its users.
// Why this shape: the operator's tensors are [batch, token, head * dim]; its past is empty.
// Limits: f32, host; causal, with as many keys as queries, because the keys before would be a cache;
//   head_dim a multiple of 8, values as wide as keys; no key lengths or empty tensors; a scale of 0
//   means the default to it.
// Source: com.microsoft.GroupQueryAttention, onnxruntime/contrib_ops/cpu/bert.
#include "impls/support/child.hpp"

namespace attn {
namespace {

constexpr Peer peer{.name = "onnxruntime.gqa",
                    .environment = ".venv-peers",
                    .package = "onnxruntime",
                    .op = "com.microsoft.GroupQueryAttention",
                    .token_major = true};

std::optional<Refusal> limits(const Problem& p) {
  if (p.mask != Mask::causal) return Refusal{.sentence = "is always causal"};
  if (p.head_dim_v != p.head_dim) return Refusal{.sentence = "needs values as wide as keys"};
  if (p.head_dim % 8 != 0) return Refusal{.sentence = "needs a head_dim that is a multiple of 8"};
  if (p.effective_scale() == 0) return Refusal{.sentence = "a scale of 0 means the default to it"};
  return std::nullopt;
}

}  // namespace

Backend onnxruntime_gqa() { return PeerBackend<peer, limits>::backend(); }

}  // namespace attn
