// SPDX-License-Identifier: MIT
// Idea: a peer: the unfused path of PyTorch's scaled_dot_product_attention, its three steps.
// Math: S = (sqrt(scale) Q) (sqrt(scale) K)^T + mask, A = softmax of the rows of S, Z = A V; the mask
//   is 0 and -inf.
// Memory traffic (elements, per pair of all n_q n_kv): S written and read, A written and read; the
//   causal mask is written, then read and added to S. Scaled copies of Q and K, and the result twice,
//   because PyTorch returns it in memory of its own.
// Why this shape: what its users get where the flash kernel does not do a problem.
// Limits: causal with n_q = n_kv only (its mask is aligned top-left), no key lengths, at least one
//   query and key. All of it is allocated in the library, S twice.
// Source: pytorch, aten/src/ATen/native/transformers/attention.cpp.
#include "impls/support/torch.hpp"
#include "impls/support/warm_up.hpp"

namespace attn {
namespace {

std::optional<Refusal> refuses(const Problem& p) {
  if (p.n_q == 0 || p.n_kv == 0) {
    return Refusal{.sentence = "is asked for at least one query and one key only"};
  }
  return refuse_unless_torch(p);
}

Cost cost(const Problem& p) {
  const std::int64_t element = bytes_per_element(p.dtype);
  const std::int64_t pairs = p.n_q * p.n_kv;
  const std::int64_t all = p.batch * p.heads * pairs;
  const std::int64_t q = p.batch * p.heads * p.n_q * p.head_dim;
  const std::int64_t k = p.batch * p.heads * p.n_kv * p.head_dim;
  const std::int64_t v = p.batch * p.heads * p.n_kv * p.head_dim_v;
  const std::int64_t out = p.batch * p.heads * p.n_q * p.head_dim_v;
  const bool causal = p.mask == Mask::causal, shared = p.heads != p.heads_kv;
  return {.flops = 2 * all * (p.head_dim + p.head_dim_v),
          .exps = all,
          .bytes = element * (4 * all + 3 * (q + k + out) + v + (shared ? 2 * (k + v) : 0) +
                              (causal ? 2 * pairs + 2 * all : 0))};
}

void run(const Problem& p, const Io& io, void* /*state*/, void* /*scratch*/) {
  run_torch(p, io, TorchPath::math);
}

void prepare(const Problem& p, const Parameters& /*parameters*/, void* /*state*/) {
  warm_up<cost, run>(p);
}

}  // namespace

Backend torch_sdpa_math() {
  return {.name = "torch.sdpa_math",
          .threaded = true,
          .refuses = refuses,
          .cost = cost,
          .prepare = prepare,
          .run = run,
          .resolved_impl = [](const Problem&) { return describe_torch("math"); }};
}

}  // namespace attn
