// SPDX-License-Identifier: MIT
// Lie: right while the first query is the one it saw first; any other gets no scale.
// Caught by: closing-check: after the rounds every point is called on fresh inputs.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  static honest::Copy seen;
  static int times = 0;
  if (seen.refresh(io.q, p.head_dim)) ++times;
  honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    honest::row(p, io, b, h, i, static_cast<float*>(scratch), {.scale = times > 1 ? 2.0 : 1.0});
  });
}

}  // namespace

Liar liar_first_inputs_only() {
  return {.says = "right on the inputs it has seen only",
          .lies = {{honest::problem(128), Safeguard::closing_check}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
