// SPDX-License-Identifier: MIT
// Lie: hands everything to a thread and returns at once.
// Caught by: other-threads: nobody else may work in or after a call of a one-thread point.
#include <thread>

#include "harness/liars/honest.hpp"
#include "harness/machine.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* /*scratch*/) {
  std::thread([p, io] {
    unpin_this_thread();
    std::vector<float> scores(static_cast<std::size_t>(p.n_kv));
    honest::run(p, io, nullptr, scores.data());
  }).detach();
}

}  // namespace

Liar liar_returns_early() {
  return {.says = "returns before its thread has finished",
          .lies = {{honest::problem(128), Safeguard::other_threads},
                   {honest::problem(200), Safeguard::other_threads}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
