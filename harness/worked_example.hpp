// SPDX-License-Identifier: MIT
// The lesson's worked examples: one attention head, every step of it kept. Nothing is typed in but
// the inputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "impls/attention.hpp"

namespace attn {

// Row-major float64.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> values;

  double& at(std::int64_t i, std::int64_t j) {
    return values[static_cast<std::size_t>(i * columns + j)];
  }
  [[nodiscard]] double at(std::int64_t i, std::int64_t j) const {
    return values[static_cast<std::size_t>(i * columns + j)];
  }
};

// What goes into a head, as the lesson writes it: all values are those of floats.
struct HeadInputs {
  Matrix x;    // [n, d_model]
  Matrix w_q;  // [d_model, d_k]
  Matrix w_k;  // [d_model, d_k]
  Matrix w_v;  // [d_model, d_v]
  Mask mask = Mask::none;
};

// What comes out of it, step by step.
struct HeadSteps {
  Matrix q, k, v;                   // [n, d_k], [n, d_k], [n, d_v]
  Matrix s;                         // [n, n], Q K^T, behind the mask too
  Matrix scaled;                    // [n, n], S / sqrt(d_k)
  Matrix exps;                      // [n, n], e^scaled, 0 behind the mask
  Matrix sums;                      // [n, 1], of the rows of exps
  Matrix a;                         // [n, n], exps / sums
  Matrix z;                         // [n, d_v], A V
  double reference_difference = 0;  // largest between z and the harness's float64 reference
};

// Softmax is taken as on paper, without subtracting the row's maximum: for small scores only.
// Throws std::runtime_error when z is further than 1e-12 from the reference.
HeadSteps work_through(const HeadInputs& inputs);

HeadInputs example_m9();                     // 3 tokens, d_model 4, d_k 2, small integers
HeadInputs example_m10(std::uint64_t seed);  // 10 tokens, d_model 64, d_k 16, causal, N(0, 1)

std::string text_of_m9();
std::string text_of_m10(std::uint64_t seed);
std::string json_of_head(const HeadInputs& inputs);  // every matrix in full precision

}  // namespace attn
