// SPDX-License-Identifier: MIT
// Lie: query heads are dealt to the KV heads by turns instead of in groups.
// Caught by: reference-rows, on a problem with several groups: with one KV head it is no lie.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    honest::row(p, io, b, h, i, static_cast<float*>(scratch), {.kv_head = h % p.heads_kv});
  });
}

}  // namespace

Liar liar_wrong_kv_head() {
  return {.says = "the wrong KV head",
          .lies = {{honest::problem(96, 4, 2), Safeguard::reference_rows}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
