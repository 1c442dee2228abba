// SPDX-License-Identifier: MIT
// What the guards of the three kinds of shapes have in common; Guard itself is in
// harness/verify.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/reference.hpp"
#include "harness/safeguards.hpp"

namespace attn {

// One changed input row that can be put back, as f32 whatever its dtype.
class ChangedRow {
 public:
  ChangedRow(DType dtype, std::int64_t width)
      : dtype_(dtype), saved_(static_cast<std::size_t>(width)), values_(saved_) {}
  ~ChangedRow() { put_back(); }
  ChangedRow(const ChangedRow&) = delete;
  ChangedRow& operator=(const ChangedRow&) = delete;

  // Saves `row` [width], whose memory is the shape's and not constant, and returns a copy to change.
  float* take(const void* row);
  // Writes the changed copy into the row, and makes it what the row then holds.
  void write();
  void put_back();
  [[nodiscard]] bool active() const { return row_ != nullptr; }
  [[nodiscard]] const float* values() const { return values_.data(); }
  [[nodiscard]] const float* saved() const { return saved_.data(); }

 private:
  DType dtype_;
  std::vector<float> saved_;
  std::vector<float> values_;
  void* row_ = nullptr;
};

class GuardImpl {
 public:
  GuardImpl(Shape& shape, const Output& output, const Safeguards& rules);
  virtual ~GuardImpl() = default;
  virtual void disturb(std::uint64_t lot) = 0;
  virtual std::optional<Finding> check() = 0;

 protected:
  void poison(const RowId& id) const;
  // The output row against `expected` [width]. `moved` is the largest element of the change that
  // the row was to follow, 0 for a row that was only poisoned; `rule` is what a finite but wrong row
  // breaks.
  [[nodiscard]] std::optional<Finding> compare(const RowId& id, const double* expected,
                                               double moved, Safeguard rule) const;
  [[nodiscard]] std::optional<Finding> written(const RowId& id) const;
  [[nodiscard]] const std::vector<float>& output_row(const RowId& id) const;  // until the next call
  void still_valid() const;

  // The truth's rows fall into groups, one of each (batch, head). `pick` gives every group a
  // guarded row by lot and poisons it; one of them has a heaviest key, if any row of the truth has,
  // and is returned, else none.
  static constexpr std::size_t none = SIZE_MAX;
  std::size_t pick(std::uint64_t lot);
  // A row of the group of row r by lot, and one that is not r itself: none where r is alone.
  [[nodiscard]] std::size_t neighbour(std::size_t r, std::uint64_t lot) const;
  [[nodiscard]] std::size_t other_than(std::size_t r, std::uint64_t lot) const;

  Shape& shape_;
  const Safeguards rules_;
  const Shape::Truth& truth_;
  Problem problem_;
  Io io_;
  View out_;
  std::vector<std::size_t> guarded_;  // truth row of each group

 private:
  std::uint64_t seed_;
  std::vector<std::size_t> first_;    // truth row of each group, and the end
  std::vector<std::size_t> group_;    // of each truth row
  std::vector<std::size_t> movable_;  // truth rows with a heaviest key
  mutable std::vector<float> row_;    // of the output, as f32
};

// y [outputs] = weights [outputs, inputs] x, in double.
void multiply(const void* weights, std::int64_t outputs, std::int64_t inputs, const float* x,
              double* y);
void multiply(const void* weights, std::int64_t outputs, std::int64_t inputs, const double* x,
              double* y);

std::unique_ptr<GuardImpl> make_layer_guard(Shape& shape, const Output& output,
                                            const Safeguards& rules);
std::unique_ptr<GuardImpl> make_recurrence_guard(Shape& shape, const Output& output,
                                                 const Safeguards& rules);

}  // namespace attn
