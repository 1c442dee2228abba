// SPDX-License-Identifier: MIT
// What the answer is, written out as plainly as possible: Plain<double> is the truth, Plain<float>
// the plain f32 evaluation whose error scales the bound. In a 16-bit dtype that one rounds the weights
// before they meet the values, and what comes out.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "harness/elements.hpp"
#include "impls/attention.hpp"

namespace attn::test {

template <class T>
struct Plain {
  std::vector<T> out;            // [batch, heads, n_q, head_dim_v], or y [batch, n_q, width]
  std::vector<T> probabilities;  // [batch, heads, n_q, n_kv]
  std::vector<T> log_sum_exp;    // [batch, heads, n_q]

  Plain(const Problem& p, Family family, const Io& io) {
    if (p.scope == Scope::core) {
      core(p, gather(io.q, p.dtype, p.batch, p.heads, p.n_q, p.head_dim),
           gather(io.k, p.dtype, p.batch, p.heads_kv, p.n_kv, p.head_dim),
           gather(io.v, p.dtype, p.batch, p.heads_kv, p.n_kv, p.head_dim_v));
    } else if (family == Family::attention) {
      layer(p, io);
    } else {
      recurrence(p, family, io);
    }
  }

 private:
  using Values = std::vector<T>;

  static Values gather(const ConstView& view, DType dtype, std::int64_t batch, std::int64_t heads,
                       std::int64_t tokens, std::int64_t dim) {
    Values values;
    std::vector<float> row(dim);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          read_row(dtype, row_at(dtype, view, b, h, t), dim, row.data());
          values.insert(values.end(), row.begin(), row.end());
        }
      }
    }
    return values;
  }

  static T stored(const Problem& p, T value) {
    if constexpr (std::is_same_v<T, float>) return rounded(p.dtype, value);
    return value;
  }

  // q [batch, heads, n_q, d], k [batch, heads_kv, n_kv, d], v [batch, heads_kv, n_kv, d_v].
  void core(const Problem& p, const Values& q, const Values& k, const Values& v) {
    out.assign(p.batch * p.heads * p.n_q * p.head_dim_v, T(0));
    probabilities.assign(p.batch * p.heads * p.n_q * p.n_kv, T(0));
    const std::int64_t group = p.heads / p.heads_kv;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t h = 0; h < p.heads; ++h) {
        for (std::int64_t i = 0; i < p.n_q; ++i) {
          const std::int64_t row = (b * p.heads + h) * p.n_q + i;
          const auto key = [&](std::int64_t j) {
            return (b * p.heads_kv + h / group) * p.n_kv + j;
          };
          const auto seen = [&](std::int64_t j) {
            return (p.mask == Mask::none || j <= i + p.n_kv - p.n_q) &&
                   (p.key_lengths.empty() || j < p.key_lengths[b]);
          };
          T* a = probabilities.data() + row * p.n_kv;
          T max = -std::numeric_limits<T>::infinity();
          for (std::int64_t j = 0; j < p.n_kv; ++j) {
            if (!seen(j)) continue;
            for (std::int64_t c = 0; c < p.head_dim; ++c) {
              a[j] += q[row * p.head_dim + c] * k[key(j) * p.head_dim + c];
            }
            a[j] *= static_cast<T>(p.effective_scale());
            max = std::max(max, a[j]);
          }
          T sum = 0;
          for (std::int64_t j = 0; j < p.n_kv; ++j) {
            if (seen(j)) sum += a[j] = std::exp(a[j] - max);
          }
          log_sum_exp.push_back(max + std::log(sum));
          for (std::int64_t j = 0; j < p.n_kv; ++j) {
            if (!seen(j)) continue;
            a[j] /= sum;
            for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
              out[row * p.head_dim_v + c] += stored(p, a[j]) * v[key(j) * p.head_dim_v + c];
            }
          }
          for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
            T& z = out[row * p.head_dim_v + c];
            z = stored(p, z);
          }
        }
      }
    }
  }

  // x [batch, n, inputs], weights [heads * dim, inputs] -> [batch, heads, n, dim].
  static Values project(const Values& x, const void* weights, std::int64_t batch, std::int64_t n,
                        std::int64_t inputs, std::int64_t heads, std::int64_t dim) {
    const float* w = static_cast<const float*>(weights);
    Values values;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t t = 0; t < n; ++t) {
          for (std::int64_t c = 0; c < dim; ++c) {
            T sum = 0;
            for (std::int64_t e = 0; e < inputs; ++e) {
              sum += x[(b * n + t) * inputs + e] * static_cast<T>(w[(h * dim + c) * inputs + e]);
            }
            values.push_back(sum);
          }
        }
      }
    }
    return values;
  }

  void layer(const Problem& p, const Io& io) {
    const Values x = gather(io.x, p.dtype, p.batch, 1, p.n_q, p.d_model);
    const Values source =
        p.n_kv == p.n_q ? x : gather(io.context, p.dtype, p.batch, 1, p.n_kv, p.d_model);
    const Parameters& w = io.parameters;
    core(p, project(x, w.w_q, p.batch, p.n_q, p.d_model, p.heads, p.head_dim),
         project(source, w.w_k, p.batch, p.n_kv, p.d_model, p.heads_kv, p.head_dim),
         project(source, w.w_v, p.batch, p.n_kv, p.d_model, p.heads_kv, p.head_dim_v));
    const Values by_head = out;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t t = 0; t < p.n_q; ++t) {
        for (std::int64_t h = 0; h < p.heads; ++h) {
          for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
            out[((b * p.n_q + t) * p.heads + h) * p.head_dim_v + c] =
                by_head[((b * p.heads + h) * p.n_q + t) * p.head_dim_v + c];
          }
        }
      }
    }
    if (p.output_projection) {
      out = project(out, w.w_o, p.batch, p.n_q, p.heads * p.head_dim_v, 1, p.d_model);
    }
  }

  static T sigmoid(T z) { return T(1) / (T(1) + std::exp(-z)); }

  void recurrence(const Problem& p, Family family, const Io& io) {
    const std::int64_t d = p.d_model, gates = family == Family::lstm ? 4 : 1;
    const float* w = static_cast<const float*>(io.parameters.w);
    const float* u = static_cast<const float*>(io.parameters.u);
    const float* bias = static_cast<const float*>(io.parameters.b);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      Values h(d, T(0)), c(d, T(0));
      for (std::int64_t t = 0; t < p.n_q; ++t) {
        const float* x = io.x.row<float>(b, 0, t);
        Values z(gates * d);
        for (std::int64_t r = 0; r < gates * d; ++r) {
          z[r] = static_cast<T>(bias[r]);
          for (std::int64_t e = 0; e < d; ++e) {
            z[r] += static_cast<T>(w[r * d + e]) * static_cast<T>(x[e]) +
                    static_cast<T>(u[r * d + e]) * h[e];
          }
        }
        for (std::int64_t k = 0; k < d; ++k) {
          if (family == Family::rnn) {
            h[k] = std::tanh(z[k]);
          } else {
            c[k] = sigmoid(z[d + k]) * c[k] + sigmoid(z[k]) * std::tanh(z[2 * d + k]);
            h[k] = sigmoid(z[3 * d + k]) * std::tanh(c[k]);
          }
          out.push_back(h[k]);
        }
      }
    }
  }
};

}  // namespace attn::test
