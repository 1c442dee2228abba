// SPDX-License-Identifier: MIT
// The formulas of the reference, each a template on the scalar: with double they give the truth,
// with float they are the plain implementation whose error sets the bound, so float sums run in
// order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "impls/attention.hpp"

namespace attn::reference {

// logits[j] = scale * q . keys[j]; q [head_dim], keys [visible, head_dim], rows `stride` apart.
template <class T, class Input>
void scaled_dots(const T* q, const Input* keys, std::int64_t stride, std::int64_t visible,
                 std::int64_t head_dim, T scale, T* logits) {
  std::int64_t j = 0;
  if constexpr (std::is_same_v<T, float>) {
    // Eight keys at a time: one sum after another would wait four cycles for every addition.
    for (; j + 8 <= visible; j += 8) {
      float sums[8] = {};
      const Input* key = keys + j * stride;
      for (std::int64_t c = 0; c < head_dim; ++c) {
        for (int u = 0; u < 8; ++u) sums[u] += q[c] * static_cast<T>(key[u * stride + c]);
      }
      for (int u = 0; u < 8; ++u) logits[j + u] = sums[u] * scale;
    }
  }
  for (; j < visible; ++j) {
    const Input* key = keys + j * stride;
    T sum = 0;
    if constexpr (std::is_same_v<T, double>) {
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < head_dim; ++c) sum += q[c] * static_cast<T>(key[c]);
    } else {
      for (std::int64_t c = 0; c < head_dim; ++c) sum += q[c] * static_cast<T>(key[c]);
    }
    logits[j] = sum * scale;
  }
}

// One query against its visible keys: q [head_dim], keys [visible, head_dim], values [visible,
// head_dim_v] with rows `*_stride` apart, out [head_dim_v]. `weights` [visible] receives the
// softmax. Returns the log-sum-exp. A query that sees no key gives zeros and -infinity. In float the
// weights meet the values rounded to Input, as in every kernel of a 16-bit dtype.
template <class T, class Input>
T attention_row(const Problem& problem, const T* q, const Input* keys, std::int64_t key_stride,
                const Input* values, std::int64_t value_stride, std::int64_t visible, T* weights,
                T* out) {
  const std::int64_t width = problem.head_dim_v;
  std::fill_n(out, width, T{0});
  if (visible == 0) return -std::numeric_limits<T>::infinity();

  scaled_dots(q, keys, key_stride, visible, problem.head_dim,
              static_cast<T>(problem.effective_scale()), weights);
  const T max = *std::max_element(weights, weights + visible);
  T sum = 0;
  for (std::int64_t j = 0; j < visible; ++j) {
    weights[j] = std::exp(weights[j] - max);
    sum += weights[j];
  }
  for (std::int64_t j = 0; j < visible; ++j) weights[j] /= sum;
  if constexpr (std::is_same_v<T, float>) {
    std::transform(weights, weights + visible, weights, [](float a) { return Input(a); });
  }

  std::int64_t j = 0;
  for (; j + 4 <= visible; j += 4) {
    const Input* v = values + j * value_stride;
    for (std::int64_t c = 0; c < width; ++c) {
      T z = out[c];
      for (int u = 0; u < 4; ++u) z += weights[j + u] * static_cast<T>(v[u * value_stride + c]);
      out[c] = z;
    }
  }
  for (; j < visible; ++j) {
    for (std::int64_t c = 0; c < width; ++c) {
      out[c] += weights[j] * static_cast<T>(values[j * value_stride + c]);
    }
  }
  return max + std::log(sum);
}

// Weights [outputs, inputs] turned around and padded, so that products run along the outputs.
template <class T>
class Matrix {
 public:
  Matrix(const float* weights, std::int64_t outputs, std::int64_t inputs)
      : outputs_(outputs),
        inputs_(inputs),
        padded_((outputs + tile_width - 1) / tile_width * tile_width),
        data_(static_cast<std::size_t>(padded_ * inputs)) {
    for (std::int64_t o = 0; o < outputs; ++o) {
      for (std::int64_t i = 0; i < inputs; ++i) {
        data_[static_cast<std::size_t>(i * padded_ + o)] = static_cast<T>(weights[o * inputs + i]);
      }
    }
  }

  [[nodiscard]] std::int64_t outputs() const { return outputs_; }

  // y [tokens, outputs] = x [tokens, inputs] W^T; rows of x lie `stride` apart. Sums run in order.
  template <class X>
  void multiply(const X* x, std::int64_t stride, std::int64_t tokens, T* y) const {
    std::int64_t t = 0;
    for (; t + 4 <= tokens; t += 4) block<4>(x + t * stride, stride, y + t * outputs_);
    for (; t < tokens; ++t) block<1>(x + t * stride, stride, y + t * outputs_);
  }

 private:
  // Four tokens by 256 bytes of outputs are 16 accumulators of the widest registers.
  static constexpr std::int64_t tile_width = 256 / sizeof(T);

  template <int tokens, class X>
  void block(const X* x, std::int64_t stride, T* y) const {
    for (std::int64_t o = 0; o < outputs_; o += tile_width) {
      T sums[tokens][tile_width] = {};
      for (std::int64_t i = 0; i < inputs_; ++i) {
        const T* w = data_.data() + i * padded_ + o;
        for (int t = 0; t < tokens; ++t) {
          const T factor = static_cast<T>(x[t * stride + i]);
#pragma omp simd
          for (std::int64_t u = 0; u < tile_width; ++u) sums[t][u] += factor * w[u];
        }
      }
      const std::int64_t width = std::min(tile_width, outputs_ - o);
      for (int t = 0; t < tokens; ++t) std::copy_n(sums[t], width, y + t * outputs_ + o);
    }
  }

  std::int64_t outputs_;
  std::int64_t inputs_;
  std::int64_t padded_;
  std::vector<T> data_;
};

template <class T>
T sigmoid(T z) {
  return T{1} / (T{1} + std::exp(-z));
}

// One step of a recurrence. w_x [G * d] holds W x + b, u_h [G * d] holds U h; h [d] and c [d]
// (lstm) are replaced. Gates: lstm i, f, g, o; gru r, z, n with n = tanh(W_n x + b_n + r (U_n h))
// and h' = (1 - z) n + z h (the form of cuDNN and PyTorch).
template <class T>
void cell(Family family, std::int64_t d, const T* w_x, const T* u_h, T* h, T* c) {
  for (std::int64_t k = 0; k < d; ++k) {
    const auto gate = [&](std::int64_t g) { return w_x[g * d + k] + u_h[g * d + k]; };
    if (family == Family::lstm) {
      c[k] = sigmoid(gate(1)) * c[k] + sigmoid(gate(0)) * std::tanh(gate(2));
      h[k] = sigmoid(gate(3)) * std::tanh(c[k]);
    } else if (family == Family::gru) {
      const T r = sigmoid(gate(0));
      const T z = sigmoid(gate(1));
      const T n = std::tanh(w_x[2 * d + k] + r * u_h[2 * d + k]);
      h[k] = (T{1} - z) * n + z * h[k];
    } else {
      h[k] = std::tanh(gate(0));
    }
  }
}

}  // namespace attn::reference
