// SPDX-License-Identifier: MIT
#include "harness/worked_example.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "harness/reference.hpp"
#include "harness/typeset.hpp"
#include "harness/verify.hpp"

namespace attn {
namespace {

Matrix zeros(std::int64_t rows, std::int64_t columns) {
  return {rows, columns, std::vector<double>(static_cast<std::size_t>(rows * columns))};
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c = zeros(a.rows, b.columns);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.columns; ++j) {
      for (std::int64_t l = 0; l < a.columns; ++l) c.at(i, j) += a.at(i, l) * b.at(l, j);
    }
  }
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t = zeros(a.columns, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

Problem problem_of(const HeadInputs& in) {
  Problem p;
  p.scope = Scope::layer;
  p.n_q = p.n_kv = in.x.rows;
  p.d_model = in.x.columns;
  p.head_dim = in.w_q.columns;
  p.head_dim_v = in.w_v.columns;
  p.mask = in.mask;
  return p;
}

std::vector<float> floats(const Matrix& a) { return {a.values.begin(), a.values.end()}; }

// Z once more, from the reference that checks every backend; it takes all rows of so few.
std::vector<double> reference_z(const HeadInputs& in) {
  const std::vector<float> x = floats(in.x);
  const std::vector<float> w_q = floats(transposed(in.w_q));  // parameters are [output, input]
  const std::vector<float> w_k = floats(transposed(in.w_k));
  const std::vector<float> w_v = floats(transposed(in.w_v));
  Io io;
  io.x = {x.data(), in.x.rows * in.x.columns, 0, in.x.columns};
  io.parameters.w_q = w_q.data();
  io.parameters.w_k = w_k.data();
  io.parameters.w_v = w_v.data();
  return reference::compute(problem_of(in), Family::attention, io, 0).values;
}

// ---- text ----------------------------------------------------------------------------------------

std::string number(double value, int decimals) { return fmt::format("{:.{}f}", value, decimals); }

Lines matrix(std::string_view name, const Matrix& m, int decimals) {
  std::size_t width = 0;
  for (const double value : m.values) width = std::max(width, number(value, decimals).size());
  Lines lines = {fmt::format("{} ({}, {})", name, m.rows, m.columns)};
  for (std::int64_t i = 0; i < m.rows; ++i) {
    std::string line = "[";
    for (std::int64_t j = 0; j < m.columns; ++j) {
      line += fmt::format(" {:>{}}", number(m.at(i, j), decimals), width);
    }
    lines.push_back(line + " ]");
  }
  return lines;
}

// "1·2 + 0·3 = 2": row i of a times column j of b.
std::string dot(const Matrix& a, std::int64_t i, const Matrix& b, std::int64_t j, int decimals,
                int result_decimals) {
  std::string text;
  double sum = 0;
  for (std::int64_t l = 0; l < a.columns; ++l) {
    text += fmt::format("{}{}·{}", l == 0 ? "" : " + ", number(a.at(i, l), decimals),
                        number(b.at(l, j), 0));
    sum += a.at(i, l) * b.at(l, j);
  }
  return text + " = " + number(sum, result_decimals);
}

constexpr std::string_view checked =
    "Check: the float64 reference that every backend is held against gives the same Z.\n";

// How dark a weight of [0, 1] is printed, two columns wide.
std::string_view shade(double weight) {
  constexpr std::array<std::string_view, 5> shades = {"  ", "░░", "▒▒", "▓▓", "██"};
  return shades[static_cast<std::size_t>(std::lround(4 * std::sqrt(weight)))];
}

}  // namespace

HeadSteps work_through(const HeadInputs& in) {
  const std::int64_t n = in.x.rows;
  const Problem problem = problem_of(in);
  Matrix q = product(in.x, in.w_q);
  Matrix k = product(in.x, in.w_k);
  Matrix v = product(in.x, in.w_v);
  Matrix s = product(q, transposed(k));
  Matrix scaled = s;
  for (double& value : scaled.values) value *= problem.effective_scale();
  Matrix exps = zeros(n, n);
  Matrix sums = zeros(n, 1);
  Matrix a = zeros(n, n);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t visible = problem.visible(0, i);
    for (std::int64_t j = 0; j < visible; ++j)
      sums.at(i, 0) += exps.at(i, j) = std::exp(scaled.at(i, j));
    for (std::int64_t j = 0; j < visible; ++j) a.at(i, j) = exps.at(i, j) / sums.at(i, 0);
  }
  Matrix z = product(a, v);
  const std::vector<double> expected = reference_z(in);
  double difference = 0;
  for (std::size_t c = 0; c < expected.size(); ++c) {
    difference = std::max(difference, std::abs(z.values[c] - expected[c]));
  }
  if (!(difference <= 1e-12) || expected.size() != z.values.size()) {
    throw std::runtime_error(
        fmt::format("the worked example is {:.3g} away from the float64 reference", difference));
  }
  return {q, k, v, s, scaled, exps, sums, a, z, difference};
}

HeadInputs example_m9() {
  return {.x = {3,
                4,
                {1, 0, 1, 0,  //
                 0, 1, 0, 1,  //
                 1, 1, 0, 0}},
          .w_q = {4,
                  2,
                  {1, 0,  //
                   1, 0,  //
                   0, 1,  //
                   0, 0}},
          .w_k = {4,
                  2,
                  {0, 1,  //
                   1, 0,  //
                   0, 0,  //
                   0, 2}},
          .w_v = {4,
                  2,
                  {1, 0,  //
                   0, 1,  //
                   1, 1,  //
                   0, 2}}};
}

HeadInputs example_m10(std::uint64_t seed) {
  Problem p;
  p.scope = Scope::layer;
  p.n_q = p.n_kv = 10;
  p.d_model = 64;
  p.head_dim = p.head_dim_v = 16;
  const Shape shape(p, Family::attention, seed, InputDist::normal);
  const auto read = [](const void* data, std::int64_t rows, std::int64_t columns) {
    const auto* values = static_cast<const float*>(data);
    return Matrix{rows, columns, {values, values + rows * columns}};
  };
  const Parameters w = shape.parameters();
  return {.x = read(shape.io().x.data, p.n_q, p.d_model),
          .w_q = transposed(read(w.w_q, p.head_dim, p.d_model)),
          .w_k = transposed(read(w.w_k, p.head_dim, p.d_model)),
          .w_v = transposed(read(w.w_v, p.head_dim_v, p.d_model)),
          .mask = Mask::causal};
}

std::string text_of_m9() {
  const HeadInputs in = example_m9();
  const HeadSteps step = work_through(in);
  std::string text = "M9: one attention head by hand. 3 tokens, d_model = 4, d_k = d_v = 2.\n";

  text += "\n1. The inputs: a row of X for each token, and three learned matrices.\n\n";
  text += beside({matrix("X", in.x, 0), matrix("W_Q", in.w_q, 0), matrix("W_K", in.w_k, 0),
                  matrix("W_V", in.w_v, 0)});

  text += "\n2. Queries, keys and values: Q = X W_Q, K = X W_K, V = X W_V.\n\n";
  text += beside({matrix("Q", step.q, 0), matrix("K", step.k, 0), matrix("V", step.v, 0)});
  text += fmt::format("\n  The first entry of Q: {}.\n", dot(in.x, 0, in.w_q, 0, 0, 0));

  text += "\n3. Scores: S = Q Kᵀ, every query with every key; then divided by √d_k = ";
  text += fmt::format("√{} = {:.4f}.\n\n", in.w_q.columns, std::sqrt(in.w_q.columns));
  text += beside({matrix("S", step.s, 0), matrix("S / √d_k", step.scaled, 4)});
  text += fmt::format("\n  The first query with the second key: {}.\n",
                      dot(step.q, 0, transposed(step.k), 1, 0, 0));

  text += "\n4. Weights: softmax of each row, e to the power of each score over the row's sum.\n\n";
  text += beside({matrix("e^(S / √d_k)", step.exps, 4), matrix("row sums", step.sums, 4),
                  matrix("A", step.a, 4)});
  text += fmt::format("\n  The first query gives the second value {:.4f} / {:.4f} = {:.4f}.\n",
                      step.exps.at(0, 1), step.sums.at(0, 0), step.a.at(0, 1));
  text +=
      "  Every row of A sums to 1. The third query is twice the second: the same order, sharper.\n";

  text +=
      "\n5. Output: Z = A V, for each token a mean of the values, weighted by its row of A.\n\n";
  text += beside({matrix("Z", step.z, 4)});
  text += fmt::format("\n  The first entry of Z: {}.\n\n", dot(step.a, 0, step.v, 0, 4, 4));
  return text + std::string(checked);
}

std::string text_of_m10(std::uint64_t seed) {
  const HeadInputs in = example_m10(seed);
  const HeadSteps step = work_through(in);
  const std::int64_t n = in.x.rows;
  const std::int64_t d_k = in.w_q.columns;
  std::string text = fmt::format(
      "M10: one causal attention head. B = 1, n = {}, d_model = {}, d_k = d_v = {}; seed {}.\n\n",
      n, in.x.columns, d_k, seed);
  const std::string shape_x = fmt::format("(1, {}, {})", n, in.x.columns);
  const std::string shape_w = fmt::format("({}, {})", in.w_q.rows, d_k);
  const std::string shape_q = fmt::format("(1, {}, {})", n, d_k);
  const std::string shape_a = fmt::format("(1, {}, {})", n, n);
  text += beside({{"X", "W_Q, W_K, W_V", "Q, K, V", "A", "Z"},
                  {shape_x, shape_w, shape_q, shape_a, shape_q},
                  {"from N(0, 1)", fmt::format("from N(0, 1/{})", in.x.columns), "X W",
                   "softmax of Q Kᵀ / √d_k where j ≤ i", "A V"}});

  text += "\nA: rows are queries i, columns keys j. A token sees itself and what came before it:\n";
  text += "above the diagonal every weight is exactly 0, and each row sums to 1 all the same.\n\n";
  std::string keys;
  for (std::int64_t j = 0; j < n; ++j) keys += fmt::format("{:>6}", j);
  text += fmt::format("  i\\j{}    sum   as shades\n", keys);
  for (std::int64_t i = 0; i < n; ++i) {
    std::string numbers;
    std::string shades;
    double sum = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      const double weight = step.a.at(i, j);
      numbers += fmt::format("{:>6}", weight == 0 ? "0" : number(weight, 3));
      shades += shade(weight);
      sum += weight;
    }
    text += fmt::format("  {:>3}{}  {:.3f}   {}|\n", i, numbers, sum, shades);
  }

  text += "\nThe first token sees itself alone, so the first row of Z is the first value:\n\n";
  Rows rows = {{"", "0", "1", "2", "3", "..."}, {"v_0"}, {"z_0"}};
  for (std::int64_t c = 0; c < 4; ++c) {
    rows[1].push_back(number(step.v.at(0, c), 4));
    rows[2].push_back(number(step.z.at(0, c), 4));
  }
  return text + table(rows) + "\n" + std::string(checked);
}

std::string json_of_head(const HeadInputs& in) {
  const HeadSteps step = work_through(in);
  nlohmann::ordered_json document;
  const auto add = [&](const char* name, const Matrix& m) {
    auto& rows = document[name];
    for (std::int64_t i = 0; i < m.rows; ++i) {
      const auto first = m.values.begin() + i * m.columns;
      rows.push_back(std::vector<double>(first, first + m.columns));
    }
  };
  add("x", in.x);
  add("w_q", in.w_q);
  add("w_k", in.w_k);
  add("w_v", in.w_v);
  add("q", step.q);
  add("k", step.k);
  add("v", step.v);
  add("s", step.s);
  add("a", step.a);
  add("z", step.z);
  document["causal"] = in.mask == Mask::causal;
  document["reference_difference"] = step.reference_difference;
  return document.dump() + "\n";
}

}  // namespace attn
