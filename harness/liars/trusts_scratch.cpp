// SPDX-License-Identifier: MIT
// Lie: adds to scratch that it believes to be zeros.
// Caught by: guard-row: in the verifying call scratch is fresh pages of zeros, in a timed one it
// is not.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

Cost cost(const Problem& p) {
  Cost cost = honest::cost(p);
  cost.scratch_bytes += 4 * p.batch * p.heads * p.n_q * p.head_dim_v;
  return cost;
}

void lie(const Problem& p, const Io& io, void* state, void* scratch);

Backend adding() {
  Backend backend = honest::backend(lie);
  backend.cost = cost;
  return backend;
}

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  auto* sums = static_cast<float*>(scratch);
  float* scores = sums + honest::elements(p, io.out);
  honest::run(p, io, nullptr, scores);
  auto* out = static_cast<float*>(io.out.data);
  for (std::int64_t e = 0; e < honest::elements(p, io.out); ++e) out[e] = sums[e] += out[e];
}

}  // namespace

Liar liar_trusts_scratch() {
  return {.says = "scratch taken for zeros",
          .lies = {{honest::problem(96), Safeguard::guard_row}},
          .backend = adding()};
}

}  // namespace attn
