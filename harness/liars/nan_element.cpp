// SPDX-License-Identifier: MIT
// Lie: one element in the middle is NaN.
// Caught by: finite-scan, which looks at every element.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::run(p, io, nullptr, scratch);
  io.out.row<float>(0, 0, p.n_q / 2)[5] = NAN;
}

}  // namespace

Liar liar_nan_element() {
  return {.says = "a NaN",
          .lies = {{honest::problem(128, 1), Safeguard::finite_scan}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
