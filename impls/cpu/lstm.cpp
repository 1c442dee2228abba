// SPDX-License-Identifier: MIT
// Idea: the textbook's LSTM, one token after the other, one hidden unit after the other.
// Math: (i, f, g, o) = W x_t + U h_{t-1} + b, W and U [4 d, d], b [4 d], gates in this order; c_t =
//   sigmoid(f) c_{t-1} + sigmoid(i) tanh(g), h_t = sigmoid(o) tanh(c_t), y_t = h_t, h_0 = c_0 = 0,
//   d = d_model; all products by unit and gate.
// Memory traffic (elements, per batch item): a unit of a step reads eight rows of weights with x
//   and h beside each, four biases, and reads and writes its cell and writes y: n d (16 d + 7); h_0
//   and c_0 are cleared once: 2 d.
// Why this shape: none; it is what a reader of the lesson would write first. The state before step
//   t is row t - 1 of y itself; the four gates of a unit are computed together, so no gate is
//   stored.
// Limits: layer scope only, prefill, f32, one thread; causal by nature, so the mask is ignored.
// Source: Hochreiter and Schmidhuber 1997; the forget gate is Gers et al. 2000.
#include <cmath>

#include "impls/attention.hpp"
#include "impls/support/madd.hpp"
#include "impls/support/refusals.hpp"

namespace attn {
namespace {

template <class T>
T sigmoid(T z) {
  using std::exp;
  return static_cast<T>(1) / (static_cast<T>(1) + exp(-z));
}

// One batch item. x [n, d], y [n, d], w and u [4 d, d], bias [4 d]; h_0 and cell [d] are scratch.
template <class T>
void lstm_kernel(const Problem& p, const Io& io, std::int64_t b, T* h_0, T* cell) {
  using std::tanh;
  const std::int64_t d = p.d_model;
  const T* w = static_cast<const T*>(io.parameters.w);
  const T* u = static_cast<const T*>(io.parameters.u);
  const T* bias = static_cast<const T*>(io.parameters.b);
  for (std::int64_t c = 0; c < d; ++c) h_0[c] = cell[c] = static_cast<T>(0);

  for (std::int64_t t = 0; t < p.n_q; ++t) {
    const T* x = io.x.row<T>(b, 0, t);
    const T* h = t == 0 ? h_0 : io.y.row<T>(b, 0, t - 1);
    T* y = io.y.row<T>(b, 0, t);
    for (std::int64_t unit = 0; unit < d; ++unit) {
      T z[4];
      for (std::int64_t gate = 0; gate < 4; ++gate) {
        const std::int64_t row = gate * d + unit;
        z[gate] = bias[row];
        for (std::int64_t c = 0; c < d; ++c) z[gate] = madd(z[gate], w[row * d + c], x[c]);
        for (std::int64_t c = 0; c < d; ++c) z[gate] = madd(z[gate], u[row * d + c], h[c]);
      }
      cell[unit] = sigmoid(z[1]) * cell[unit] + sigmoid(z[0]) * tanh(z[2]);
      y[unit] = sigmoid(z[3]) * tanh(cell[unit]);
    }
  }
}

template <class T>
void compute(const Problem& p, const Io& io, T* scratch) {
  io.phase("steps");
  for (std::int64_t b = 0; b < p.batch; ++b) lstm_kernel(p, io, b, scratch, scratch + p.d_model);
  io.phase("");
}

std::optional<Refusal> refuses(const Problem& p) { return refuse_unless_plain_recurrence(p); }

Cost cost(const Problem& p) {
  const std::int64_t d = p.d_model;
  const std::int64_t units = p.batch * p.n_q * d;
  return {.flops = 16 * units * d,
          .exps = 5 * units,
          .bytes = 4 * (units * (16 * d + 7) + p.batch * 2 * d),
          .sequential_steps = p.n_q,
          .scratch_bytes = 4 * 2 * d};
}

void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  compute(p, io, static_cast<float*>(scratch));
}

}  // namespace

Backend cpu_lstm() {
  return {.name = "cpu.lstm", .family = Family::lstm, .refuses = refuses, .cost = cost, .run = run};
}

}  // namespace attn
