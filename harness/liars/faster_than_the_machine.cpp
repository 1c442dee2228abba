// SPDX-License-Identifier: MIT
// Lie: has read this harness: computes the rows that are compared with the reference, and the mean
// of V elsewhere.
// Caught by: roof-105: what it claims to have multiplied, no processor multiplies in that time.
#include "harness/liars/compared_rows.hpp"
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

// 64 rows of 131072.
Problem wide() {
  Problem p = honest::problem(4096, 32, 32);
  p.head_dim = p.head_dim_v = 16;
  return p;
}

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  std::vector<float> mean(static_cast<std::size_t>(p.head_dim_v));
  for (std::int64_t h = 0; h < p.heads; ++h) {
    std::fill(mean.begin(), mean.end(), 0.0F);
    for (std::int64_t j = 0; j < p.n_kv; ++j) {
      const float* v = io.v.row<float>(0, p.kv_head(h), j);
      for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += v[c] / static_cast<float>(p.n_kv);
    }
    for (std::int64_t i = 0; i < p.n_q; ++i) {
      std::copy(mean.begin(), mean.end(), io.out.row<float>(0, h, i));
    }
  }
  for (const RowId& id : honest::compared_rows(p, io)) {
    honest::row(p, io, 0, id.head, id.token, static_cast<float*>(scratch));
  }
}

}  // namespace

Liar liar_faster_than_the_machine() {
  return {.says = "the mean of V where nobody looks",
          .lies = {{wide(), Safeguard::roof}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
