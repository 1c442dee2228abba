// SPDX-License-Identifier: MIT
#include "harness/guard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace attn {

float* ChangedRow::take(const float* row) {
  put_back();
  row_ = const_cast<float*>(row);
  std::copy_n(row_, saved_.size(), saved_.begin());
  return row_;
}

void ChangedRow::put_back() {
  if (row_ != nullptr) std::copy(saved_.begin(), saved_.end(), row_);
  row_ = nullptr;
}

GuardImpl::GuardImpl(Shape& shape, const Output& output)
    : shape_(shape),
      truth_(shape.truth()),
      problem_(shape.problem()),
      io_(shape.io()),
      out_(output.view()),
      seed_(shape.seed()) {
  for (std::size_t r = 0; r < truth_.rows.size(); ++r) {
    const RowId& id = truth_.rows[r];
    if (r == 0 || id.batch != truth_.rows[r - 1].batch || id.head != truth_.rows[r - 1].head) {
      first_.push_back(r);
    }
    group_.push_back(first_.size() - 1);
    if (r < truth_.heaviest.size() && truth_.heaviest[r] >= 0) movable_.push_back(r);
  }
  guarded_.resize(first_.size());
  first_.push_back(truth_.rows.size());
}

std::size_t GuardImpl::neighbour(std::size_t r, std::uint64_t lot) const {
  const std::size_t first = first_[group_[r]];
  return first + lot % (first_[group_[r] + 1] - first);
}

std::size_t GuardImpl::pick(std::uint64_t lot) {
  for (std::size_t g = 0; g < guarded_.size(); ++g) {
    guarded_[g] = neighbour(first_[g], random_bits(lot, g + 2));
  }
  std::size_t moving = none;
  if (!movable_.empty()) {
    moving = movable_[random_bits(lot, 0) % movable_.size()];
    guarded_[group_[moving]] = moving;
  }
  for (const std::size_t r : guarded_) poison(truth_.rows[r]);
  return moving;
}

void GuardImpl::still_valid() const {
  if (shape_.seed() != seed_) {
    throw std::logic_error("the shape was refilled: this guard knows the inputs before");
  }
}

void GuardImpl::poison(const RowId& id) const {
  std::fill_n(out_.row<float>(id.batch, id.head, id.token), truth_.width,
              std::numeric_limits<float>::quiet_NaN());
}

std::optional<std::string> GuardImpl::written(const RowId& id) const {
  const float* got = out_.row<float>(id.batch, id.head, id.token);
  for (std::int64_t c = 0; c < truth_.width; ++c) {
    if (std::isfinite(got[c])) continue;
    return fmt::format(
        "batch item {}, head {}, row {}, element {} is no number: not written, or computed so",
        id.batch, id.head, id.token, c);
  }
  return std::nullopt;
}

// The bound is 8 times the largest error of a plain implementation on rows of the same inputs, plus
// a floor of about 17 units of f32 rounding, in units of the RMS. A row that follows a change
// carries one more term, weight times change, with the relative error of one weight; that error is
// part of what the plain implementation shows on every row, where the terms together are of the
// size of the RMS. So a term of `moved` is allowed the bound times moved / RMS. A stale row is off
// by `moved` itself, which the bound (of the order of 1e-5) never reaches.
std::optional<std::string> GuardImpl::compare(const RowId& id, const double* expected,
                                              double moved) const {
  const float* got = out_.row<float>(id.batch, id.head, id.token);
  const double allowed = truth_.bound * std::max(truth_.rms, moved);
  for (std::int64_t c = 0; c < truth_.width; ++c) {
    const double error = std::abs(static_cast<double>(got[c]) - expected[c]);
    if (error <= allowed) continue;
    if (auto sentence = written(id)) return sentence;
    return fmt::format(
        "batch item {}, head {}, row {}, element {}: got {:.8g}, expected {:.8g} "
        "after {}, allowed error {:.2e}",
        id.batch, id.head, id.token, c, got[c], expected[c],
        moved > 0 ? "an input had changed" : "the output had been poisoned", allowed);
  }
  return std::nullopt;
}

namespace {

template <class X>
void multiply_rows(const float* weights, std::int64_t outputs, std::int64_t inputs, const X* x,
                   double* y) {
  for (std::int64_t o = 0; o < outputs; ++o) {
    const float* w = weights + o * inputs;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < inputs; ++i) {
      sum += static_cast<double>(w[i]) * static_cast<double>(x[i]);
    }
    y[o] = sum;
  }
}

// Core attention. One sampled row of every (batch, head) is poisoned. In one KV head the v of the
// key that a guarded row weighs most, a, moves by 2 RMS / a in every element, so that this row
// moves by twice its scale whatever n is; the other query heads of that KV head follow by their own
// weights.
class CoreGuard : public GuardImpl {
 public:
  CoreGuard(Shape& shape, const Output& output)
      : GuardImpl(shape, output),
        changed_(problem_.head_dim_v),
        expected_(static_cast<std::size_t>(problem_.head_dim_v)) {}

  void disturb(std::uint64_t lot) override {
    still_valid();
    changed_.put_back();
    active_ = true;
    const std::size_t r = pick(lot);
    if (r == none) return;  // no row sees a key: the poison alone has to do
    key_ = truth_.heaviest[r];
    batch_ = truth_.rows[r].batch;
    kv_head_ = problem_.kv_head(truth_.rows[r].head);
    const double unit = truth_.rms > 0 ? truth_.rms : 1.0;
    const auto move = static_cast<float>(2 * unit / weight(truth_.rows[r], r));
    float* v = changed_.take(io_.v.row<float>(batch_, kv_head_, key_));
    // Alternating, so that a constant added to a stale row does not make it right.
    const std::uint64_t sign = random_bits(lot, 1) & 1;
    for (std::int64_t c = 0; c < problem_.head_dim_v; ++c) {
      v[c] += ((static_cast<std::uint64_t>(c) + sign) % 2 == 0) ? move : -move;
    }
  }

  std::optional<std::string> check() override {
    std::optional<std::string> wrong;
    for (std::size_t g = 0; active_ && g < guarded_.size() && !wrong; ++g) {
      const RowId& id = truth_.rows[guarded_[g]];
      const double* expected = truth_.row(guarded_[g]);
      double moved = 0;
      if (changed_.row() != nullptr && id.batch == batch_ &&
          problem_.kv_head(id.head) == kv_head_ && key_ < problem_.visible(id.batch, id.token)) {
        const double a = weight(id, guarded_[g]);
        for (std::size_t c = 0; c < expected_.size(); ++c) {
          const double change = a * (static_cast<double>(changed_.row()[c]) -
                                     static_cast<double>(changed_.saved()[c]));
          expected_[c] = expected[c] + change;
          moved = std::max(moved, std::abs(change));
        }
        expected = expected_.data();
      }
      wrong = compare(id, expected, moved);
    }
    changed_.put_back();
    active_ = false;
    return wrong;
  }

 private:
  // The weight of the changed key for truth row r, from its log-sum-exp.
  [[nodiscard]] double weight(const RowId& id, std::size_t r) const {
    const float* q = io_.q.row<float>(id.batch, id.head, id.token);
    const float* k = io_.k.row<float>(id.batch, problem_.kv_head(id.head), key_);
    double logit = 0;
    multiply_rows(k, 1, problem_.head_dim, q, &logit);
    return std::exp(logit * problem_.effective_scale() - truth_.log_sum_exp[r]);
  }

  ChangedRow changed_;
  std::vector<double> expected_;
  std::int64_t batch_ = 0;
  std::int64_t kv_head_ = 0;
  std::int64_t key_ = -1;
  bool active_ = false;
};

}  // namespace

void multiply(const void* weights, std::int64_t outputs, std::int64_t inputs, const float* x,
              double* y) {
  multiply_rows(static_cast<const float*>(weights), outputs, inputs, x, y);
}

void multiply(const void* weights, std::int64_t outputs, std::int64_t inputs, const double* x,
              double* y) {
  multiply_rows(static_cast<const float*>(weights), outputs, inputs, x, y);
}

Guard::Guard(Shape& shape, const Output& output) {
  switch (shape.family()) {
    case Family::rnn:
    case Family::gru:
    case Family::lstm:
      impl_ = make_recurrence_guard(shape, output);
      break;
    default:
      impl_ = shape.problem().scope == Scope::layer ? make_layer_guard(shape, output)
                                                    : std::make_unique<CoreGuard>(shape, output);
  }
}

Guard::~Guard() = default;
void Guard::disturb(std::uint64_t lot) { impl_->disturb(lot); }
std::optional<std::string> Guard::check() { return impl_->check(); }

}  // namespace attn
