// SPDX-License-Identifier: MIT
// The attention layer: y = W_O [softmax(scale q k^T + mask) v of every head], q = W_Q x, and k and
// v from x or, in cross-attention, from the context.
#include <algorithm>

#include "harness/reference.hpp"
#include "harness/reference_math.hpp"

namespace attn::reference {
namespace {

constexpr std::int64_t layer_rows = 16;

const float* weights(const void* w) { return static_cast<const float*>(w); }

// The rows [first, last) of the truth, which are those of one batch item.
struct Span {
  std::size_t first, last;
  std::int64_t batch;
};

template <class T>
struct ItemResult {
  std::vector<T> k, v;                 // [n_kv, heads_kv * head_dim], [n_kv, heads_kv * head_dim_v]
  std::vector<T> queries;              // [rows, heads * head_dim]
  std::vector<T> mixed;                // [rows, heads * head_dim_v]
  std::vector<T> lse;                  // [rows, heads]
  std::vector<T> y;                    // [rows, width]
  std::vector<std::int64_t> heaviest;  // [rows]
};

// Where the layer's K and V come from: [n_kv, d_model] of one batch item.
const ConstView& source(const Io& io) { return io.context ? io.context : io.x; }

template <class T>
ItemResult<T> run_item(const Problem& p, const Io& io, const Shape::Truth& truth, const Span& span,
                       const Matrix<T>& w_q, const Matrix<T>& w_k, const Matrix<T>& w_v,
                       const Matrix<T>* w_o) {
  ItemResult<T> item;
  const ConstView& from = source(io);
  const std::int64_t k_width = w_k.outputs();
  const std::int64_t v_width = w_v.outputs();
  const std::int64_t mixed_width = p.heads * p.head_dim_v;
  // At least a token's: a head's place in it is asked for without keys too.
  const std::int64_t places = std::max<std::int64_t>(p.n_kv, 1);
  item.k.resize(static_cast<std::size_t>(places * k_width));
  item.v.resize(static_cast<std::size_t>(places * v_width));
  const float* tokens = from.row<float>(span.batch, 0, 0);
  w_k.multiply(tokens, from.token_stride, p.n_kv, item.k.data());
  w_v.multiply(tokens, from.token_stride, p.n_kv, item.v.data());

  const std::size_t count = span.last - span.first;
  item.queries.resize(count * static_cast<std::size_t>(w_q.outputs()));
  item.mixed.resize(count * static_cast<std::size_t>(mixed_width));
  item.lse.resize(count * static_cast<std::size_t>(p.heads));
  item.y.resize(count * static_cast<std::size_t>(truth.width));
  item.heaviest.assign(count, -1);
  std::vector<float> x(count * static_cast<std::size_t>(p.d_model));
  for (std::size_t r = 0; r < count; ++r) {
    const std::int64_t token = truth.rows[span.first + r].token;
    std::copy_n(io.x.row<float>(span.batch, 0, token), p.d_model,
                x.data() + static_cast<std::int64_t>(r) * p.d_model);
  }
  w_q.multiply(x.data(), p.d_model, static_cast<std::int64_t>(count), item.queries.data());

  std::vector<T> row_weights(static_cast<std::size_t>(p.n_kv));
  std::vector<T> summed(static_cast<std::size_t>(p.n_kv));
  for (std::size_t r = 0; r < count; ++r) {
    const std::int64_t token = truth.rows[span.first + r].token;
    const std::int64_t visible = p.visible(span.batch, token);
    std::fill(summed.begin(), summed.end(), T{0});
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const std::int64_t g = p.kv_head(h);
      const auto row = static_cast<std::int64_t>(r);
      item.lse[r * static_cast<std::size_t>(p.heads) + static_cast<std::size_t>(h)] = attention_row(
          p, item.queries.data() + row * w_q.outputs() + h * p.head_dim,
          item.k.data() + g * p.head_dim, k_width, item.v.data() + g * p.head_dim_v, v_width,
          visible, row_weights.data(), item.mixed.data() + row * mixed_width + h * p.head_dim_v);
      for (std::int64_t j = 0; j < visible; ++j) {
        summed[static_cast<std::size_t>(j)] += row_weights[static_cast<std::size_t>(j)];
      }
    }
    // A token's own row of x is also its query, so changing it would change every logit.
    if (!io.context && token < visible) summed[static_cast<std::size_t>(token)] = T{-1};
    const auto largest = std::max_element(summed.begin(), summed.begin() + visible);
    if (visible > 0 && *largest > 0) item.heaviest[r] = largest - summed.begin();
  }
  if (w_o != nullptr) {
    w_o->multiply(item.mixed.data(), mixed_width, static_cast<std::int64_t>(count), item.y.data());
  } else {
    item.y = item.mixed;
  }
  return item;
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// All items, one after another, so that K and V of one item are held at a time.
template <class T, class Take>
void run_all(const Problem& p, const Io& io, const Shape::Truth& truth, Take take) {
  const Matrix<T> w_q(weights(io.parameters.w_q), p.heads * p.head_dim, p.d_model);
  const Matrix<T> w_k(weights(io.parameters.w_k), p.heads_kv * p.head_dim, p.d_model);
  const Matrix<T> w_v(weights(io.parameters.w_v), p.heads_kv * p.head_dim_v, p.d_model);
  std::vector<Matrix<T>> w_o;
  if (p.output_projection) {
    w_o.emplace_back(weights(io.parameters.w_o), p.d_model, p.heads * p.head_dim_v);
  }
  for (std::size_t first = 0; first < truth.rows.size();) {
    std::size_t last = first;
    const std::int64_t batch = truth.rows[first].batch;
    while (last < truth.rows.size() && truth.rows[last].batch == batch) ++last;
    take(run_item<T>(p, io, truth, {first, last, batch}, w_q, w_k, w_v,
                     w_o.empty() ? nullptr : w_o.data()));
    first = last;
  }
}

}  // namespace

std::vector<float> attention_layer(const Problem& p, const Io& io, std::uint64_t seed,
                                   Shape::Truth& truth) {
  const double rows = std::max(1.0, static_cast<double>(p.batch) * static_cast<double>(p.n_q));
  const double flops_per_row =
      2.0 * static_cast<double>(p.heads) *
      (static_cast<double>(p.pairs()) / rows * static_cast<double>(p.head_dim + p.head_dim_v) +
       static_cast<double>(p.d_model) *
           static_cast<double>(p.head_dim + (p.output_projection ? p.head_dim_v : 0)));
  Sample sample = sample_rows(p.batch, 1, p.n_q, flops_per_row, layer_rows, seed);
  truth.mode = sample.all ? "all rows" : "sampled rows";
  truth.rows = std::move(sample.rows);
  truth.width = p.output_projection ? p.d_model : p.heads * p.head_dim_v;
  if (truth.rows.empty()) return {};

  run_all<double>(p, io, truth, [&](const ItemResult<double>& item) {
    append(truth.values, item.y);
    append(truth.queries, item.queries);
    append(truth.mixed, item.mixed);
    append(truth.log_sum_exp, item.lse);
    append(truth.heaviest, item.heaviest);
    const std::int64_t k_width = p.heads_kv * p.head_dim;
    const std::int64_t v_width = p.heads_kv * p.head_dim_v;
    for (const std::int64_t key : item.heaviest) {
      const std::int64_t j = std::max<std::int64_t>(0, key);  // of no key: any, it is not used
      if (p.n_kv == 0) continue;
      const auto k = item.k.begin() + j * k_width;
      const auto v = item.v.begin() + j * v_width;
      truth.heaviest_k.insert(truth.heaviest_k.end(), k, k + k_width);
      truth.heaviest_v.insert(truth.heaviest_v.end(), v, v + v_width);
    }
  });
  std::vector<float> plain;
  run_all<float>(p, io, truth, [&](const ItemResult<float>& item) { append(plain, item.y); });
  return plain;
}

}  // namespace attn::reference
