// SPDX-License-Identifier: MIT
// Idea: OpenVINO's ScaledDotProductAttention on its CPU plug-in, as a model of one operation.
// Math: the plug-in's own kernel; it chooses.
// Memory traffic (elements): q, k, v and out once, which is the least: what the library does is its
//   own.
// Why this shape: the operation's tensors are [batch, head, token, dim].
// Limits: f32 and bf16, host; one head of keys for each query head or for all; no key lengths or
//   empty tensors; its causal corner lies top-left, so a causal mask only with as many keys as
//   queries.
// Source: opset13 ScaledDotProductAttention, openvino/src/plugins/intel_cpu.
#include "impls/support/child.hpp"

namespace attn {
namespace {

constexpr Peer peer{.name = "openvino.sdpa",
                    .environment = ".venv-peers",
                    .package = "openvino",
                    .op = "opset13.ScaledDotProductAttention",
                    .bf16 = true};

std::optional<Refusal> limits(const Problem& p) {
  if (p.heads_kv != p.heads && p.heads_kv != 1) {
    return Refusal{.sentence = "takes one head of keys for each query head, or for all"};
  }
  return std::nullopt;
}

}  // namespace

Backend openvino_sdpa() { return PeerBackend<peer, limits>::backend(); }

}  // namespace attn
