// SPDX-License-Identifier: MIT
// Lie: copies its first answer while the first query stays the same.
// Caught by: guard-value: a key that weighs much gets another value right before the clock.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  static std::vector<float> answer;
  static honest::Copy seen;
  auto* out = static_cast<float*>(io.out.data);
  if (seen.refresh(io.q, p.head_dim)) {
    honest::run(p, io, nullptr, scratch);
    answer.assign(out, out + honest::elements(p, io.out));
  } else {
    std::copy(answer.begin(), answer.end(), out);
  }
}

}  // namespace

Liar liar_caches_last_answer() {
  return {.says = "the answer of the first call, copied",
          .lies = {{honest::problem(128), Safeguard::guard_value}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
