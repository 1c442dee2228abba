// SPDX-License-Identifier: MIT
// Lie: zeros, which a fixed tolerance takes for an answer that shrinks like 1/sqrt(n).
// Caught by: reference-rows, because errors are measured against the RMS of the answer.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* /*scratch*/) {
  std::fill_n(static_cast<float*>(io.out.data), honest::elements(p, io.out), 0.0F);
}

}  // namespace

Liar liar_zero_output() {
  return {.says = "an output of zeros",
          .lies = {{honest::problem(128), Safeguard::reference_rows}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
