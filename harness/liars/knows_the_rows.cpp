// SPDX-License-Identifier: MIT
// Lie: has read this harness: computes the first rows and those that are compared with the
// reference, and zeros elsewhere.
// Caught by: exact-zeros: most of the output is zero, and no mask explains it.
#include "harness/liars/compared_rows.hpp"
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  std::fill_n(static_cast<float*>(io.out.data), honest::elements(p, io.out), 0.0F);
  for (const RowId& id : honest::compared_rows(p, io)) {
    honest::row(p, io, 0, id.head, id.token, static_cast<float*>(scratch));
  }
  for (std::int64_t i = 0; i < p.n_q / 4; ++i) {
    honest::row(p, io, 0, 0, i, static_cast<float*>(scratch));
  }
}

}  // namespace

Liar liar_knows_the_rows() {
  return {.says = "zeros where nobody looks",
          .lies = {{honest::problem(900, 1), Safeguard::exact_zeros}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
