// SPDX-License-Identifier: MIT
// Idea: OpenVINO's ScaledDotProductAttention on its CPU plug-in, as a model of one operation.
// Math: the plug-in's own kernel; it chooses.
// Memory traffic (elements): q, k, v and out once, which is the least: what the library does is its
//   own.
// Why this shape: the operation's tensors are [batch, head, token, dim].
// Limits: f32 and bf16, host; every query head has its own keys; no key lengths, empty tensors or rows
//   without keys; its causal corner lies top-left, so a causal mask only with as many keys as queries.
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
  if (p.heads_kv != p.heads) return Refusal{.sentence = "every query head needs its own keys"};
  if (p.mask == Mask::causal && p.n_q != p.n_kv) {
    return Refusal{.sentence = "its causal corner lies top-left: as many keys as queries only"};
  }
  return std::nullopt;
}

}  // namespace

Backend openvino_sdpa() { return PeerBackend<peer, limits>::backend(); }

}  // namespace attn
