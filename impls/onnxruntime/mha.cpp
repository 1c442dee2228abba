// SPDX-License-Identifier: MIT
// Idea: ONNX Runtime's MultiHeadAttention, as a model of one node: what a user of its CPU package runs.
// Math: its flash kernel where it has one (f32, no causal mask), else products and softmax over the
//   whole score matrix.
// Memory traffic (elements): q, k, v and out once, which is the least: what the library does is its
//   own.
// Why this shape: the operator's tensors are [batch, token, head * dim].
// Limits: f32, host; every query head has its own keys; no key lengths or empty tensors; a causal
//   mask only with as many keys as queries; a scale of 0 means the default to it.
// Source: com.microsoft.MultiHeadAttention, onnxruntime/contrib_ops/cpu/bert.
#include "impls/support/child.hpp"

namespace attn {
namespace {

constexpr Peer peer{.name = "onnxruntime.mha",
                    .environment = ".venv-peers",
                    .package = "onnxruntime",
                    .op = "com.microsoft.MultiHeadAttention",
                    .token_major = true};

std::optional<Refusal> limits(const Problem& p) {
  if (p.heads_kv != p.heads) return Refusal{.sentence = "every query head needs its own keys"};
  if (p.effective_scale() == 0) return Refusal{.sentence = "a scale of 0 means the default to it"};
  return std::nullopt;
}

}  // namespace

Backend onnxruntime_mha() { return PeerBackend<peer, limits>::backend(); }

}  // namespace attn
