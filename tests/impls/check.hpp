// SPDX-License-Identifier: MIT
// Runs one backend on one case and holds every output against the reference.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "harness/buffers.hpp"
#include "harness/device.hpp"
#include "harness/layer.hpp"
#include "tests/impls/reference.hpp"
#include "tests/impls/tensors.hpp"

namespace attn::test {

// |values - truth| <= (8 x the error of the plain evaluation + 2e-6 RMS of the truth, or 2 epsilon of a
// 16-bit dtype), the largest over all elements. Where the truth is NaN or infinite the value must be so too: a number
// there would be plausible and wrong.
inline void expect_close(const char* what, DType dtype, const std::vector<float>& values,
                         const std::vector<double>& truth, const std::vector<float>& plain) {
  ASSERT_EQ(values.size(), truth.size()) << what;
  ASSERT_EQ(values.size(), plain.size()) << what;
  double squares = 0.0, plain_error = 0.0, error = 0.0;
  std::size_t finite = 0, worst = 0;
  for (std::size_t e = 0; e < truth.size(); ++e) {
    if (!std::isfinite(truth[e])) {
      ASSERT_TRUE(std::isnan(truth[e]) ? std::isnan(values[e]) : values[e] == truth[e])
          << what << ": element " << e << " of " << truth.size() << " is " << values[e]
          << ", should be " << truth[e];
      continue;
    }
    ++finite;
    squares += truth[e] * truth[e];
    plain_error = std::max(plain_error, std::abs(plain[e] - truth[e]));
    const double off = std::abs(values[e] - truth[e]);
    if (!(off <= error)) error = off, worst = e;
  }
  if (finite == 0) return;
  const double rms = std::sqrt(squares / static_cast<double>(finite));
  EXPECT_LE(error, 8.0 * plain_error + error_floor(dtype) * rms)
      << what << ": element " << worst << " of " << truth.size() << " is " << values[worst]
      << ", should be " << truth[worst] << "; RMS " << rms << ", plain error " << plain_error;
}

inline std::vector<float> values_of(const Tensor& tensor) {
  std::vector<float> values(tensor.batch * tensor.heads * tensor.tokens * tensor.dim);
  float* row = values.data();
  for (std::int64_t b = 0; b < tensor.batch; ++b) {
    for (std::int64_t h = 0; h < tensor.heads; ++h) {
      for (std::int64_t t = 0; t < tensor.tokens; ++t, row += tensor.dim) {
        read_row(tensor.dtype, row_at(tensor.dtype, tensor.view, b, h, t), tensor.dim, row);
      }
    }
  }
  return values;
}

// Scratch of exactly the declared size before a protected page, filled with a pattern that reads as
// a large negative number.
class Scratch {
 public:
  explicit Scratch(std::int64_t bytes)
      : bytes_(bytes), arena_(static_cast<std::size_t>(bytes) + 4096) {
    data_ = static_cast<unsigned char*>(arena_.region(static_cast<std::size_t>(bytes)));
    std::memset(data_ - margin, pattern, static_cast<std::size_t>(margin + padded()));
  }
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] bool stayed_inside() const {
    return untouched(data_ - margin, data_) && untouched(data_ + bytes_, data_ + padded());
  }
  [[nodiscard]] bool used_to_both_ends() const {
    return bytes_ == 0 ||
           (!untouched(data_, data_ + 4) && !untouched(data_ + bytes_ - 4, data_ + bytes_));
  }

 private:
  static constexpr unsigned char pattern = 0xC7;
  static constexpr std::int64_t margin = 1024;
  [[nodiscard]] std::int64_t padded() const { return (bytes_ + 63) / 64 * 64; }
  [[nodiscard]] static bool untouched(const unsigned char* begin, const unsigned char* end) {
    return std::all_of(begin, end, [](unsigned char byte) { return byte == pattern; });
  }
  std::int64_t bytes_;
  Arena arena_;
  unsigned char* data_;
};

inline void check_rows_of_probabilities(const Problem& p, const std::vector<float>& values) {
  std::size_t e = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      for (std::int64_t i = 0; i < p.n_q; ++i) {
        double sum = 0.0;
        for (std::int64_t j = 0; j < p.n_kv; ++j, ++e) {
          sum += values[e];
          if (j >= p.visible(b, i)) {
            ASSERT_EQ(values[e], 0.0F) << "weight behind the mask at row " << i << ", key " << j;
          }
        }
        const double expected = p.visible(b, i) > 0 ? 1.0 : 0.0;
        if (!std::isnan(sum)) {
          ASSERT_NEAR(sum, expected, 1e-5) << "row " << i;
        }
      }
    }
  }
}

// Every query sees a key and no key is padding: then each algorithm here touches all of its
// scratch.
inline bool uses_all_scratch(const Problem& p, Family family) {
  if (p.batch * p.n_q == 0) return false;
  if (family != Family::attention) return true;
  return p.key_lengths.empty() && p.n_kv > 0 && p.visible(0, 0) > 0;
}

// Whether the backend does plain attention in this dtype, in prefill or decode.
inline bool takes(const Backend& backend, DType dtype) {
  Problem p;
  p.n_q = p.n_kv = 64;
  p.dtype = dtype;
  p.memory = backend.memory;
  if (!refuses(backend, p)) return true;
  p.n_q = 1;
  p.regime = Regime::decode;
  return !refuses(backend, p);
}

// The problems that a backend is held against: those of its family in f32, and a shorter list in each
// 16-bit dtype that it takes. One that takes f32 nowhere is asked for nothing in f32, but if it takes
// no dtype (without a device, say) its refusals are looked at.
inline std::vector<Case> cases_of(const Backend& backend) {
  std::vector<Case> cases;
  if (backend.family == Family::attention) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      if (!takes(backend, dtype)) continue;
      for (Case& c : cases_in_16_bits(dtype)) cases.push_back(std::move(c));
    }
  }
  if (!cases.empty() && !takes(backend, DType::f32)) return cases;
  for (Case& c : cases_for(backend.family)) cases.push_back(std::move(c));
  return cases;
}

struct Expected {
  Plain<double> truth;
  Plain<float> plain;
  Expected(const Case& c, const Backend& backend, const Tensors& tensors)
      : truth(c.problem, backend.family, tensors.io),
        plain(c.problem, backend.family, tensors.io) {}
};

// The outputs of a finished run: result, probabilities and log-sum-exp, each where it is there.
inline void check_outputs(const Tensors& tensors, const Expected& expected) {
  EXPECT_TRUE(tensors.fences_intact()) << "wrote before a tensor";
  const auto& [truth, plain] = expected;
  const Tensor& result = tensors.result();
  expect_close("result", result.dtype, values_of(result), truth.out, plain.out);
  if (std::none_of(truth.out.begin(), truth.out.end(), [](double t) { return std::isnan(t); })) {
    EXPECT_EQ(result.written(), result.batch * result.heads * result.tokens * result.dim)
        << "wrote between the rows of the output, or not all of them";
  }
  if (tensors.io.probabilities) {
    const std::vector<float> values = values_of(tensors.probabilities);
    expect_close("probabilities", DType::f32, values, truth.probabilities, plain.probabilities);
    check_rows_of_probabilities(tensors.problem, values);
  }
  if (tensors.io.log_sum_exp) {
    const std::vector<float> values = values_of(tensors.log_sum_exp);
    expect_close("log-sum-exp", DType::f32, values, truth.log_sum_exp, plain.log_sum_exp);
  }
}

using Run = std::function<void(const Problem&, const Io&, void* state, void* scratch)>;

// Runs a device backend on the current device and checks what it wrote, and what it did not.
inline void check_device_run(const Tensors& tensors, const Backend& backend,
                             const Expected& expected) {
  const auto point = make_device_point(backend, tensors.problem, tensors.io);
  point->upload();
  point->timed_run();
  EXPECT_EQ(point->broken_fence(), "");
  EXPECT_FALSE(point->inputs_changed());
  point->download();
  check_outputs(tensors, expected);
}

// Runs a host backend, `cost` being what it declared, and checks its memory and its outputs.
inline void check_run(const Case& c, const Backend& backend, const Cost& cost, const Run& run) {
  const Problem& p = c.problem;
  const Tensors tensors(c, backend);
  const Scratch scratch(cost.scratch_bytes);
  const FencedBuffer state(static_cast<std::size_t>(cost.state_bytes));
  prepare(backend, p, tensors.io.parameters, state.data());
  omp_set_num_threads(p.threads);
  run(p, tensors.io, state.data(), scratch.data());

  EXPECT_TRUE(state.intact()) << "wrote before its state";
  EXPECT_TRUE(scratch.stayed_inside()) << "wrote outside the declared scratch";
  const std::string folder(backend.name.substr(0, backend.name.find('.')));
  if ((folder == "cpu" || folder == "blas") && uses_all_scratch(p, backend.family)) {
    EXPECT_TRUE(scratch.used_to_both_ends()) << "declares scratch that it does not use";
  }
  check_outputs(tensors, Expected(c, backend, tensors));
}

}  // namespace attn::test
