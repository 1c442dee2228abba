// SPDX-License-Identifier: MIT
// Idea: ZenDNN's flash attention, through the operator that its PyTorch plug-in registers.
// Math: one pass over tiles of 512 keys for 32 to 256 queries, the products in AOCL's GEMM.
// Memory traffic (elements): q, k, v and out once, which is the least: what the library does is its
//   own.
// Why this shape: the operator's tensors are [batch, head, token, dim], as PyTorch's.
// Limits: f32 and bf16, host; values as wide as keys; no key lengths or empty tensors; its causal
//   corner lies top-left, so a causal mask only with as many keys as queries, and its
//   -infinity is scaled too, so with a scale above 0.
// Source: zentorch's zentorch_sdpa, ZenDNN's sdpa_direct.
#include "impls/support/child.hpp"

namespace attn {
namespace {

constexpr Peer peer{.name = "zendnn.sdpa",
                    .environment = ".venv-zendnn",
                    .package = "zentorch",
                    .op = "zentorch_sdpa",
                    .bf16 = true};

std::optional<Refusal> limits(const Problem& p) {
  if (p.head_dim_v != p.head_dim) return Refusal{.sentence = "needs values as wide as keys"};
  if (p.mask == Mask::causal && p.effective_scale() <= 0) {
    return Refusal{.sentence = "scales its mask too, so a causal one needs a scale above 0"};
  }
  return std::nullopt;
}

}  // namespace

Backend zendnn_sdpa() { return PeerBackend<peer, limits>::backend(); }

}  // namespace attn
