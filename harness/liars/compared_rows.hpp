// SPDX-License-Identifier: MIT
// The rows that will be compared, for liars who have read the harness and know its seeds.
#pragma once

#include <vector>

#include "harness/inputs.hpp"
#include "harness/liars/honest.hpp"
#include "harness/reference.hpp"

namespace attn::honest {

// Of one batch item without a mask, on the inputs of seed 1.
inline std::vector<RowId> compared_rows(const Problem& p, const Io& io) {
  std::vector<float> row(static_cast<std::size_t>(p.head_dim));
  std::uint64_t seed = 1;
  for (int attempt = 0; attempt < 3; ++attempt) {
    fill_row(fresh_seed(1, attempt), TensorId::q, 0, InputDist::normal, 1.0, row);
    if (std::equal(row.begin(), row.end(), io.q.row<float>(0, 0, 0))) seed = fresh_seed(1, attempt);
  }
  const double flops = 2 * static_cast<double>(p.n_kv * (p.head_dim + p.head_dim_v));
  return reference::sample_rows(1, p.heads, p.n_q, flops, 64, seed).rows;
}

}  // namespace attn::honest
