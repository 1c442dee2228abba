// SPDX-License-Identifier: MIT
// For backends on another project's library: its first call, before anything is measured.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "impls/attention.hpp"

namespace attn {

// At its first call a library reads its code from disk and allocates the buffers that it keeps, which
// would count as memory that the first measured call took: once for each dtype and number of threads
// `run` works on zeros, of a size at which GEMMs fill their buffers.
template <auto cost, auto run>
void warm_up(const Problem& p) {
  static std::set<std::pair<int, DType>> warm;
  if (!warm.emplace(p.threads, p.dtype).second) return;
  constexpr std::int64_t n = 512, d = 64;
  Problem small;
  small.threads = p.threads;
  small.dtype = p.dtype;
  small.n_q = small.n_kv = n;
  std::vector<float> zeros(n * d), out(n * d);
  std::vector<char> scratch(static_cast<std::size_t>(cost(small).scratch_bytes));
  Io io;
  io.q = io.k = io.v = {zeros.data(), n * d, n * d, d};
  io.out = {out.data(), n * d, n * d, d};
  run(small, io, nullptr, scratch.data());
}

}  // namespace attn
