// SPDX-License-Identifier: MIT
#include "harness/reference.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "harness/elements.hpp"
#include "harness/inputs.hpp"
#include "harness/reference_math.hpp"
#include "harness/work.hpp"

namespace attn::reference {
namespace {

constexpr double all_rows_flops = 1e8;  // about 30 ms in float64
constexpr std::int64_t core_rows = 64;

// Where implementations go wrong: the ends, and the edges of tiles. After the fixed ones, edges of
// tiles anywhere in the sequence.
std::int64_t candidate(std::uint64_t number, std::int64_t n) {
  constexpr std::uint64_t fixed = 19;
  if (number == 0) return 0;
  std::int64_t tile = std::int64_t{16} << ((number - 1) / 3 % 6);
  std::int64_t multiple = 1;
  if (number >= fixed) {
    const std::uint64_t lot = random_bits(0x726f7773, number);
    while (tile > n && tile > 1) tile /= 2;
    multiple = 1 + static_cast<std::int64_t>(lot % static_cast<std::uint64_t>(n / tile));
  }
  const std::int64_t beside = static_cast<std::int64_t>((number - 1) % 3) - 1;
  return multiple * tile + beside;
}

}  // namespace

Sample sample_rows(std::int64_t batch, std::int64_t heads, std::int64_t n_q, double flops_per_row,
                   std::int64_t at_least, std::uint64_t seed) {
  Sample sample;
  const std::int64_t pairs = batch * heads;
  if (pairs == 0 || n_q == 0) return {{}, true};
  sample.all = static_cast<double>(pairs * n_q) * flops_per_row <= all_rows_flops;
  const std::int64_t wanted = std::max<std::int64_t>(2, (at_least + pairs - 1) / pairs);
  std::uint64_t dealt = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::vector<std::int64_t> tokens;
      if (sample.all || wanted >= n_q) {
        for (std::int64_t i = 0; i < n_q; ++i) tokens.push_back(i);
      } else {
        tokens.push_back(n_q - 1);
        // A candidate may be taken or beyond the end; the lot finds another one soon.
        for (std::int64_t misses = 0; static_cast<std::int64_t>(tokens.size()) < wanted;) {
          // Every second one is an edge.
          const std::uint64_t number = dealt++;
          const std::uint64_t lot = random_bits(seed, number);
          std::int64_t token =
              number % 2 == 0 ? candidate(number / 2, n_q)
                              : static_cast<std::int64_t>(lot % static_cast<std::uint64_t>(n_q));
          if (misses > 8 * wanted) token = misses - 8 * wanted - 1;
          if (token >= n_q || std::find(tokens.begin(), tokens.end(), token) != tokens.end()) {
            ++misses;
          } else {
            tokens.push_back(token);
          }
        }
        std::sort(tokens.begin(), tokens.end());
      }
      for (const std::int64_t token : tokens) sample.rows.push_back({b, h, token});
    }
  }
  sample.all = static_cast<std::int64_t>(sample.rows.size()) == pairs * n_q;
  return sample;
}

namespace {

// The elements of q, k and v are of type Element.
template <class Element>
std::vector<float> core_of(const Problem& problem, const Io& io, std::uint64_t seed,
                           Shape::Truth& truth) {
  const double pairs_per_row =
      static_cast<double>(problem.pairs()) /
      std::max(1.0, static_cast<double>(problem.batch) * static_cast<double>(problem.n_q));
  const double flops_per_row =
      2 * pairs_per_row * static_cast<double>(problem.head_dim + problem.head_dim_v);
  Sample sample =
      sample_rows(problem.batch, problem.heads, problem.n_q, flops_per_row, core_rows, seed);
  truth.mode = sample.all ? "all rows" : "sampled rows";
  truth.rows = std::move(sample.rows);
  truth.width = problem.head_dim_v;
  const std::size_t count = truth.rows.size();
  const auto width = static_cast<std::size_t>(truth.width);
  truth.values.resize(count * width);
  truth.log_sum_exp.resize(count);
  truth.heaviest.assign(count, -1);
  std::vector<float> plain(count * width);

  std::vector<double> q(static_cast<std::size_t>(problem.head_dim));
  std::vector<float> plain_q(q.size());
  std::vector<double> weights(static_cast<std::size_t>(problem.n_kv));
  std::vector<float> plain_weights(static_cast<std::size_t>(problem.n_kv));
  std::vector<double> sums;
  std::int64_t summed = 0;
  for (std::size_t r = 0; r < count; ++r) {
    const RowId row = truth.rows[r];
    const std::int64_t g = problem.kv_head(row.head);
    const Element* query = io.q.row<Element>(row.batch, row.head, row.token);
    const Element* k = io.k.row<Element>(row.batch, g, 0);
    const Element* v = io.v.row<Element>(row.batch, g, 0);
    const std::int64_t visible = problem.visible(row.batch, row.token);
    std::copy_n(query, problem.head_dim, q.begin());
    std::copy_n(query, problem.head_dim, plain_q.begin());
    double* out = truth.values.data() + r * width;
    truth.log_sum_exp[r] = attention_row(problem, q.data(), k, io.k.token_stride, v,
                                         io.v.token_stride, visible, weights.data(), out);
    if (visible > 0) {
      truth.heaviest[r] =
          std::max_element(weights.begin(), weights.begin() + visible) - weights.begin();
    }
    float* plain_out = plain.data() + r * width;
    attention_row(problem, plain_q.data(), k, io.k.token_stride, v, io.v.token_stride, visible,
                  plain_weights.data(), plain_out);
    std::transform(plain_out, plain_out + width, plain_out, [](float z) { return Element(z); });

    // Rows of one head come in order of their token, so the visible keys only grow.
    if (r == 0 || row.head != truth.rows[r - 1].head || row.batch != truth.rows[r - 1].batch) {
      sums.assign(width, 0.0);
      summed = 0;
    }
    const auto add_up_to = [&](std::int64_t end, std::vector<double>& into) {
      for (std::int64_t j = summed; j < end; ++j) {
        const Element* value = v + j * io.v.token_stride;
        for (std::size_t c = 0; c < width; ++c) into[c] += static_cast<double>(value[c]);
      }
    };
    add_up_to(visible, sums);
    summed = visible;
    for (std::size_t c = 0; c < width && visible > 0; ++c) {
      const double mean = sums[c] / static_cast<double>(visible);
      truth.visible_mean_off = std::max(truth.visible_mean_off, std::abs(mean - out[c]));
    }
    const bool last_of_head = r + 1 == count || truth.rows[r + 1].head != row.head ||
                              truth.rows[r + 1].batch != row.batch;
    if (last_of_head && problem.n_kv > 0) {
      std::vector<double> all = sums;
      add_up_to(problem.n_kv, all);
      for (std::size_t c = 0; c < width; ++c) all[c] /= static_cast<double>(problem.n_kv);
      for (std::size_t s = r + 1; s-- > 0;) {
        if (truth.rows[s].head != row.head || truth.rows[s].batch != row.batch) break;
        for (std::size_t c = 0; c < width; ++c) {
          truth.mean_off = std::max(truth.mean_off, std::abs(all[c] - truth.row(s)[c]));
        }
      }
    }
  }
  return plain;
}

}  // namespace

std::vector<float> core(const Problem& problem, const Io& io, std::uint64_t seed,
                        Shape::Truth& truth) {
  return with_element(problem.dtype, [&]<class Element>(Element) {
    return core_of<Element>(problem, io, seed, truth);
  });
}

Shape::Truth compute(const Problem& problem, Family family, const Io& io, std::uint64_t seed) {
  Shape::Truth truth;
  std::vector<float> plain;
  switch (family) {
    case Family::attention:
    case Family::sparse:
    case Family::linear:
      plain = problem.scope == Scope::core ? core(problem, io, seed, truth)
                                           : attention_layer(problem, io, seed, truth);
      break;
    case Family::rnn:
    case Family::gru:
    case Family::lstm:
      plain = recurrence(problem, family, io, seed, truth);
      break;
    case Family::convolution:
      throw std::invalid_argument("there is no reference for convolutions yet");
  }

  double squares = 0;
  for (const double value : truth.values) squares += value * value;
  truth.rms =
      truth.values.empty() ? 0.0 : std::sqrt(squares / static_cast<double>(truth.values.size()));
  double error = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(plain[i]) - truth.values[i]));
  }
  const double scale = truth.rms > 0 ? 1 / truth.rms : 0;
  truth.plain_error = error * scale;
  truth.bound = error_bound(problem.dtype, truth.plain_error);
  truth.visible_mean_off *= scale;
  truth.mean_off *= scale;

  const bool masked = !is_recurrent(family);
  std::int64_t seen = 0;
  std::int64_t zeros = 0;
  for (std::size_t r = 0; r < truth.rows.size(); ++r) {
    if (masked && problem.visible(truth.rows[r].batch, truth.rows[r].token) == 0) continue;
    seen += truth.width;
    zeros += std::count(truth.row(r), truth.row(r) + truth.width, 0.0);
  }
  truth.zero_share = seen == 0 ? 0 : static_cast<double>(zeros) / static_cast<double>(seen);
  return truth;
}

double error_bound(DType dtype, double plain_error) { return 8 * plain_error + error_floor(dtype); }

}  // namespace attn::reference
