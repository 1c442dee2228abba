// SPDX-License-Identifier: MIT
// Lie: computes the last step alone while the first token is the same.
// Caught by: fresh-time: the last step is all that a changed last token asks for, so the answer is
// right.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* /*scratch*/) {
  static honest::Copy seen;
  const bool fresh = seen.refresh(io.x, p.d_model) || honest::poisoned(io.y.row<float>(0, 0, 0));
  honest::run_rnn(p, io, fresh ? 0 : p.n_q - 1, 0);
}

}  // namespace

Liar liar_last_step_only() {
  return {.says = "the last step alone",
          .lies = {{honest::recurrence_problem(16, 48), Safeguard::fresh_time}},
          .backend = honest::rnn(lie)};
}

}  // namespace attn
