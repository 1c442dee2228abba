// SPDX-License-Identifier: MIT
// Lie: computes every fourth row, and of the others those that it finds poisoned.
// Caught by: guard-second-row: one more row is checked that nothing in the output points at.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    if (i % 4 != 0 && !honest::poisoned(io.out.row<float>(b, h, i))) return;
    honest::row(p, io, b, h, i, static_cast<float*>(scratch));
  });
}

}  // namespace

Liar liar_poisoned_rows_only() {
  return {.says = "a quarter of the rows, and those that are poisoned",
          .lies = {{honest::problem(128), Safeguard::guard_second_row}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
