// SPDX-License-Identifier: MIT
// Lie: the last row is off, as where a kernel forgets the rest of a tile.
// Caught by: reference-rows: the last row of every head is always among them.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::run(p, io, nullptr, scratch);
  io.out.row<float>(0, 0, p.n_q - 1)[0] += 0.25F;
}

}  // namespace

Liar liar_wrong_tail_row() {
  return {.says = "one wrong tail row",
          .lies = {{honest::problem(128, 1), Safeguard::reference_rows}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
