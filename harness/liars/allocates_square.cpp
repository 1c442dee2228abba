// SPDX-License-Identifier: MIT
// Lie: claims scratch of n, and allocates all n^2 scores.
// Caught by: memory-peak.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

// Large enough for n^2 to show beside what the kernel's counting may hide.
Problem narrow() {
  Problem p = honest::problem(1280, 1);
  p.head_dim = p.head_dim_v = 4;
  return p;
}

void lie(const Problem& p, const Io& io, void* /*state*/, void* /*scratch*/) {
  std::vector<float> scores(static_cast<std::size_t>(p.n_q * p.n_kv), 1.0F);
  honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    honest::row(p, io, b, h, i, scores.data() + i * p.n_kv);
  });
}

}  // namespace

Liar liar_allocates_square() {
  return {.says = "n^2 of memory, n declared",
          .lies = {{narrow(), Safeguard::memory_peak}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
