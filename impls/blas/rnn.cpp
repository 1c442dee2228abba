// SPDX-License-Identifier: MIT
// Idea: only U h has to wait for the step before, so W x of all tokens is one GEMM in front of the
//   loop.
// Math: Z = X W^T; h_t = tanh(Z_t + U h_{t-1} + b), h_0 = 0, y_t = h_t; W, U [d, d], d = d_model.
// Memory traffic (elements; a product counts each operand once): the projection reads B n d + d^2
//   and writes B n d; a step reads U and, per batch item, h and reads and writes its row of Z (d^2
//   + 3 B d), then the cell reads Z and b and writes y (3 B d); h_0 is cleared once: B d.
// Why this shape: a step is a matrix-vector product (batch 1: sgemv) or a thin GEMM (batch > 1)
//   whose cost is reading U; it adds onto Z in place (beta = 1) and reads h_{t-1} where y already
//   has it. The bias is added by the vectorised cell, which costs no further pass over Z. The
//   product with h_0 = 0 is carried out like every other, so that a step costs the same at every t.
// Limits: layer scope only, prefill, f32, host; causal by nature, so the mask is ignored; one
//   thread is what it is measured on, for a step is too short to share.
// Source: Elman 1990; the hoisted projection is folklore (Appleyard et al. 2016 describe it).
#include "impls/attention.hpp"
#include "impls/support/blas.hpp"
#include "impls/support/refusals.hpp"

namespace attn {
namespace {

// y [d] = tanh(z [d] + bias [d]).
void cell(std::int64_t d, const float* z, const float* bias, float* y) {
#pragma omp simd
  for (std::int64_t c = 0; c < d; ++c) y[c] = simd_tanh(z[c] + bias[c]);
}

std::optional<Refusal> refuses(const Problem& p) {
  if (auto refusal = refuse_unless_plain_recurrence(p)) return refusal;
  return refuse_unless_one_pool();
}

Cost cost(const Problem& p) {
  const std::int64_t d = p.d_model, tokens = p.batch * p.n_q;
  return {.flops = 4 * tokens * d * d,
          .exps = tokens * d,
          .bytes = 4 * (2 * tokens * d + d * d + p.n_q * d * d + 6 * tokens * d + p.batch * d),
          .sequential_steps = p.n_q,
          .scratch_bytes = 4 * (tokens * d + p.batch * d)};
}

// Scratch: z [batch, n, d], h_0 [batch, d].
void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  const std::int64_t d = p.d_model, n = p.n_q;
  float* const z = static_cast<float*>(scratch);
  float* const h_0 = z + p.batch * n * d;
  const float* const bias = static_cast<const float*>(io.parameters.b);

  io.phase("projections");
  project_tokens(p.batch, n, d, d, io.x, static_cast<const float*>(io.parameters.w),
                 {z, n * d, 0, d});

  io.phase("steps");
  std::fill_n(h_0, p.batch * d, 0.0F);
  for (std::int64_t t = 0; t < n; ++t) {
    const Matrix<const float> h =
        t == 0 ? Matrix<const float>{h_0, d}
               : Matrix<const float>{io.y.row<float>(0, 0, t - 1), io.y.batch_stride};
    multiply_transposed(p.batch, d, d, 1.0F, h, {static_cast<const float*>(io.parameters.u), d},
                        1.0F, {z + t * d, n * d});
    for (std::int64_t b = 0; b < p.batch; ++b) {
      cell(d, z + (b * n + t) * d, bias, io.y.row<float>(b, 0, t));
    }
  }
  io.phase("");
}

}  // namespace

Backend blas_rnn() {
  return {.name = "blas.rnn",
          .family = Family::rnn,
          .refuses = refuses,
          .cost = cost,
          .run = run,
          .resolved_impl = [](const Problem&) { return describe_openblas(); }};
}

}  // namespace attn
