// SPDX-License-Identifier: MIT
// Lie: writes one element before its output.
// Caught by: fences: what lies before a tensor is a pattern.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::run(p, io, nullptr, scratch);
  static_cast<float*>(io.out.data)[-1] = 0;
}

}  // namespace

Liar liar_writes_before() {
  return {.says = "a write before its output",
          .lies = {{honest::problem(100), Safeguard::fences}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
