// SPDX-License-Identifier: MIT
// An implementation of every family straight from its equations, for the tests of the harness: in
// double a second opinion on the reference, in float an honest backend (of a 16-bit dtype, if that is
// the problem's: it rounds the numerators of its weights), and with a fault a liar.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "harness/elements.hpp"
#include "harness/inputs.hpp"
#include "harness/verify.hpp"
#include "impls/attention.hpp"

namespace attn::testing_support {

enum class Fault {
  none,
  zeros,
  mean_of_v,
  wrong_tail_row,
  mask_off_by_one,
  missing_scale,
  wrong_kv_head,
  nan_element,
};

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// out [batch, heads, n_q, head_dim_v] of q, k, v read through `q(b, h, i, c)` and alike.
template <class T, class Q, class K, class V>
std::vector<T> attention(const Problem& p, Fault fault, const Q& q, const K& k, const V& v) {
  std::vector<T> out(at(p.batch * p.heads * p.n_q * p.head_dim_v));
  T* row = out.data();
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      std::int64_t g = h * p.heads_kv / p.heads;
      if (fault == Fault::wrong_kv_head) g = h % p.heads_kv;
      for (std::int64_t i = 0; i < p.n_q; ++i, row += p.head_dim_v) {
        std::vector<T> weights(at(p.n_kv));
        std::int64_t seen = 0;
        T sum = 0;
        T largest = 0;
        for (int pass = 0; pass < 2; ++pass) {
          for (std::int64_t j = 0; j < p.n_kv; ++j) {
            std::int64_t last = i + p.n_kv - p.n_q;
            if (fault == Fault::mask_off_by_one) --last;
            const bool visible = (p.mask == Mask::none || j <= last) &&
                                 (p.key_lengths.empty() || j < p.key_lengths[at(b)]);
            if (!visible) continue;
            T& weight = weights[at(j)];
            if (pass == 1) {
              weight = std::exp(weight - largest);
              sum += weight;
              if constexpr (std::is_same_v<T, float>) weight = rounded(p.dtype, weight);
              continue;
            }
            T dot = 0;
            for (std::int64_t c = 0; c < p.head_dim; ++c) dot += q(b, h, i, c) * k(b, g, j, c);
            weight = dot * static_cast<T>(p.scale.value_or(1 / std::sqrt(double(p.head_dim))));
            if (fault == Fault::missing_scale) weight = dot;
            if (fault == Fault::mean_of_v) weight = 0;
            largest = seen++ == 0 ? weight : std::max(largest, weight);
          }
        }
        for (std::int64_t c = 0; c < p.head_dim_v && seen > 0; ++c) {
          T mixed = 0;
          for (std::int64_t j = 0; j < p.n_kv; ++j) mixed += weights[at(j)] * v(b, g, j, c);
          row[c] = mixed / sum;
        }
      }
    }
  }
  return out;
}

template <class T>
std::vector<T> core(const Problem& p, const Io& io, Fault fault = Fault::none) {
  return with_element(p.dtype, [&]<class Element>(Element) {
    const auto read = [](const ConstView& view) {
      return [&view](std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t c) {
        return static_cast<T>(view.row<Element>(b, h, t)[c]);
      };
    };
    return attention<T>(p, fault, read(io.q), read(io.k), read(io.v));
  });
}

template <class T>
T product(const void* weights, std::int64_t row, std::int64_t width, const float* x) {
  T sum = 0;
  const float* w = static_cast<const float*>(weights) + row * width;
  for (std::int64_t c = 0; c < width; ++c) sum += static_cast<T>(w[c]) * static_cast<T>(x[c]);
  return sum;
}

template <class T>
std::vector<T> layer(const Problem& p, const Io& io, Fault fault = Fault::none) {
  const ConstView& source = io.context ? io.context : io.x;
  const auto projected = [&](const ConstView& from, const void* w, std::int64_t heads,
                             std::int64_t tokens, std::int64_t width) {
    std::vector<T> all;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t o = 0; o < heads * width; ++o) {
          all.push_back(product<T>(w, o, p.d_model, from.row<float>(b, 0, t)));
        }
      }
    }
    return [all, heads, tokens, width](std::int64_t b, std::int64_t h, std::int64_t t,
                                       std::int64_t c) {
      return all[at(((b * tokens + t) * heads + h) * width + c)];
    };
  };
  const Parameters& w = io.parameters;
  const std::vector<T> mixed =
      attention<T>(p, fault, projected(io.x, w.w_q, p.heads, p.n_q, p.head_dim),
                   projected(source, w.w_k, p.heads_kv, p.n_kv, p.head_dim),
                   projected(source, w.w_v, p.heads_kv, p.n_kv, p.head_dim_v));
  const std::int64_t inner = p.heads * p.head_dim_v;
  std::vector<T> y;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = 0; i < p.n_q; ++i) {
      std::vector<T> row;
      for (std::int64_t h = 0; h < p.heads; ++h) {
        for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
          row.push_back(mixed[at(((b * p.heads + h) * p.n_q + i) * p.head_dim_v + c)]);
        }
      }
      for (std::int64_t o = 0; o < (p.output_projection ? p.d_model : inner); ++o) {
        T sum = row[at(p.output_projection ? 0 : o)];
        if (p.output_projection) {
          sum = 0;
          const float* weights = static_cast<const float*>(w.w_o) + o * inner;
          for (std::int64_t c = 0; c < inner; ++c) sum += static_cast<T>(weights[c]) * row[at(c)];
        }
        y.push_back(sum);
      }
    }
  }
  return y;
}

template <class T>
std::vector<T> recurrence(const Problem& p, Family family, const Io& io) {
  const std::int64_t d = p.d_model;
  const auto* u = static_cast<const float*>(io.parameters.u);
  const auto* bias = static_cast<const float*>(io.parameters.b);
  const auto sigmoid = [](T z) { return 1 / (1 + std::exp(-z)); };
  std::vector<T> y;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    std::vector<T> h(at(d));
    std::vector<T> c(at(d));
    for (std::int64_t t = 0; t < p.n_q; ++t) {
      const auto input = [&](std::int64_t gate, std::int64_t k) {
        return product<T>(io.parameters.w, gate * d + k, d, io.x.row<float>(b, 0, t)) +
               static_cast<T>(bias[gate * d + k]);
      };
      const auto from_state = [&](std::int64_t gate, std::int64_t k) {
        T sum = 0;
        for (std::int64_t j = 0; j < d; ++j)
          sum += static_cast<T>(u[(gate * d + k) * d + j]) * h[at(j)];
        return sum;
      };
      const auto both = [&](std::int64_t gate, std::int64_t k) {
        return input(gate, k) + from_state(gate, k);
      };
      std::vector<T> next(at(d));
      for (std::int64_t k = 0; k < d; ++k) {
        if (family == Family::rnn) {
          next[at(k)] = std::tanh(both(0, k));
        } else if (family == Family::gru) {
          const T r = sigmoid(both(0, k));
          const T z = sigmoid(both(1, k));
          const T n = std::tanh(input(2, k) + r * from_state(2, k));
          next[at(k)] = (1 - z) * n + z * h[at(k)];
        } else {
          const T kept = sigmoid(both(1, k)) * c[at(k)];
          c[at(k)] = kept + sigmoid(both(0, k)) * std::tanh(both(2, k));
          next[at(k)] = sigmoid(both(3, k)) * std::tanh(c[at(k)]);
        }
      }
      h = next;
      y.insert(y.end(), h.begin(), h.end());
    }
  }
  return y;
}

template <class T>
std::vector<T> answer(const Problem& p, Family family, const Io& io, Fault fault = Fault::none) {
  std::vector<T> values;
  if (family == Family::rnn || family == Family::gru || family == Family::lstm) {
    values = recurrence<T>(p, family, io);
  } else {
    values = p.scope == Scope::core ? core<T>(p, io, fault) : layer<T>(p, io, fault);
  }
  if (values.empty()) return values;
  if (fault == Fault::zeros) values.assign(values.size(), T{0});
  if (fault == Fault::nan_element) values[values.size() / 2] = std::nanf("");
  if (fault == Fault::wrong_tail_row) values.back() += static_cast<T>(0.25);
  return values;
}

inline void write(const std::vector<float>& values, const Output& output,
                  DType dtype = DType::f32) {
  write_row(dtype, values.data(), static_cast<std::int64_t>(values.size()), output.view().data);
}

struct Trial {
  Problem problem;
  Family family = Family::attention;
};

// Problem number t of an endless list: all families and scopes, small and odd sizes, causal, shared
// KV heads, cross-attention, key lengths (0 among them), several batch items.
inline Trial trial(std::uint64_t t) {
  std::uint64_t drawn = 0;
  const auto one_of = [&](std::initializer_list<std::int64_t> values) {
    return values.begin()[random_bits(t, drawn++) % values.size()];
  };
  Trial result;
  Problem& p = result.problem;
  p.batch = one_of({1, 1, 2, 3});
  p.n_q = one_of({1, 2, 3, 4, 5, 7, 16, 33, 64});
  p.n_kv = p.n_q;
  const std::int64_t kind = one_of({0, 0, 0, 0, 1, 1, 2, 3, 4});
  if (kind >= 2) {
    result.family = kind == 2 ? Family::rnn : kind == 3 ? Family::lstm : Family::gru;
    p.scope = Scope::layer;
    p.d_model = one_of({1, 3, 8, 24});
    return result;
  }
  p.heads_kv = one_of({1, 2, 3});
  p.heads = p.heads_kv * one_of({1, 2, 3});
  p.head_dim = one_of({1, 5, 8, 32});
  p.head_dim_v = one_of({p.head_dim, p.head_dim, 3, 16});
  p.mask = one_of({0, 1}) == 0 ? Mask::none : Mask::causal;
  if (one_of({0, 0, 1}) == 1) p.n_kv = one_of({1, 2, 9, 40});
  if (one_of({0, 0, 1}) == 1) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      p.key_lengths.push_back(static_cast<std::int64_t>(random_bits(t, 100 + at(b))) & 0x3f);
      p.key_lengths.back() %= p.n_kv + 1;
    }
  }
  if (one_of({0, 0, 0, 1}) == 1) p.scale = 0.5;
  if (kind == 1) {
    p.scope = Scope::layer;
    p.d_model = one_of({4, 16, 48});
    p.output_projection = one_of({0, 1}) == 1;
  }
  return result;
}

// The trials of core attention, in bf16 and f16 by turns.
inline Trial trial_in_16_bits(std::uint64_t t) {
  std::uint64_t number = 3 * t;
  Trial result = trial(number);
  while (result.problem.scope != Scope::core) result = trial(++number + 1000000);
  result.problem.dtype = t % 2 == 0 ? DType::bf16 : DType::f16;
  return result;
}

inline std::string describe(const Trial& t) {
  const Problem& p = t.problem;
  std::string text = "dtype " + std::to_string(int(p.dtype)) + " family " +
                     std::to_string(int(t.family)) + (p.scope == Scope::core ? " core" : " layer");
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::int64_t>>{
           {"batch", p.batch},
           {"heads", p.heads},
           {"heads_kv", p.heads_kv},
           {"n_q", p.n_q},
           {"n_kv", p.n_kv},
           {"head_dim", p.head_dim},
           {"head_dim_v", p.head_dim_v},
           {"d_model", p.d_model},
           {"W_O", p.output_projection},
           {"causal", p.mask == Mask::causal}}) {
    text += std::string(" ") + name + " " + std::to_string(value);
  }
  for (const std::int64_t length : p.key_lengths) text += " length " + std::to_string(length);
  return text;
}

}  // namespace attn::testing_support
