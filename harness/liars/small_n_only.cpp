// SPDX-License-Identifier: MIT
// Lie: exact up to n = 64; beyond, only the first 64 keys count.
// Caught by: reference-rows: every point is checked, not the smallest of a curve.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    honest::row(p, io, b, h, i, static_cast<float*>(scratch),
                {.hidden = std::max<std::int64_t>(0, p.n_kv - 64)});
  });
}

}  // namespace

Liar liar_small_n_only() {
  return {.says = "right at small n only",
          .lies = {{honest::problem(160), Safeguard::reference_rows}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
