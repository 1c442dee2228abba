// SPDX-License-Identifier: MIT
// Lie: every 32 steps the recurrence starts from zeros, so that chunks can run side by side.
// Caught by: reference-rows: the first steps, and windows that begin where chunks do.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* /*scratch*/) {
  honest::run_rnn(p, io, 0, 32);
}

}  // namespace

Liar liar_state_not_carried() {
  return {.says = "a state that is not carried",
          .lies = {{honest::recurrence_problem(96, 32), Safeguard::reference_rows}},
          .backend = honest::rnn(lie)};
}

}  // namespace attn
