// SPDX-License-Identifier: MIT
// Lie: softmax of the logits without the factor 1/sqrt(d).
// Caught by: reference-rows.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    honest::row(p, io, b, h, i, static_cast<float*>(scratch),
                {.scale = std::sqrt(static_cast<double>(p.head_dim))});
  });
}

}  // namespace

Liar liar_missing_scale() {
  return {.says = "no scale",
          .lies = {{honest::problem(128), Safeguard::reference_rows}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
