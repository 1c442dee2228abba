// SPDX-License-Identifier: MIT
// Idea: a peer: what scaled_dot_product_attention of PyTorch runs on a CPU, its flash kernel.
// Math: FlashAttention-2: Z = softmax(scale * Q K^T) V with a running maximum and sum over blocks of
//   keys; the products are the wheel's own GEMM, MKL for f32.
// Memory traffic (elements): the least, each tensor once: h n_q (d + d_v) + h_kv n_kv (d + d_v), and
//   the result twice more, for PyTorch returns it in memory of its own and it is copied to `out`.
//   What its blocks move is not counted; nor, under a causal mask, are the products past the diagonal.
// Why this shape: called below its dispatcher of kernels, so that it runs or throws, never the
//   unfused path instead.
// Limits: causal with n_q = n_kv (its mask is aligned top-left) and scale > 0 only, no key lengths,
//   head_dim_v = head_dim, at least one query and key. Result and blocks are allocated in the library.
// Source: pytorch, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp; Dao 2023, arXiv:2307.08691.
#include "impls/support/torch.hpp"
#include "impls/support/warm_up.hpp"

namespace attn {
namespace {

std::optional<Refusal> refuses(const Problem& p) {
  if (p.head_dim_v != p.head_dim) {
    return Refusal{.sentence = "PyTorch's flash kernel needs head_dim_v = head_dim"};
  }
  if (p.n_q == 0 || p.n_kv == 0) {
    return Refusal{.sentence = "PyTorch's flash kernel needs at least one query and one key"};
  }
  if (p.mask == Mask::causal && !(p.effective_scale() > 0)) {
    return Refusal{.sentence =
                       "PyTorch's flash kernel masks with -inf before it scales: a causal "
                       "problem needs a scale above 0"};
  }
  return refuse_unless_torch(p);
}

Cost cost(const Problem& p) {
  const std::int64_t element = bytes_per_element(p.dtype);
  const std::int64_t widths = p.head_dim + p.head_dim_v;
  const std::int64_t queries = p.batch * p.heads * p.n_q;
  const std::int64_t keys = p.batch * p.heads_kv * p.n_kv;
  return {.flops = 2 * p.heads * p.pairs() * widths,
          .exps = p.heads * p.pairs(),
          .exps_at_least = true,
          .bytes = element * (queries * (widths + 2 * p.head_dim_v) + keys * widths)};
}

void run(const Problem& p, const Io& io, void* /*state*/, void* /*scratch*/) {
  run_torch(p, io, TorchPath::flash);
}

void prepare(const Problem& p, const Parameters& /*parameters*/, void* /*state*/) {
  warm_up<cost, run>(p);
}

}  // namespace

Backend torch_sdpa() {
  return {.name = "torch.sdpa",
          .threaded = true,
          .offers_log_sum_exp = true,
          .refuses = refuses,
          .cost = cost,
          .prepare = prepare,
          .run = run,
          .resolved_impl = [](const Problem&) { return describe_torch("flash"); }};
}

}  // namespace attn
