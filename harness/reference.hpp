// SPDX-License-Identifier: MIT
// The float64 reference of sampled rows, and what the guard needs to predict a changed row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/verify.hpp"

namespace attn {

struct RowId {
  std::int64_t batch = 0;
  std::int64_t head = 0;  // 0 at layer scope
  std::int64_t token = 0;
};

// What a recurrence knows before its last step, of one batch item.
struct LastStep {
  std::int64_t batch = 0;
  std::vector<double> u_h;  // [G * d], U h without the bias
  std::vector<double> h;    // [d]
  std::vector<double> c;    // [d], lstm only
};

struct Shape::Truth {
  std::string mode;            // "all rows", "sampled rows", "windows"
  std::int64_t width = 0;      // elements of an output row
  std::vector<RowId> rows;     // ordered by batch, then head, then token
  std::vector<double> values;  // [rows, width]
  double rms = 0;              // of values
  double plain_error = 0;      // max |plain - values| / rms
  double bound = 0;            // of the scaled error: error_bound
  double zero_share = 0;       // of exact zeros among the values of rows that see a key

  // Core: the mean of v over the visible keys and over all keys, scaled distance from values.
  double visible_mean_off = 0;
  double mean_off = 0;

  // Attention. Log-sum-exp of the scaled logits, [rows] or at layer scope [rows, heads]; and the
  // visible key of the largest weight, [rows], or -1. At layer scope that is the weight summed over
  // the heads, and in self-attention never the row's own token.
  std::vector<double> log_sum_exp;
  std::vector<std::int64_t> heaviest;
  // Attention layer: a row's queries [rows, heads * head_dim] and head outputs [rows, heads *
  // head_dim_v], and K [rows, heads_kv * head_dim] and V [rows, heads_kv * head_dim_v] of its
  // heaviest key.
  std::vector<double> queries;
  std::vector<double> mixed;
  std::vector<double> heaviest_k;
  std::vector<double> heaviest_v;

  std::vector<LastStep> last_steps;  // recurrences: of the batch items whose end is known

  [[nodiscard]] const double* row(std::size_t r) const {
    return values.data() + static_cast<std::int64_t>(r) * width;
  }
};

namespace reference {

struct Sample {
  std::vector<RowId> rows;
  bool all = false;
};

// All rows of [batch, heads, n_q] where they cost at most 1e8 flops, else `at_least` and at least
// two of every (batch, head): its last one and, dealt by turns, those where implementations go wrong
// (the first, those at multiples of 16 ... 512 and beside them) and any others, drawn by `seed`, so
// that no fixed set of rows is enough to be right.
Sample sample_rows(std::int64_t batch, std::int64_t heads, std::int64_t n_q, double flops_per_row,
                   std::int64_t at_least, std::uint64_t seed);

// Of the scaled error: 8 x that of a plain implementation of the same dtype on the same rows, and a
// floor of 2e-6 (f32 outputs) or 2 epsilon (bf16, f16 outputs). Plain is f32 arithmetic; in a 16-bit
// dtype the weights are rounded before they meet the values, which is what every kernel of that dtype
// does, and so is the output.
double error_bound(DType dtype, double plain_error);

// The reference of the inputs in `io`, which `seed` made; it draws the rows. Throws
// std::invalid_argument for families without one and std::runtime_error when a window of a
// recurrence has not forgotten the state before it.
Shape::Truth compute(const Problem& problem, Family family, const Io& io, std::uint64_t seed);

// Its parts: fill the truth but for the scaled errors, and return the plain rows [rows, width].
std::vector<float> core(const Problem& problem, const Io& io, std::uint64_t seed,
                        Shape::Truth& truth);
std::vector<float> attention_layer(const Problem& problem, const Io& io, std::uint64_t seed,
                                   Shape::Truth& truth);
std::vector<float> recurrence(const Problem& problem, Family family, const Io& io,
                              std::uint64_t seed, Shape::Truth& truth);

}  // namespace reference
}  // namespace attn
