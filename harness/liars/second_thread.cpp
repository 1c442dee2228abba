// SPDX-License-Identifier: MIT
// Lie: two threads share the rows of a point of one thread; the answer is right and in time.
// Caught by: other-threads.
#include <thread>

#include "harness/liars/honest.hpp"
#include "harness/machine.hpp"

namespace attn {
namespace {

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  std::vector<float> scores(static_cast<std::size_t>(p.n_kv));
  const auto half = [&](std::int64_t part, float* buffer) {
    honest::each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
      if (i % 2 == part) honest::row(p, io, b, h, i, buffer);
    });
  };
  std::thread other([&] {
    unpin_this_thread();
    half(1, scores.data());
  });
  half(0, static_cast<float*>(scratch));
  other.join();
}

}  // namespace

Liar liar_second_thread() {
  return {.says = "two threads where one is declared",
          .lies = {{honest::problem(160), Safeguard::other_threads}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
