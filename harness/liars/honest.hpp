// SPDX-License-Identifier: MIT
// The plain kernel that every liar bends: attention row by row, and a tanh recurrence.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "harness/liars/liar.hpp"
#include "impls/support/refusals.hpp"

namespace attn::honest {

// n queries and keys, `heads` heads of 32.
inline Problem problem(std::int64_t n, std::int64_t heads = 2, std::int64_t heads_kv = 1) {
  Problem p;
  p.n_q = p.n_kv = n;
  p.heads = heads;
  p.heads_kv = heads_kv;
  p.head_dim = p.head_dim_v = 32;
  return p;
}

inline Problem layer_problem(std::int64_t n) {
  Problem p = problem(n);
  p.scope = Scope::layer;
  p.d_model = p.heads * p.head_dim;
  p.output_projection = true;
  return p;
}

inline Problem recurrence_problem(std::int64_t n, std::int64_t d) {
  Problem p = problem(n, 1);
  p.scope = Scope::layer;
  p.head_dim = p.head_dim_v = p.d_model = d;
  return p;
}

// What a row may get wrong.
struct Bend {
  double scale = 1;                   // of the scale
  std::int64_t hidden = 0;            // visible keys that it does not see
  std::int64_t kv_head = -1;          // instead of its own
  float (*rounded)(float) = nullptr;  // of every q and k
};

// The row (b, h, i) of io.out. `scores` [n_kv] is overwritten.
inline void row(const Problem& p, const Io& io, std::int64_t b, std::int64_t h, std::int64_t i,
                float* scores, const Bend& bend = {}) {
  const std::int64_t g = bend.kv_head < 0 ? p.kv_head(h) : bend.kv_head;
  const float* q = io.q.row<float>(b, h, i);
  float* out = io.out.row<float>(b, h, i);
  std::fill_n(out, p.head_dim_v, 0.0F);
  const std::int64_t visible = std::max<std::int64_t>(0, p.visible(b, i) - bend.hidden);
  if (visible == 0) return;
  const auto scale = static_cast<float>(bend.scale * p.effective_scale());
  for (std::int64_t j = 0; j < visible; ++j) {
    const float* k = io.k.row<float>(b, g, j);
    float dot = 0;
    if (bend.rounded != nullptr) {
      for (std::int64_t c = 0; c < p.head_dim; ++c) dot += bend.rounded(q[c]) * bend.rounded(k[c]);
    } else {
#pragma omp simd reduction(+ : dot)
      for (std::int64_t c = 0; c < p.head_dim; ++c) dot += q[c] * k[c];
    }
    scores[j] = dot * scale;
  }
  const float max = *std::max_element(scores, scores + visible);
  float sum = 0;
  for (std::int64_t j = 0; j < visible; ++j) {
    scores[j] = std::exp(scores[j] - max);
    sum += scores[j];
  }
  for (std::int64_t j = 0; j < visible; ++j) {
    const float a = scores[j] / sum;
    const float* v = io.v.row<float>(b, g, j);
    for (std::int64_t c = 0; c < p.head_dim_v; ++c) out[c] += a * v[c];
  }
}

// Calls f(b, h, i) for every row of the output.
template <class Function>
void each_row(const Problem& p, const Function& f) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      for (std::int64_t i = 0; i < p.n_q; ++i) f(b, h, i);
    }
  }
}

inline void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  each_row(p, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    row(p, io, b, h, i, static_cast<float*>(scratch));
  });
}

inline std::optional<Refusal> refuses(const Problem& p) { return refuse_unless_plain_core(p); }

inline Cost cost(const Problem& p) {
  const std::int64_t pairs = p.heads * p.pairs();
  return {
      .flops = 2 * pairs * (p.head_dim + p.head_dim_v), .exps = pairs, .scratch_bytes = 4 * p.n_kv};
}

// An attention backend that is honest but for `body`.
inline Backend backend(decltype(Backend::run) body) {
  return {.refuses = refuses, .cost = cost, .run = body};
}

// A tanh recurrence; the state is forgotten before the steps of `restart`, or never.
inline void run_rnn(const Problem& p, const Io& io, std::int64_t first, std::int64_t restart) {
  const auto* w = static_cast<const float*>(io.parameters.w);
  const auto* u = static_cast<const float*>(io.parameters.u);
  const auto* bias = static_cast<const float*>(io.parameters.b);
  const std::int64_t d = p.d_model;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t t = first; t < p.n_q; ++t) {
      const float* x = io.x.row<float>(b, 0, t);
      const float* h =
          t == 0 || (restart > 0 && t % restart == 0) ? nullptr : io.y.row<float>(b, 0, t - 1);
      float* y = io.y.row<float>(b, 0, t);
      for (std::int64_t o = 0; o < d; ++o) {
        float sum = bias[o];
#pragma omp simd reduction(+ : sum)
        for (std::int64_t c = 0; c < d; ++c) sum += w[o * d + c] * x[c];
        if (h != nullptr) {
#pragma omp simd reduction(+ : sum)
          for (std::int64_t c = 0; c < d; ++c) sum += u[o * d + c] * h[c];
        }
        y[o] = std::tanh(sum);
      }
    }
  }
}

inline Backend rnn(decltype(Backend::run) body) {
  return {.family = Family::rnn,
          .refuses = refuse_unless_plain_recurrence,
          .cost =
              [](const Problem& p) {
                return Cost{.flops = 4 * p.batch * p.n_q * p.d_model * p.d_model,
                            .exps = p.batch * p.n_q * p.d_model,
                            .sequential_steps = p.n_q};
              },
          .run = body};
}

// Elements of a tensor without gaps.
template <class AnyView>
std::int64_t elements(const Problem& p, const AnyView& view) {
  return p.batch * view.batch_stride;
}

// The first `width` elements of a tensor, as last seen.
class Copy {
 public:
  // Whether they are others than before.
  bool refresh(const ConstView& view, std::int64_t width) {
    const auto* data = static_cast<const float*>(view.data);
    if (!values_.empty() && std::equal(values_.begin(), values_.end(), data)) return false;
    values_.assign(data, data + width);
    return true;
  }

 private:
  std::vector<float> values_;
};

// A copy of a whole tensor, taken anew when its first eight elements are others.
class Packed {
 public:
  ConstView of(const Problem& p, ConstView view) {
    const auto* data = static_cast<const float*>(view.data);
    const std::int64_t reach = elements(p, view);
    if (seen_.refresh(view, 8) || static_cast<std::int64_t>(values_.size()) != reach) {
      values_.assign(data, data + reach);
    }
    view.data = values_.data();
    return view;
  }

 private:
  Copy seen_;
  std::vector<float> values_;
};

inline bool poisoned(const float* row) { return std::isnan(row[0]); }

// Whether a call writes into an output that is poisoned throughout, as checked calls do.
inline bool all_poisoned(const Problem& p, const Io& io) {
  return poisoned(io.out.row<float>(0, 0, 0)) &&
         poisoned(io.out.row<float>(p.batch - 1, p.heads - 1, p.n_q - 1)) &&
         poisoned(io.out.row<float>(0, 0, p.n_q / 2));
}

}  // namespace attn::honest
