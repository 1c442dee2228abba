// SPDX-License-Identifier: MIT
// Idea: one pass over the keys with a running maximum and a running sum; no score matrix at all.
// Math: for key j with score s: if s > m, then r = exp(m - s), l = l r + 1, acc = acc r + v_j, m =
//   s; otherwise w = exp(s - m), l = l + w, acc = acc + w v_j; at the end z = acc / l. A key that
//   raises the maximum has weight exp(0) = 1 and needs its one exp for the rescaling, any other key
//   needs its one exp for the weight: exps = pairs exactly, whatever the data. In both cases acc
//   takes one multiply-add per dimension, so the flops are those of the score matrix too. m starts
//   as the least float: from -inf a first key of score -inf would take exp(-inf + inf), which is NaN.
//   A row with a score of +inf or of -inf alone has no softmax; in this form it would get a weight of
//   1 or a sum of 0, so (m - m) / l, which is 0 for all other rows and NaN there, is added to l.
// Memory traffic (elements, per head): a pair reads q, k and v and reads and writes the
//   accumulator: pairs * (2 d + 3 d_v); each row is cleared and divided once: n_q * 3 d_v.
// Why this shape: the accumulator is the output row itself, so scratch is zero bytes; m and l are
//   two scalars. This is the algorithm that fused kernels block for registers and vectors.
// Limits: one thread, f32, no probabilities (they would need the final maximum).
// Source: Milakov and Gimelshein 2018, algorithm 3; Rabe and Staats 2021.
#include <cmath>
#include <limits>

#include "impls/attention.hpp"
#include "impls/support/madd.hpp"
#include "impls/support/refusals.hpp"

namespace attn {
namespace {

// One query row. q [d], k [n_kv, d], v [n_kv, d_v], out [d_v].
template <class T>
void online_row(const Problem& p, const Io& io, std::int64_t b, std::int64_t h, std::int64_t i) {
  using std::exp;
  const std::int64_t g = p.kv_head(h);
  const std::int64_t visible = p.visible(b, i);
  const T scale = static_cast<T>(static_cast<float>(p.effective_scale()));
  const T* q = io.q.row<T>(b, h, i);
  T* out = io.out.row<T>(b, h, i);
  T max = static_cast<T>(std::numeric_limits<float>::lowest());
  T sum = static_cast<T>(0);
  for (std::int64_t c = 0; c < p.head_dim_v; ++c) out[c] = static_cast<T>(0);

  for (std::int64_t j = 0; j < visible; ++j) {
    const T* k = io.k.row<T>(b, g, j);
    const T* v = io.v.row<T>(b, g, j);
    T dot = static_cast<T>(0);
    for (std::int64_t c = 0; c < p.head_dim; ++c) dot = madd(dot, q[c], k[c]);
    const T score = dot * scale;
    if (score > max) {
      const T rescale = exp(max - score);
      sum = sum * rescale + static_cast<T>(1);
      for (std::int64_t c = 0; c < p.head_dim_v; ++c) out[c] = madd(v[c], out[c], rescale);
      max = score;
    } else {
      const T weight = exp(score - max);
      sum = sum + weight;
      for (std::int64_t c = 0; c < p.head_dim_v; ++c) out[c] = madd(out[c], weight, v[c]);
    }
  }
  if (visible > 0) sum = sum + (max - max) / sum;
  const T divisor = visible > 0 ? sum : static_cast<T>(1);
  for (std::int64_t c = 0; c < p.head_dim_v; ++c) out[c] = out[c] / divisor;
  if (io.log_sum_exp) write_log_sum_exp(io.log_sum_exp, b, h, i, max, sum);
}

template <class T>
void compute(const Problem& p, const Io& io, T* /*scratch*/) {
  io.phase("fused");
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      for (std::int64_t i = 0; i < p.n_q; ++i) online_row<T>(p, io, b, h, i);
    }
  }
  io.phase("");
}

std::optional<Refusal> refuses(const Problem& p) { return refuse_unless_plain_core(p); }

Cost cost(const Problem& p) {
  const std::int64_t pairs = p.heads * p.pairs();
  const std::int64_t rows = p.batch * p.heads * p.n_q;
  return {.flops = 2 * pairs * (p.head_dim + p.head_dim_v),
          .exps = pairs,
          .bytes = 4 * (pairs * (2 * p.head_dim + 3 * p.head_dim_v) + rows * 3 * p.head_dim_v)};
}

void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  compute(p, io, static_cast<float*>(scratch));
}

}  // namespace

Backend cpu_online() {
  return {.name = "cpu.online",
          .offers_log_sum_exp = true,
          .refuses = refuses,
          .cost = cost,
          .run = run};
}

}  // namespace attn
