// SPDX-License-Identifier: MIT
// Lie: packs V once, and again only when its first row is another.
// Caught by: guard-value; at layer scope guard-token. Copying takes so little that time alone
// tells nothing.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  static honest::Packed packed;
  Io old = io;
  old.v = packed.of(p, io.v);
  honest::run(p, old, nullptr, scratch);
}

}  // namespace

Liar liar_keeps_v() {
  return {.says = "V of an earlier call",
          .lies = {{honest::problem(128), Safeguard::guard_value},
                   {honest::layer_problem(64), Safeguard::guard_token}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
