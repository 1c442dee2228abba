// SPDX-License-Identifier: MIT
// Idea: the textbook's plain loops; the score matrix S of one head is written out in full.
// Math: S = scale * Q K^T, row maximum, A = exp(S - max) / sum, Z = A V.
// Memory traffic (elements, per head): a pair's score reads q and k and is written (2 d + 1),
//   softmax reads it three times and writes it twice, mixing reads it and v and updates the output
//   row (1 + 3 d_v), which was cleared before: pairs * (2 d + 3 d_v + 7) + n_q d_v.
// Why this shape: none; it is what a reader of the lesson would write first, and the yardstick for
//   the rest. Mixing runs over j outside and the dimension inside so that v is read along its rows.
// Limits: one thread, f32.
// Source: Vaswani et al. 2017, section 3.2.1.
#include <cmath>
#include <limits>

#include "impls/attention.hpp"
#include "impls/support/madd.hpp"
#include "impls/support/refusals.hpp"

namespace attn {
namespace {

// One head. q [n_q, d], k [n_kv, d], v [n_kv, d_v], out [n_q, d_v]; s and probabilities [n_q,
// n_kv].
template <class T>
void naive_kernel(const Problem& p, const Io& io, std::int64_t b, std::int64_t h, T* s) {
  using std::exp;
  const std::int64_t g = p.kv_head(h);
  const T scale = static_cast<T>(static_cast<float>(p.effective_scale()));

  io.phase("scores");
  for (std::int64_t i = 0; i < p.n_q; ++i) {
    const T* q = io.q.row<T>(b, h, i);
    for (std::int64_t j = 0; j < p.visible(b, i); ++j) {
      const T* k = io.k.row<T>(b, g, j);
      T dot = static_cast<T>(0);
      for (std::int64_t c = 0; c < p.head_dim; ++c) dot = madd(dot, q[c], k[c]);
      s[i * p.n_kv + j] = dot * scale;
    }
  }

  io.phase("softmax");
  for (std::int64_t i = 0; i < p.n_q; ++i) {
    T* row = s + i * p.n_kv;
    const std::int64_t visible = p.visible(b, i);
    T max = static_cast<T>(-std::numeric_limits<float>::infinity());
    for (std::int64_t j = 0; j < visible; ++j) max = row[j] > max ? row[j] : max;
    T sum = static_cast<T>(0);
    for (std::int64_t j = 0; j < visible; ++j) {
      row[j] = exp(row[j] - max);
      sum = sum + row[j];
    }
    for (std::int64_t j = 0; j < visible; ++j) row[j] = row[j] / sum;
    if (io.log_sum_exp) write_log_sum_exp(io.log_sum_exp, b, h, i, max, sum);
  }

  io.phase("mixing");
  for (std::int64_t i = 0; i < p.n_q; ++i) {
    T* out = io.out.row<T>(b, h, i);
    for (std::int64_t c = 0; c < p.head_dim_v; ++c) out[c] = static_cast<T>(0);
    for (std::int64_t j = 0; j < p.visible(b, i); ++j) {
      const T a = s[i * p.n_kv + j];
      const T* v = io.v.row<T>(b, g, j);
      for (std::int64_t c = 0; c < p.head_dim_v; ++c) out[c] = madd(out[c], a, v[c]);
    }
  }
  if (io.probabilities) {
    for (std::int64_t i = 0; i < p.n_q; ++i) {
      T* row = io.probabilities.row<T>(b, h, i);
      const std::int64_t visible = p.visible(b, i);
      for (std::int64_t j = 0; j < p.n_kv; ++j) row[j] = j < visible ? s[i * p.n_kv + j] : T(0);
    }
  }
  io.phase("");
}

template <class T>
void compute(const Problem& p, const Io& io, T* scratch) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) naive_kernel(p, io, b, h, scratch);
  }
}

std::optional<Refusal> refuses(const Problem& p) { return refuse_unless_plain_core(p); }

Cost cost(const Problem& p) {
  const std::int64_t pairs = p.heads * p.pairs();
  return {.flops = 2 * pairs * (p.head_dim + p.head_dim_v),
          .exps = pairs,
          .bytes = 4 * (pairs * (2 * p.head_dim + 3 * p.head_dim_v + 7) +
                        p.batch * p.heads * p.n_q * p.head_dim_v),
          .scratch_bytes = 4 * p.n_q * p.n_kv};
}

void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  compute(p, io, static_cast<float*>(scratch));
}

}  // namespace

Backend cpu_naive() {
  return {.name = "cpu.naive",
          .layer_default = true,
          .offers_probabilities = true,
          .offers_log_sum_exp = true,
          .refuses = refuses,
          .cost = cost,
          .run = run};
}

}  // namespace attn
