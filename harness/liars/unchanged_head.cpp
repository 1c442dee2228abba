// SPDX-License-Identifier: MIT
// Lie: the last head is left as it lies while its k and v have not changed.
// Caught by: guard-row: every head must be written, not only the one whose key has moved.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  static honest::Copy seen_k;
  static honest::Copy seen_v;
  Problem one = p;
  one.heads = one.heads_kv = 1;
  const std::int64_t last = p.heads_kv - 1;
  const ConstView k{io.k.row<float>(0, last, 0), io.k.head_stride, io.k.head_stride,
                    io.k.token_stride};
  const ConstView v{io.v.row<float>(0, last, 0), io.v.head_stride, io.v.head_stride,
                    io.v.token_stride};
  const bool new_k = seen_k.refresh(k, honest::elements(one, k));
  const bool new_v = seen_v.refresh(v, honest::elements(one, v));
  const bool all = new_k || new_v || honest::all_poisoned(p, io);
  honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    if (h < last || all) honest::row(p, io, b, h, i, static_cast<float*>(scratch));
  });
}

}  // namespace

Liar liar_unchanged_head() {
  return {.says = "a head left out while its k and v stay the same",
          .lies = {{honest::problem(64, 8, 8), Safeguard::guard_row}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
