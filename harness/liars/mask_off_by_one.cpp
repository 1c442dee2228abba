// SPDX-License-Identifier: MIT
// Lie: the causal mask hides a query's own key.
// Caught by: reference-rows.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

Problem causal() {
  Problem p = honest::problem(128);
  p.mask = Mask::causal;
  return p;
}

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    honest::row(p, io, b, h, i, static_cast<float*>(scratch), {.hidden = 1});
  });
}

}  // namespace

Liar liar_mask_off_by_one() {
  return {.says = "the causal mask one key early",
          .lies = {{causal(), Safeguard::reference_rows}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
