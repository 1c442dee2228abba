// SPDX-License-Identifier: MIT
// Lie: packs K once, and again only when its first row is another.
// Caught by: guard-key; at layer scope guard-token. Copying takes so little that time alone tells
// nothing.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  static honest::Packed packed;
  Io old = io;
  old.k = packed.of(p, io.k);
  honest::run(p, old, nullptr, scratch);
}

}  // namespace

Liar liar_keeps_k() {
  return {.says = "K of an earlier call",
          .lies = {{honest::problem(128), Safeguard::guard_key},
                   {honest::layer_problem(64), Safeguard::guard_token}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
