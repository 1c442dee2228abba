// SPDX-License-Identifier: MIT
// Lie: declares half of its multiplications, and looks twice as close to its own roof.
// Caught by: declared-flops.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

Cost cost(const Problem& p) {
  Cost cost = honest::cost(p);
  cost.flops /= 2;
  return cost;
}

void lie(const Problem& p, const Io& io, void* state, void* scratch);

Backend underdeclared() {
  Backend backend = honest::backend(lie);
  backend.cost = cost;
  return backend;
}

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  honest::run(p, io, nullptr, scratch);
}

}  // namespace

Liar liar_half_flops() {
  return {.says = "half of its flops",
          .lies = {{honest::problem(96), Safeguard::declared_flops}},
          .backend = underdeclared()};
}

}  // namespace attn
