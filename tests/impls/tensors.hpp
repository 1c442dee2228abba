// SPDX-License-Identifier: MIT
// The tensors of one case in fenced memory: inputs with NaN in every gap, outputs poisoned with
// NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "harness/buffers.hpp"
#include "harness/elements.hpp"
#include "harness/work.hpp"
#include "impls/attention.hpp"
#include "tests/impls/cases.hpp"

namespace attn::test {

struct Tensor {
  FencedBuffer buffer;
  View view;
  std::int64_t batch = 0, heads = 0, tokens = 0, dim = 0;
  DType dtype = DType::f32;

  Tensor() = default;
  // Members are meant inside: `slack` puts gaps between rows and items.
  Tensor(std::int64_t items, std::int64_t head_count, std::int64_t rows, std::int64_t width,
         bool slack, DType type = DType::f32)
      : batch(items), heads(head_count), tokens(rows), dim(width), dtype(type) {
    view.head_stride = slack ? dim : tokens * dim;
    view.token_stride = slack ? heads * dim + 3 : dim;
    view.batch_stride = slack ? tokens * view.token_stride + 5 : heads * tokens * dim;
    const bool empty = batch * heads * tokens * dim == 0;
    const std::int64_t elements = empty ? 0
                                        : (batch - 1) * view.batch_stride +
                                              (heads - 1) * view.head_stride +
                                              (tokens - 1) * view.token_stride + dim;
    buffer = FencedBuffer(static_cast<std::size_t>(bytes_per_element(dtype) * elements));
    view.data = buffer.data();
    fill_with_nan(dtype, elements, buffer.data());
  }

  // Rounds an f32 tensor, and its gaps, to the dtype. Strides stay.
  void store_as(DType type) {
    if (type == dtype) return;
    const auto elements = static_cast<std::int64_t>(buffer.size() / sizeof(float));
    FencedBuffer stored(static_cast<std::size_t>(bytes_per_element(type) * elements));
    write_row(type, buffer.floats(), elements, stored.data());
    buffer = std::move(stored);
    view.data = buffer.data();
    dtype = type;
  }

  // Of an f32 tensor.
  template <class F>
  void for_each(F&& f) const {
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t c = 0; c < dim; ++c) f(view.row<float>(b, h, t)[c]);
        }
      }
    }
  }

  void fill(std::mt19937_64& random, double size) {
    std::normal_distribution<double> normal;
    for_each([&](float& value) { value = static_cast<float>(normal(random) * size); });
  }

  [[nodiscard]] ConstView read() const {
    return {view.data, view.batch_stride, view.head_stride, view.token_stride};
  }

  // Elements that are not NaN, gaps included: after a run into a poisoned output these must be as
  // many as the tensor has elements.
  [[nodiscard]] std::int64_t written() const {
    return with_element(dtype, [&]<class Element>(Element) {
      const auto* elements = static_cast<const Element*>(buffer.data());
      const std::size_t count = buffer.size() / sizeof(Element);
      return std::count_if(elements, elements + count,
                           [](float value) { return !std::isnan(value); });
    });
  }
};

struct Tensors {
  Tensor q, k, v, out, x, context, y, probabilities, log_sum_exp;
  Tensor w_q, w_k, w_v, w_o, w, u, b;
  Problem problem;
  Io io;

  Tensors(const Case& c, const Backend& backend) : problem(c.problem) {
    const Problem& p = c.problem;
    std::mt19937_64 random(20250101);
    const bool core = p.scope == Scope::core;
    const bool attention = backend.family == Family::attention;
    if (core) {
      q = Tensor(p.batch, p.heads, p.n_q, p.head_dim, c.slack);
      k = Tensor(p.batch, p.heads_kv, p.n_kv, p.head_dim, c.slack);
      v = Tensor(p.batch, p.heads_kv, p.n_kv, p.head_dim_v, c.slack);
      out = Tensor(p.batch, p.heads, p.n_q, p.head_dim_v, c.slack, p.dtype);
      q.fill(random, c.size_of_q), k.fill(random, 1.0), v.fill(random, 1.0);
      if (c.change) c.change(p, {q.view, k.view, v.view});
      for (Tensor* input : {&q, &k, &v}) input->store_as(p.dtype);
      io.q = q.read(), io.k = k.read(), io.v = v.read(), io.out = out.view;
    } else {
      const std::int64_t width =
          attention && !p.output_projection ? p.heads * p.head_dim_v : p.d_model;
      x = Tensor(p.batch, 1, p.n_q, p.d_model, c.slack);
      y = Tensor(p.batch, 1, p.n_q, width, c.slack);
      x.fill(random, 1.0);
      io.x = x.read(), io.y = y.view;
      if (attention && p.n_kv != p.n_q) {
        context = Tensor(p.batch, 1, p.n_kv, p.d_model, c.slack);
        context.fill(random, 1.0);
        io.context = context.read();
      }
      make_parameters(p, backend.family, random);
    }
    if (attention && backend.offers_probabilities) {
      probabilities = Tensor(p.batch, p.heads, p.n_q, p.n_kv, c.slack);
      io.probabilities = probabilities.view;
    }
    if (attention && backend.offers_log_sum_exp) {
      log_sum_exp = Tensor(p.batch, p.heads, p.n_q, 1, c.slack);
      io.log_sum_exp = log_sum_exp.view;
    }
  }

  [[nodiscard]] const Tensor& result() const { return io.out ? out : y; }

  [[nodiscard]] bool fences_intact() const {
    for (const Tensor* t : {&q, &k, &v, &out, &x, &context, &y, &probabilities, &log_sum_exp, &w_q,
                            &w_k, &w_v, &w_o, &w, &u, &b}) {
      if (!t->buffer.intact()) return false;
    }
    return true;
  }

 private:
  void make_parameters(const Problem& p, Family family, std::mt19937_64& random) {
    const auto weights = [&](Tensor& t, std::int64_t rows, std::int64_t inputs, double deviation) {
      t = Tensor(1, 1, rows, inputs, false);
      t.fill(random, deviation);
      return static_cast<const void*>(t.view.data);
    };
    const double deviation = 1.0 / std::sqrt(static_cast<double>(p.d_model));
    Parameters& given = io.parameters;
    if (family == Family::attention) {
      given.w_q = weights(w_q, p.heads * p.head_dim, p.d_model, deviation);
      given.w_k = weights(w_k, p.heads_kv * p.head_dim, p.d_model, deviation);
      given.w_v = weights(w_v, p.heads_kv * p.head_dim_v, p.d_model, deviation);
      const std::int64_t mixed = p.heads * p.head_dim_v;
      if (p.output_projection) {
        given.w_o = weights(w_o, p.d_model, mixed, 1.0 / std::sqrt(static_cast<double>(mixed)));
      }
      return;
    }
    const std::int64_t gates = family == Family::lstm ? 4 : 1;
    given.w = weights(w, gates * p.d_model, p.d_model, deviation);
    given.u = weights(u, gates * p.d_model, p.d_model, deviation);
    given.b = weights(b, 1, gates * p.d_model, deviation);
  }
};

}  // namespace attn::test
