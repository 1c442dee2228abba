// SPDX-License-Identifier: MIT
// Lie: hands everything to a thread and returns when the last row is under way.
// Caught by: other-threads: the work of that thread shows, however soon it ends.
#include <atomic>
#include <memory>
#include <thread>

#include "harness/liars/honest.hpp"
#include "harness/machine.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* /*scratch*/) {
  auto last_row_begun = std::make_shared<std::atomic<bool>>(false);
  std::thread([p, io, last_row_begun] {
    unpin_this_thread();
    std::vector<float> scores(static_cast<std::size_t>(p.n_kv));
    honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
      if (h == p.heads - 1 && i == p.n_q - 1) *last_row_begun = true;
      honest::row(p, io, b, h, i, scores.data());
    });
  }).detach();
  while (!*last_row_begun) std::this_thread::yield();
}

}  // namespace

Liar liar_returns_a_moment_early() {
  return {.says = "returns microseconds before its thread has finished",
          .lies = {{honest::problem(128), Safeguard::other_threads}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
