// SPDX-License-Identifier: MIT
// Idea: only U h has to wait for the step before, so W x of all tokens is one GEMM in front of the
//   loop.
// Math: Z = X W^T; (i, f, g, o) = Z_t + U h_{t-1} + b; c_t = sigmoid(f) c_{t-1} + sigmoid(i)
//   tanh(g), h_t = sigmoid(o) tanh(c_t), y_t = h_t, h_0 = c_0 = 0; W, U [4 d, d], b [4 d], d =
//   d_model.
// Memory traffic (elements; a product counts each operand once): the projection reads B n d + 4 d^2
//   and writes 4 B n d; a step reads U and, per batch item, h and reads and writes its row of Z (4
//   d^2 + 9 B d), then the cell reads Z, b and c and writes c and y (11 B d); c_0 is cleared once:
//   B d.
// Why this shape: a step is a matrix-vector product (batch 1: sgemv) or a thin GEMM (batch > 1)
//   whose cost is reading U; it adds onto Z in place (beta = 1) and reads h_{t-1} where y already
//   has it. One vectorised cell takes all four gates, so Z is read once, and the bias costs no
//   further pass. c_0 serves as h_0 too, both being zeros; the product with it is carried out like
//   every other.
// Limits: layer scope only, prefill, f32, host; causal by nature, so the mask is ignored; one
//   thread is what it is measured on, for a step is too short to share.
// Source: Hochreiter and Schmidhuber 1997, Gers et al. 2000; the hoisted projection: Appleyard et
//   al. 2016.
#include "impls/attention.hpp"
#include "impls/support/blas.hpp"
#include "impls/support/refusals.hpp"

namespace attn {
namespace {

// One step of one batch item. z and bias [4 d] in the order i, f, g, o; c and y [d].
void cell(std::int64_t d, const float* z, const float* bias, float* c, float* y) {
#pragma omp simd
  for (std::int64_t k = 0; k < d; ++k) {
    const float in = simd_sigmoid(z[k] + bias[k]);
    const float forget = simd_sigmoid(z[d + k] + bias[d + k]);
    const float candidate = simd_tanh(z[2 * d + k] + bias[2 * d + k]);
    const float out = simd_sigmoid(z[3 * d + k] + bias[3 * d + k]);
    c[k] = forget * c[k] + in * candidate;
    y[k] = out * simd_tanh(c[k]);
  }
}

std::optional<Refusal> refuses(const Problem& p) {
  if (auto refusal = refuse_unless_plain_recurrence(p)) return refusal;
  return refuse_unless_one_pool();
}

Cost cost(const Problem& p) {
  const std::int64_t d = p.d_model, tokens = p.batch * p.n_q;
  return {
      .flops = 16 * tokens * d * d,
      .exps = 5 * tokens * d,
      .bytes = 4 * (5 * tokens * d + 4 * d * d + p.n_q * 4 * d * d + 20 * tokens * d + p.batch * d),
      .sequential_steps = p.n_q,
      .scratch_bytes = 4 * (4 * tokens * d + p.batch * d)};
}

// Scratch: z [batch, n, 4 d], c [batch, d].
void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  const std::int64_t d = p.d_model, n = p.n_q;
  float* const z = static_cast<float*>(scratch);
  float* const c = z + p.batch * n * 4 * d;
  const float* const bias = static_cast<const float*>(io.parameters.b);

  io.phase("projections");
  project_tokens(p.batch, n, d, 4 * d, io.x, static_cast<const float*>(io.parameters.w),
                 {z, n * 4 * d, 0, 4 * d});

  io.phase("steps");
  std::fill_n(c, p.batch * d, 0.0F);
  for (std::int64_t t = 0; t < n; ++t) {
    const Matrix<const float> h =
        t == 0 ? Matrix<const float>{c, d}
               : Matrix<const float>{io.y.row<float>(0, 0, t - 1), io.y.batch_stride};
    multiply_transposed(p.batch, 4 * d, d, 1.0F, h, {static_cast<const float*>(io.parameters.u), d},
                        1.0F, {z + t * 4 * d, n * 4 * d});
    for (std::int64_t b = 0; b < p.batch; ++b) {
      cell(d, z + (b * n + t) * 4 * d, bias, c + b * d, io.y.row<float>(b, 0, t));
    }
  }
  io.phase("");
}

}  // namespace

Backend blas_lstm() {
  return {.name = "blas.lstm",
          .family = Family::lstm,
          .refuses = refuses,
          .cost = cost,
          .run = run,
          .resolved_impl = [](const Problem&) { return describe_openblas(); }};
}

}  // namespace attn
