// SPDX-License-Identifier: MIT
// Lie: writes one element past the end of its output.
// Caught by: protected-pages.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::run(p, io, nullptr, scratch);
  static_cast<float*>(io.out.data)[honest::elements(p, io.out)] = 0;
}

}  // namespace

Liar liar_writes_past() {
  return {.says = "a write past its output",
          .lies = {{honest::problem(128), Safeguard::protected_pages}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
