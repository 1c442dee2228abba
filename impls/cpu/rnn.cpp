// SPDX-License-Identifier: MIT
// Idea: the textbook's recurrent layer, one token after the other, one hidden unit after the other.
// Math: h_t = tanh(W x_t + U h_{t-1} + b), h_0 = 0, y_t = h_t; W, U [d, d], b [d], d = d_model.
// Memory traffic (elements, per batch item): a unit of a step reads two rows of weights, x, h and
//   its bias and writes one element of y: n d (4 d + 2); h_0 is cleared once: d.
// Why this shape: none; it is what a reader of the lesson would write first. The state before step
//   t is row t - 1 of y itself, so only h_0 needs a place. The product with h_0 = 0 is carried out
//   like every other, so that a step costs the same at every t.
// Limits: layer scope only, prefill, f32, one thread; causal by nature, so the mask is ignored.
// Source: Elman 1990.
#include <cmath>

#include "impls/attention.hpp"
#include "impls/support/madd.hpp"
#include "impls/support/refusals.hpp"

namespace attn {
namespace {

// One batch item. x [n, d], y [n, d], w and u [d, d], bias [d]; h_0 [d] is scratch.
template <class T>
void rnn_kernel(const Problem& p, const Io& io, std::int64_t b, T* h_0) {
  using std::tanh;
  const std::int64_t d = p.d_model;
  const T* w = static_cast<const T*>(io.parameters.w);
  const T* u = static_cast<const T*>(io.parameters.u);
  const T* bias = static_cast<const T*>(io.parameters.b);
  for (std::int64_t c = 0; c < d; ++c) h_0[c] = static_cast<T>(0);

  for (std::int64_t t = 0; t < p.n_q; ++t) {
    const T* x = io.x.row<T>(b, 0, t);
    const T* h = t == 0 ? h_0 : io.y.row<T>(b, 0, t - 1);
    T* y = io.y.row<T>(b, 0, t);
    for (std::int64_t unit = 0; unit < d; ++unit) {
      T z = bias[unit];
      for (std::int64_t c = 0; c < d; ++c) z = madd(z, w[unit * d + c], x[c]);
      for (std::int64_t c = 0; c < d; ++c) z = madd(z, u[unit * d + c], h[c]);
      y[unit] = tanh(z);
    }
  }
}

template <class T>
void compute(const Problem& p, const Io& io, T* scratch) {
  io.phase("steps");
  for (std::int64_t b = 0; b < p.batch; ++b) rnn_kernel(p, io, b, scratch);
  io.phase("");
}

std::optional<Refusal> refuses(const Problem& p) { return refuse_unless_plain_recurrence(p); }

Cost cost(const Problem& p) {
  const std::int64_t d = p.d_model;
  const std::int64_t units = p.batch * p.n_q * d;
  return {.flops = 4 * units * d,
          .exps = units,
          .bytes = 4 * (units * (4 * d + 2) + p.batch * d),
          .sequential_steps = p.n_q,
          .scratch_bytes = 4 * d};
}

void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  compute(p, io, static_cast<float*>(scratch));
}

}  // namespace

Backend cpu_rnn() {
  return {.name = "cpu.rnn", .family = Family::rnn, .refuses = refuses, .cost = cost, .run = run};
}

}  // namespace attn
