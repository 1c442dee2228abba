// SPDX-License-Identifier: MIT
// Lie: clears the padding of K, which belongs to the caller.
// Caught by: input-hash. The keys it clears are seen by no query, so that no answer tells.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

Problem padded() {
  Problem p = honest::problem(96);
  p.key_lengths = {80};
  return p;
}

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  for (std::int64_t j = p.key_lengths[0]; j < p.n_kv; ++j) {
    std::fill_n(const_cast<float*>(io.k.row<float>(0, 0, j)), p.head_dim, 0.0F);
  }
  honest::run(p, io, nullptr, scratch);
}

}  // namespace

Liar liar_changes_inputs() {
  return {.says = "changed inputs",
          .lies = {{padded(), Safeguard::input_hash}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
