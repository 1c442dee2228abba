// SPDX-License-Identifier: MIT
// Lie: the mean of the visible V, without a look at Q and K.
// Caught by: reference-rows; lazy-answers where softmax is so flat that the bound cannot tell the
// two apart.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

Problem nearly_uniform() {
  Problem p = honest::problem(64);
  p.scale = 1e-7;
  return p;
}

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    honest::row(p, io, b, h, i, static_cast<float*>(scratch), {.scale = 0});
  });
}

}  // namespace

Liar liar_mean_of_v() {
  return {.says = "the mean of V",
          .lies = {{honest::problem(128), Safeguard::reference_rows},
                   {nearly_uniform(), Safeguard::lazy_answers}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
