// SPDX-License-Identifier: MIT
// The truth about a shape: its inputs, its float64 reference, the check of an output against it,
// and the guard that keeps a timed call honest.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "harness/buffers.hpp"
#include "harness/inputs.hpp"
#include "harness/safeguards.hpp"
#include "impls/attention.hpp"

namespace attn {

// The inputs of one shape, shared by all backends of that shape, and the reference of sampled rows.
// `family` decides between attention (sparse and linear too: their reference is exact attention)
// and each recurrence; threads and memory of the problem do not matter.
class Shape {
 public:
  // Throws std::invalid_argument for a layer whose dtype is not f32 (no reference yet),
  // std::bad_alloc. The inputs of a 16-bit dtype are those of f32, rounded.
  Shape(const Problem& problem, Family family, std::uint64_t seed, InputDist dist,
        const Safeguards& rules = {});
  ~Shape();
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;

  [[nodiscard]] const Problem& problem() const;
  [[nodiscard]] Family family() const;
  [[nodiscard]] std::uint64_t seed() const;  // of the inputs, the last given to refill
  [[nodiscard]] Parameters parameters() const;
  [[nodiscard]] Io io() const;  // the inputs; out and y are null
  [[nodiscard]] std::uint64_t hash() const;
  [[nodiscard]] bool intact() const;  // the fences of the inputs

  // Other inputs and their reference (the closing call). Parameters stay: backends have packed
  // them.
  void refill(std::uint64_t seed);

  // Other inputs for calls whose answer nobody checks: seed() and the reference stay those of the
  // last refill, whose inputs must be filled in again before they count.
  void fill(std::uint64_t seed);

  struct Truth;  // reference rows, plain error, stored logits and states: harness/reference.hpp
  // Computed at first use. Throws std::runtime_error where a recurrence cannot be checked by
  // windows.
  Truth& truth();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The output of one point: [batch, heads, n_q, head_dim_v] or, at layer scope, y.
class Output {
 public:
  Output(const Problem& problem, Family family, const Safeguards& rules = {});
  void poison();  // all NaN
  [[nodiscard]] bool intact() const { return buffer_.intact(); }
  [[nodiscard]] std::uint64_t hash() const { return buffer_.hash(); }
  [[nodiscard]] View view() const { return view_; }  // elements are of the problem's dtype
  [[nodiscard]] std::size_t bytes() const { return buffer_.size(); }
  void attach(Io& io) const;  // sets io.out or io.y

 private:
  FencedBuffer buffer_;
  View view_;
  DType dtype_ = DType::f32;
  bool layer_ = false;
};

struct Check {
  enum class Verdict { ok, mismatch, mistrusted };
  Verdict verdict = Verdict::ok;
  std::optional<Finding> finding;  // unless ok
  std::string mode;                // "all rows", "sampled rows", "windows"
  std::int64_t rows_checked = 0;
  double err_max_abs = 0;
  double err_scaled = 0;  // max |out - reference| / RMS of the reference
  double err_bound = 0;   // 8 x the error of a plain implementation on the same rows + a floor
};
// Every element must be finite; the rows of the truth must be near it. An empty output is ok with
// no rows checked; where the reference is zero throughout, so must be the output.
Check verify(Shape& shape, const Output& output, const Safeguards& rules = {});

class GuardImpl;

// Around one timed call: `disturb` right before the clock, `check` right after it. `check` puts the
// inputs back and returns what was wrong, if anything was. `lot` decides which row,
// head and key take part; give every sample another. Neither allocates unless something was wrong.
// Shape and output must outlive the guard, and after Shape::refill a new guard is needed (disturb
// throws std::logic_error). A guard that is destroyed between the two calls puts the inputs back.
class Guard {
 public:
  // Computes what later calls need.
  Guard(Shape& shape, const Output& output, const Safeguards& rules = {});
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  void disturb(std::uint64_t lot);
  std::optional<Finding> check();

 private:
  std::unique_ptr<GuardImpl> impl_;
};

}  // namespace attn
