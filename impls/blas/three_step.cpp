// SPDX-License-Identifier: MIT
// Idea: the lesson's three steps, each as good as a library makes it: GEMM, softmax, GEMM.
// Math: S = scale * Q K^T, A = softmax of the rows of S, in place, Z = A V; one head after the
//   other.
// Memory traffic (elements; a GEMM counts each operand once): for a block of r rows that see
//   `common` to `keys` keys, scores read r d + keys d and write r keys; softmax reads a row three
//   times and writes it twice; mixing reads r common + common d_v and writes r d_v; a row with t
//   keys past `common` reads t (1 + d_v) more and reads and writes its d_v outputs. Without a
//   causal mask common = keys.
// Why this shape: S of one head is one [n_q, n_kv] matrix, worked off in blocks of 256 rows that
//   stay in a cache from step to step (support/blas.hpp has the numbers). Under a causal mask
//   blocks of 64 rows leave out what no row sees: 64 is the least with which a GEMM still amortises
//   the packing of K, and the triangle that sgemv does is then 64 / n_kv of the mixing. Scores
//   computed past a row's own keys are never read.
// Limits: f32, host; OpenBLAS's OpenMP flavour only. flops under a causal mask exceed the model by
//   the scores between a row's keys and its block's.
// Source: Vaswani et al. 2017, section 3.2.1.
#include <cstring>

#include "impls/attention.hpp"
#include "impls/support/blas.hpp"
#include "impls/support/refusals.hpp"

namespace attn {
namespace {

// One block of one head. q [n_q, d], k [n_kv, d], v [n_kv, d_v], out [n_q, d_v]; s [n_q, n_kv].
void three_steps(const Problem& p, const Io& io, std::int64_t b, std::int64_t h, RowBlock block,
                 float* s) {
  const std::int64_t g = p.kv_head(h);
  float* const block_s = s + block.begin * p.n_kv;
  float* const out = io.out.row<float>(b, h, block.begin);
  const Matrix<const float> k{io.k.row<float>(b, g, 0), io.k.token_stride};
  const Matrix<const float> v{io.v.row<float>(b, g, 0), io.v.token_stride};

  io.phase("scores");
  score(block.rows, block.keys, p.head_dim, static_cast<float>(p.effective_scale()),
        {io.q.row<float>(b, h, block.begin), io.q.token_stride}, k, {block_s, p.n_kv});

  io.phase("softmax");
#pragma omp parallel for num_threads(p.threads) if (p.threads > 1) schedule(static)
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const std::int64_t i = block.begin + r;
    const std::int64_t visible = p.visible(b, i);
    float* row = s + i * p.n_kv;
    const RowSum total = softmax_row(row, visible);
    if (io.log_sum_exp) write_log_sum_exp(io.log_sum_exp, b, h, i, total.max, total.sum);
    if (io.probabilities) {
      float* weights = io.probabilities.row<float>(b, h, i);
      std::copy(row, row + visible, weights);
      std::fill(weights + visible, weights + p.n_kv, 0.0F);
    }
  }

  io.phase("mixing");
  if (block.common > 0) {
    multiply(block.rows, p.head_dim_v, block.common, {block_s, p.n_kv}, v, 0.0F,
             {out, io.out.token_stride});
  } else {
    for (std::int64_t r = 0; r < block.rows; ++r) {
      std::fill_n(out + r * io.out.token_stride, p.head_dim_v, 0.0F);
    }
  }
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const std::int64_t rest = p.visible(b, block.begin + r) - block.common;
    if (rest == 0) continue;
    multiply(1, p.head_dim_v, rest, {block_s + r * p.n_kv + block.common, p.n_kv},
             {v.data + block.common * v.stride, v.stride}, 1.0F,
             {out + r * io.out.token_stride, io.out.token_stride});
  }
}

std::optional<Refusal> refuses(const Problem& p) {
  if (auto refusal = refuse_unless_plain_core(p)) return refusal;
  return refuse_unless_one_pool();
}

Cost cost(const Problem& p) {
  const std::int64_t d = p.head_dim, d_v = p.head_dim_v;
  Cost cost;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for_each_row_block(p, b, 1, [&](RowBlock block) {
      cost.flops += 2 * block.rows * (block.keys * d + block.common * d_v);
      cost.bytes += 4 * (block.rows * (d + block.keys + block.common + d_v) + block.keys * d +
                         block.common * d_v);
      for (std::int64_t r = 0; r < block.rows; ++r) {
        const std::int64_t visible = p.visible(b, block.begin + r);
        const std::int64_t rest = visible - block.common;
        cost.flops += 2 * rest * d_v;
        cost.bytes += 4 * (5 * visible + (rest > 0 ? rest * (1 + d_v) + 2 * d_v : 0));
      }
    });
  }
  cost.flops *= p.heads;
  cost.bytes *= p.heads;
  cost.exps = p.heads * p.pairs();
  cost.scratch_bytes = 4 * p.n_q * p.n_kv;
  return cost;
}

void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      for_each_row_block(p, b, 1, [&](RowBlock block) {
        three_steps(p, io, b, h, block, static_cast<float*>(scratch));
      });
    }
  }
  io.phase("");
}

}  // namespace

Backend blas_three_step() {
  return {.name = "blas.three_step",
          .threaded = true,
          .layer_default = true,
          .offers_probabilities = true,
          .offers_log_sum_exp = true,
          .refuses = refuses,
          .cost = cost,
          .run = run,
          .resolved_impl = [](const Problem&) { return describe_openblas(); }};
}

}  // namespace attn
