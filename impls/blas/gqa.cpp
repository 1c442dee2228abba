// SPDX-License-Identifier: MIT
// Idea: the query heads that share one KV head are one taller matrix, so a block of it reads K and V
//   once for all of them.
// Math: with group = heads / heads_kv, rows (i, r) of Q' [n_q * group, d] are query i of head g *
//   group + r; S = scale * Q' K^T, A = softmax of its rows, in place, Z' = A V.
// Memory traffic (elements per KV head; a GEMM counts each operand once): packing reads and writes
//   group n_q d, unpacking group n_q d_v; each block of rows is that of blas.three_step with
//   `group` times the rows and K and V still read once.
// Why this shape: no one leading dimension fits the group's rows in both usual layouts ([head,
//   token] and [token, head]), and a copy of q and out costs d + d_v elements a row beside 2 n_kv
//   (d + d_v) flops, so they are always packed: one path, and scratch does not depend on strides.
//   Token-major rows keep the rows of one query together, so a causal mask cuts blocks as it does
//   for one head. With one query (decode) the group is what turns a matrix-vector into a
//   matrix-matrix product.
// Limits: f32, host; OpenBLAS's OpenMP flavour only. Scratch is `group` times that of one head.
// Source: Ainslie et al. 2023 (GQA), Shazeer 2019 (MQA); the folding of the group into rows is
//   folklore.
#include "impls/attention.hpp"
#include "impls/support/blas.hpp"
#include "impls/support/refusals.hpp"

namespace attn {
namespace {

// Scratch: packed q [n_q, group, d], packed out [n_q, group, d_v], s [n_q * group, n_kv].
struct Scratch {
  float *q, *out, *s;
};

// One block of queries of KV head g. k [n_kv, d], v [n_kv, d_v].
void three_steps(const Problem& p, const Io& io, std::int64_t b, std::int64_t g, RowBlock block,
                 Scratch scratch) {
  const std::int64_t group = p.group(), d = p.head_dim, d_v = p.head_dim_v;
  const std::int64_t first = block.begin * group, rows = block.rows * group;
  float* const s = scratch.s + first * p.n_kv;
  float* const out = scratch.out + first * d_v;
  const Matrix<const float> k{io.k.row<float>(b, g, 0), io.k.token_stride};
  const Matrix<const float> v{io.v.row<float>(b, g, 0), io.v.token_stride};

  io.phase("scores");
  score(rows, block.keys, d, static_cast<float>(p.effective_scale()), {scratch.q + first * d, d}, k,
        {s, p.n_kv});

  io.phase("softmax");
#pragma omp parallel for num_threads(p.threads) if (p.threads > 1) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t i = block.begin + r / group;
    const std::int64_t h = g * group + r % group;
    const std::int64_t visible = p.visible(b, i);
    float* row = s + r * p.n_kv;
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
    multiply(rows, d_v, block.common, {s, p.n_kv}, v, 0.0F, {out, d_v});
  } else {
    std::fill_n(out, rows * d_v, 0.0F);
  }
  for (std::int64_t t = 0; t < block.rows; ++t) {
    const std::int64_t rest = p.visible(b, block.begin + t) - block.common;
    if (rest == 0) continue;
    multiply(group, d_v, rest, {s + t * group * p.n_kv + block.common, p.n_kv},
             {v.data + block.common * v.stride, v.stride}, 1.0F, {out + t * group * d_v, d_v});
  }
}

void attend(const Problem& p, const Io& io, std::int64_t b, std::int64_t g, Scratch scratch) {
  const std::int64_t group = p.group(), d = p.head_dim, d_v = p.head_dim_v;
  io.phase("packing");
  for (std::int64_t r = 0; r < p.n_q * group; ++r) {
    std::copy_n(io.q.row<float>(b, g * group + r % group, r / group), d, scratch.q + r * d);
  }
  for_each_row_block(p, b, group,
                     [&](RowBlock block) { three_steps(p, io, b, g, block, scratch); });
  io.phase("packing");
  for (std::int64_t r = 0; r < p.n_q * group; ++r) {
    std::copy_n(scratch.out + r * d_v, d_v, io.out.row<float>(b, g * group + r % group, r / group));
  }
}

std::optional<Refusal> refuses(const Problem& p) {
  if (auto refusal = refuse_unless_plain_core(p)) return refusal;
  return refuse_unless_one_pool();
}

Cost cost(const Problem& p) {
  const std::int64_t group = p.group(), d = p.head_dim, d_v = p.head_dim_v;
  Cost cost;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    cost.bytes += 4 * 2 * p.n_q * group * (d + d_v);
    for_each_row_block(p, b, group, [&](RowBlock block) {
      const std::int64_t rows = block.rows * group;
      cost.flops += 2 * rows * (block.keys * d + block.common * d_v);
      cost.bytes +=
          4 * (rows * (d + block.keys + block.common + d_v) + block.keys * d + block.common * d_v);
      for (std::int64_t t = 0; t < block.rows; ++t) {
        const std::int64_t visible = p.visible(b, block.begin + t);
        const std::int64_t rest = visible - block.common;
        cost.flops += 2 * group * rest * d_v;
        cost.bytes +=
            4 * (5 * group * visible +
                 (rest > 0 ? group * rest + rest * d_v + 2 * group * d_v : std::int64_t{0}));
      }
    });
  }
  cost.flops *= p.heads_kv;
  cost.bytes *= p.heads_kv;
  cost.exps = p.heads * p.pairs();
  cost.scratch_bytes = 4 * p.n_q * group * (d + d_v + p.n_kv);
  return cost;
}

void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  const std::int64_t rows = p.n_q * p.group();
  float* const q = static_cast<float*>(scratch);
  float* const out = q + rows * p.head_dim;
  float* const s = out + rows * p.head_dim_v;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t g = 0; g < p.heads_kv; ++g) attend(p, io, b, g, {q, out, s});
  }
  io.phase("");
}

}  // namespace

Backend blas_gqa() {
  return {.name = "blas.gqa",
          .threaded = true,
          .exploits_sharing = true,
          .offers_probabilities = true,
          .offers_log_sum_exp = true,
          .refuses = refuses,
          .cost = cost,
          .run = run,
          .resolved_impl = [](const Problem&) { return describe_openblas(); }};
}

}  // namespace attn
