// SPDX-License-Identifier: MIT
// Lie: leaves what the call before wrote, unless there was none.
// Caught by: guard-row: a row of every head is poisoned right before the clock.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  if (honest::all_poisoned(p, io)) honest::run(p, io, nullptr, scratch);
}

}  // namespace

Liar liar_stale_output() {
  return {.says = "the output of the call before",
          .lies = {{honest::problem(128), Safeguard::guard_row}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
