// SPDX-License-Identifier: MIT
#include "harness/guard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "harness/elements.hpp"
#include "harness/work.hpp"

namespace attn {

float* ChangedRow::take(const void* row) {
  put_back();
  row_ = const_cast<void*>(row);
  read_row(dtype_, row_, static_cast<std::int64_t>(saved_.size()), saved_.data());
  values_ = saved_;
  return values_.data();
}

void ChangedRow::write() {
  const auto width = static_cast<std::int64_t>(values_.size());
  write_row(dtype_, values_.data(), width, row_);
  read_row(dtype_, row_, width, values_.data());
}

void ChangedRow::put_back() {
  if (row_ != nullptr) {
    write_row(dtype_, saved_.data(), static_cast<std::int64_t>(saved_.size()), row_);
  }
  row_ = nullptr;
}

GuardImpl::GuardImpl(Shape& shape, const Output& output, const Safeguards& rules)
    : shape_(shape),
      rules_(rules),
      truth_(shape.truth()),
      problem_(shape.problem()),
      io_(shape.io()),
      out_(output.view()),
      seed_(shape.seed()),
      row_(static_cast<std::size_t>(truth_.width)) {
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

std::size_t GuardImpl::other_than(std::size_t r, std::uint64_t lot) const {
  const std::size_t first = first_[group_[r]];
  const std::size_t count = first_[group_[r] + 1] - first;
  if (count < 2) return none;
  return first + (r - first + 1 + lot % (count - 1)) % count;
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
  if (!rules_.has(Safeguard::guard_row)) return;
  fill_with_nan(problem_.dtype, truth_.width,
                row_at(problem_.dtype, out_, id.batch, id.head, id.token));
}

const std::vector<float>& GuardImpl::output_row(const RowId& id) const {
  read_row(problem_.dtype, row_at(problem_.dtype, out_, id.batch, id.head, id.token), truth_.width,
           row_.data());
  return row_;
}

std::optional<Finding> GuardImpl::written(const RowId& id) const {
  const std::vector<float>& got = output_row(id);
  for (std::size_t c = 0; c < got.size(); ++c) {
    if (std::isfinite(got[c])) continue;
    return Finding{
        Safeguard::guard_row,
        fmt::format(
            "batch item {}, head {}, row {}, element {} is no number: not written, or computed so",
            id.batch, id.head, id.token, c)};
  }
  return std::nullopt;
}

// The bound is 8 times the largest error of a plain implementation on rows of the same inputs, plus
// a floor of a few units of rounding, in units of the RMS. A row that follows a change
// carries one more term, weight times change, with the relative error of one weight; that error is
// part of what the plain implementation shows on every row, where the terms together are of the
// size of the RMS. So a term of `moved` is allowed the bound times moved / RMS. A stale row is off
// by `moved` itself, which the bound (of the order of 1e-5, in bf16 of 0.1) never reaches.
std::optional<Finding> GuardImpl::compare(const RowId& id, const double* expected, double moved,
                                          Safeguard rule) const {
  const std::vector<float>& got = output_row(id);
  const double allowed = truth_.bound * std::max(truth_.rms, moved);
  for (std::size_t c = 0; c < got.size(); ++c) {
    const double error = std::abs(static_cast<double>(got[c]) - expected[c]);
    if (error <= allowed) continue;
    if (auto finding = written(id)) return finding;
    return Finding{
        rule,
        fmt::format("batch item {}, head {}, row {}, element {}: got {:.8g}, expected "
                    "{:.8g} after {}, allowed error {:.2e}",
                    id.batch, id.head, id.token, c, got[c], expected[c],
                    moved > 0 ? "an input had changed" : "the output had been poisoned", allowed)};
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

// Core attention. One sampled row of every (batch, head) is poisoned. In one KV head the key that a
// guarded row weighs most moves along that row's query until it has about half of the row's weight
// w, and its v moves by 2 RMS / w in every element, so that the row moves by twice its scale
// whatever n is. The other rows that see the key follow by their own weights: the poisoned ones, and
// one more of the same head that nothing in the output points at.
class CoreGuard : public GuardImpl {
 public:
  CoreGuard(Shape& shape, const Output& output, const Safeguards& rules)
      : GuardImpl(shape, output, rules),
        key_row_(problem_.dtype, problem_.head_dim),
        value_row_(problem_.dtype, problem_.head_dim_v),
        query_(static_cast<std::size_t>(problem_.head_dim)),
        expected_(static_cast<std::size_t>(problem_.head_dim_v)) {}

  void disturb(std::uint64_t lot) override {
    still_valid();
    put_back();
    active_ = true;
    second_ = none;
    const std::size_t r = pick(lot);
    if (r == none) return;  // no row sees a key: the poison alone has to do
    const RowId& id = truth_.rows[r];
    if (rules_.has(Safeguard::guard_second_row)) second_ = other_than(r, random_bits(lot, 1));
    key_ = truth_.heaviest[r];
    batch_ = id.batch;
    kv_head_ = problem_.kv_head(id.head);
    float* k = key_row_.take(row_at(problem_.dtype, io_.k, batch_, kv_head_, key_));
    float* v = value_row_.take(row_at(problem_.dtype, io_.v, batch_, kv_head_, key_));
    key_moved_ = rules_.has(Safeguard::guard_key) && move_key(r, k);
    if (key_moved_) key_row_.write();
    if (!rules_.has(Safeguard::guard_value)) return;
    const double unit = truth_.rms > 0 ? truth_.rms : 1.0;
    const auto move = static_cast<float>(2 * unit / weights(r).after);
    // Alternating, so that a constant added to a stale row does not make it right.
    const std::uint64_t sign = lot & 1;
    for (std::int64_t c = 0; c < problem_.head_dim_v; ++c) {
      v[c] += ((static_cast<std::uint64_t>(c) + sign) % 2 == 0) ? move : -move;
    }
    value_row_.write();
  }

  std::optional<Finding> check() override {
    std::optional<Finding> wrong;
    for (std::size_t g = 0; active_ && g < guarded_.size() && !wrong; ++g) {
      wrong = follows(guarded_[g], false);
    }
    if (active_ && second_ != none && !wrong) wrong = follows(second_, true);
    put_back();
    active_ = false;
    return wrong;
  }

 private:
  void put_back() {
    key_row_.put_back();
    value_row_.put_back();
  }

  // Of the changed key in truth row r, before and after, from the row's log-sum-exp.
  struct Weights {
    double before, after;
  };
  [[nodiscard]] Weights weights(std::size_t r) const {
    const RowId& id = truth_.rows[r];
    const float* q = query(id);
    const double before = std::exp(logit(key_row_.saved(), q) - truth_.log_sum_exp[r]);
    const double share = std::exp(truth_.log_sum_exp[r] - logit(key_row_.values(), q));
    if (problem_.visible(id.batch, id.token) == 1) return {1, 1};
    if (!key_moved_) return {before, before};
    return {before, 1 / (1 + std::max(0.0, 1 - before) * share)};
  }
  [[nodiscard]] const float* query(const RowId& id) const {
    read_row(problem_.dtype, row_at(problem_.dtype, io_.q, id.batch, id.head, id.token),
             problem_.head_dim, query_.data());
    return query_.data();
  }
  [[nodiscard]] double logit(const float* k, const float* q) const {
    double dot = 0;
    multiply_rows(k, 1, problem_.head_dim, q, &dot);
    return dot * problem_.effective_scale();
  }

  // k += t q raises the logit by t scale |q|^2. The step stays within twice the key's own length, so
  // that the dtype holds the changed row as well as any other. False where nothing was moved.
  bool move_key(std::size_t r, float* k) const {
    const float* q = query(truth_.rows[r]);
    const double before = logit(k, q);
    const double rest = 1 - std::exp(before - truth_.log_sum_exp[r]);
    double q_squared = 0;
    double k_squared = 0;
    multiply_rows(q, 1, problem_.head_dim, q, &q_squared);
    multiply_rows(k, 1, problem_.head_dim, k, &k_squared);
    if (rest < 1e-3 || q_squared == 0) return false;
    const double wanted = truth_.log_sum_exp[r] + std::log(rest) - before;
    const double most = 2 * std::sqrt(k_squared / q_squared);
    double step = wanted / (problem_.effective_scale() * q_squared);
    if (!(std::abs(step) <= most)) step = std::copysign(most, wanted);
    for (std::int64_t c = 0; c < problem_.head_dim; ++c) k[c] += static_cast<float>(step) * q[c];
    return true;
  }

  // Whether row r is what the changed inputs make of it; the second row is not poisoned.
  [[nodiscard]] std::optional<Finding> follows(std::size_t r, bool second) {
    const RowId& id = truth_.rows[r];
    const Safeguard blind = second ? Safeguard::guard_second_row : Safeguard::guard_row;
    if (!key_row_.active() || id.batch != batch_ || problem_.kv_head(id.head) != kv_head_ ||
        key_ >= problem_.visible(id.batch, id.token)) {
      return compare(id, truth_.row(r), 0, blind);
    }
    const Weights w = weights(r);
    // One key has all the weight and loses it: what is left is a difference of rounding.
    if (w.after != w.before && 1 - w.before < 1e-6) return written(id);
    const double moved = expect(r, w.before, w.after, value_row_.values());
    auto wrong = compare(id, expected_.data(), moved, blind);
    if (!wrong || second || moved == 0 || written(id)) return wrong;
    // Is it the row of before, with regard to k, to v, or to both?
    const auto is = [&](double weight, const ChangedRow& row, bool old) {
      expect(r, w.before, weight, old ? row.saved() : row.values());
      return !compare(id, expected_.data(), moved, blind);
    };
    if (is(w.before, value_row_, false)) {
      wrong->rule = Safeguard::guard_key;
    } else if (is(w.after, value_row_, true) || is(w.before, value_row_, true)) {
      wrong->rule =
          rules_.has(Safeguard::guard_value) ? Safeguard::guard_value : Safeguard::guard_key;
    }
    return wrong;
  }

  // The row with weight w_after in place of w_before for the key, whose v is `value`; returns the
  // largest element of the change.
  double expect(std::size_t r, double w_before, double w_after, const float* value) {
    const double* row = truth_.row(r);
    double moved = 0;
    const bool exchange = w_after != w_before;
    for (std::size_t c = 0; c < expected_.size(); ++c) {
      const auto v = static_cast<double>(value_row_.saved()[c]);
      const auto v_new = static_cast<double>(value[c]);
      expected_[c] =
          exchange ? (1 - w_after) * (row[c] - w_before * v) / (1 - w_before) + w_after * v_new
                   : row[c] + w_after * (v_new - v);
      moved = std::max(moved, std::abs(expected_[c] - row[c]));
    }
    return moved;
  }

  ChangedRow key_row_;
  ChangedRow value_row_;
  mutable std::vector<float> query_;
  std::vector<double> expected_;
  std::size_t second_ = none;
  std::int64_t batch_ = 0;
  std::int64_t kv_head_ = 0;
  std::int64_t key_ = -1;
  bool key_moved_ = false;
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

Guard::Guard(Shape& shape, const Output& output, const Safeguards& rules) {
  if (is_recurrent(shape.family())) {
    impl_ = make_recurrence_guard(shape, output, rules);
  } else if (shape.problem().scope == Scope::layer) {
    impl_ = make_layer_guard(shape, output, rules);
  } else {
    impl_ = std::make_unique<CoreGuard>(shape, output, rules);
  }
}

Guard::~Guard() = default;
void Guard::disturb(std::uint64_t lot) { impl_->disturb(lot); }
std::optional<Finding> Guard::check() { return impl_->check(); }

}  // namespace attn
