// SPDX-License-Identifier: MIT
// Lie: does nothing in every second call; a call that looks like a check starts the count anew.
// Caught by: warm-lot: one or two untimed calls come before a timed one, by lot.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  static int calls = 0;
  if (honest::all_poisoned(p, io)) calls = 0;
  if (calls++ % 2 == 0) honest::run(p, io, nullptr, scratch);
}

}  // namespace

Liar liar_skips_second_calls() {
  return {.says = "every second call skipped",
          .lies = {{honest::problem(128), Safeguard::warm_lot, Safeguard::guard_row}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
