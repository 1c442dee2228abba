// SPDX-License-Identifier: MIT
// Lie: packs x once, and again only when its first token is another.
// Caught by: guard-token: the last token changes right before the clock.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* /*scratch*/) {
  static honest::Packed packed;
  Io old = io;
  old.x = packed.of(p, io.x);
  honest::run_rnn(p, old, 0, 0);
}

}  // namespace

Liar liar_keeps_x() {
  return {.says = "x of an earlier call",
          .lies = {{honest::recurrence_problem(96, 32), Safeguard::guard_token}},
          .backend = honest::rnn(lie)};
}

}  // namespace attn
