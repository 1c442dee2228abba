// SPDX-License-Identifier: MIT
// Lie: reads a whole vector at the end of V, one element too far.
// Caught by: protected-pages: what it reads changes no answer, until it is in another's page.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  const auto* v = static_cast<const volatile float*>(io.v.data);
  static_cast<void>(v[honest::elements(p, io.v)]);
  honest::run(p, io, nullptr, scratch);
}

}  // namespace

Liar liar_reads_past() {
  return {.says = "a read past its input",
          .lies = {{honest::problem(128), Safeguard::protected_pages}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
