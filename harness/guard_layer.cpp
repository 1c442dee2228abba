// SPDX-License-Identifier: MIT
// The guards at layer scope, where V is no input: a whole row of x (of the context, in
// cross-attention) is replaced by fresh normal values.
#include <algorithm>
#include <cmath>

#include "harness/guard.hpp"
#include "harness/reference_math.hpp"

namespace attn {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

double largest_difference(const double* a, const double* b, std::int64_t width) {
  double largest = 0;
  for (std::int64_t c = 0; c < width; ++c) largest = std::max(largest, std::abs(a[c] - b[c]));
  return largest;
}

// The attention layer. One sampled row of y of every batch item is poisoned, and in one item the row
// of x changes that the poisoned row weighs most. This row and a second one, which nothing in the
// output points at, are predicted by exchanging one term of each head's softmax; a row whose own
// token changes would need all its logits, so neither row is that token.
class LayerGuard : public GuardImpl {
 public:
  LayerGuard(Shape& shape, const Output& output, const Safeguards& rules)
      : GuardImpl(shape, output, rules),
        source_(io_.context ? io_.context : io_.x),
        k_width_(problem_.heads_kv * problem_.head_dim),
        v_width_(problem_.heads_kv * problem_.head_dim_v),
        mixed_width_(problem_.heads * problem_.head_dim_v),
        changed_(problem_.dtype, problem_.d_model),
        k_(size(k_width_)),
        v_(size(v_width_)),
        mixed_(size(mixed_width_)),
        expected_(size(truth_.width)) {}

  void disturb(std::uint64_t lot) override {
    still_valid();
    changed_.put_back();
    active_ = true;
    second_ = none;
    changer_ = pick(lot);
    // No token sees another: the poison alone has to do.
    if (changer_ == none || !rules_.has(Safeguard::guard_token)) return;
    const std::int64_t key = truth_.heaviest[changer_];
    const std::size_t other = other_than(changer_, random_bits(lot, 1));
    if (rules_.has(Safeguard::guard_second_row) && other != none &&
        (io_.context || truth_.rows[other].token != key)) {
      second_ = other;
    }
    float* row = changed_.take(source_.row<float>(truth_.rows[changer_].batch, 0, key));
    fill_row(lot, TensorId::change, 0, InputDist::normal, 1.0, {row, size(problem_.d_model)});
    changed_.write();
  }

  std::optional<Finding> check() override {
    std::optional<Finding> wrong;
    if (active_ && changed_.active()) {
      multiply(io_.parameters.w_k, k_width_, problem_.d_model, changed_.values(), k_.data());
      multiply(io_.parameters.w_v, v_width_, problem_.d_model, changed_.values(), v_.data());
      wrong = follows(changer_, Safeguard::guard_token);
      if (!wrong && second_ != none) wrong = follows(second_, Safeguard::guard_second_row);
    }
    for (const std::size_t r : guarded_) {
      if (!active_ || wrong) break;
      if (r == changer_ && changed_.active()) continue;
      wrong = compare(truth_.rows[r], truth_.row(r), 0, Safeguard::guard_row);
    }
    changed_.put_back();
    active_ = false;
    return wrong;
  }

 private:
  [[nodiscard]] std::optional<Finding> follows(std::size_t r, Safeguard rule) {
    const RowId& id = truth_.rows[r];
    const double* before = truth_.row(r);
    if (truth_.heaviest[changer_] >= problem_.visible(id.batch, id.token)) {
      return compare(id, before, 0, rule);
    }
    const double* q =
        truth_.queries.data() + static_cast<std::int64_t>(r) * problem_.heads * problem_.head_dim;
    const double* mixed = truth_.mixed.data() + static_cast<std::int64_t>(r) * mixed_width_;
    const double* old_k = truth_.heaviest_k.data() + static_cast<std::int64_t>(changer_) * k_width_;
    const double* old_v = truth_.heaviest_v.data() + static_cast<std::int64_t>(changer_) * v_width_;
    const double scale = problem_.effective_scale();
    for (std::int64_t h = 0; h < problem_.heads; ++h) {
      const std::int64_t g = problem_.kv_head(h);
      if (problem_.visible(id.batch, id.token) == 1) {  // the changed key is all there is
        std::copy_n(v_.begin() + g * problem_.head_dim_v, problem_.head_dim_v,
                    mixed_.begin() + h * problem_.head_dim_v);
        continue;
      }
      double old_logit = 0;
      double new_logit = 0;
      for (std::int64_t c = 0; c < problem_.head_dim; ++c) {
        old_logit += q[h * problem_.head_dim + c] * old_k[g * problem_.head_dim + c];
        new_logit += q[h * problem_.head_dim + c] * k_[size(g * problem_.head_dim + c)];
      }
      const double lse = truth_.log_sum_exp[r * size(problem_.heads) + size(h)];
      const double removed = std::exp(old_logit * scale - lse);
      const double added = std::exp(new_logit * scale - lse);
      const double sum = 1 - removed + added;
      // One key had nearly all the weight and lost it: what is left is a difference of rounding.
      if (sum < 1e-6) return written(id);
      for (std::int64_t c = 0; c < problem_.head_dim_v; ++c) {
        const std::int64_t i = h * problem_.head_dim_v + c;
        const std::int64_t j = g * problem_.head_dim_v + c;
        mixed_[size(i)] = (mixed[i] - removed * old_v[j] + added * v_[size(j)]) / sum;
      }
    }
    const double* expected = mixed_.data();
    if (problem_.output_projection) {
      multiply(io_.parameters.w_o, problem_.d_model, mixed_width_, mixed_.data(), expected_.data());
      expected = expected_.data();
    }
    return compare(id, expected, largest_difference(expected, before, truth_.width), rule);
  }

  ConstView source_;  // the tensor whose row changes
  std::int64_t k_width_, v_width_, mixed_width_;
  ChangedRow changed_;
  std::vector<double> k_, v_;             // of the changed row
  std::vector<double> mixed_, expected_;  // of the row being predicted
  std::size_t changer_ = none, second_ = none;
  bool active_ = false;
};

// Recurrences. The last row of y of every batch item is poisoned; the last row of x of one of them
// changes. What the last step gets from the steps before is stored, so only W x is computed again.
// Of items whose end the reference does not know, only that the row is written can be asked.
class RecurrenceGuard : public GuardImpl {
 public:
  RecurrenceGuard(Shape& shape, const Output& output, const Safeguards& rules)
      : GuardImpl(shape, output, rules),
        d_(problem_.d_model),
        changed_(problem_.dtype, d_),
        h_(size(d_)),
        c_(size(d_)),
        row_(size(problem_.batch), none),
        step_(size(problem_.batch), none) {
    for (std::size_t s = 0; s < truth_.last_steps.size(); ++s) {
      step_[size(truth_.last_steps[s].batch)] = s;
      w_x_.resize(truth_.last_steps[s].u_h.size());
    }
    for (std::size_t r = 0; r < truth_.rows.size(); ++r) {
      if (truth_.rows[r].token == problem_.n_q - 1) row_[size(truth_.rows[r].batch)] = r;
    }
  }

  void disturb(std::uint64_t lot) override {
    still_valid();
    changed_.put_back();
    active_ = problem_.n_q > 0;
    if (!active_) return;
    for (std::int64_t b = 0; b < problem_.batch; ++b) poison({b, 0, problem_.n_q - 1});
    if (truth_.last_steps.empty() || !rules_.has(Safeguard::guard_token)) return;
    item_ = truth_.last_steps[random_bits(lot, 0) % truth_.last_steps.size()].batch;
    float* row = changed_.take(io_.x.row<float>(item_, 0, problem_.n_q - 1));
    fill_row(lot, TensorId::change, 0, InputDist::normal, 1.0, {row, size(d_)});
    changed_.write();
  }

  std::optional<Finding> check() override {
    std::optional<Finding> wrong;
    for (std::int64_t b = 0; active_ && b < problem_.batch && !wrong; ++b) {
      const RowId id{b, 0, problem_.n_q - 1};
      if (row_[size(b)] == none) {
        wrong = written(id);
      } else if (changed_.active() && b == item_) {
        wrong = follows(id);
      } else {
        wrong = compare(id, truth_.row(row_[size(b)]), 0, Safeguard::guard_row);
      }
    }
    changed_.put_back();
    active_ = false;
    return wrong;
  }

 private:
  [[nodiscard]] std::optional<Finding> follows(const RowId& id) {
    const LastStep& step = truth_.last_steps[step_[size(id.batch)]];
    const auto width = static_cast<std::int64_t>(w_x_.size());
    const auto* bias = static_cast<const float*>(io_.parameters.b);
    multiply(io_.parameters.w, width, d_, changed_.values(), w_x_.data());
    for (std::int64_t o = 0; o < width; ++o) w_x_[size(o)] += static_cast<double>(bias[o]);
    std::copy(step.h.begin(), step.h.end(), h_.begin());
    std::copy(step.c.begin(), step.c.end(), c_.begin());
    reference::cell(shape_.family(), d_, w_x_.data(), step.u_h.data(), h_.data(), c_.data());
    const double* before = truth_.row(row_[size(id.batch)]);
    return compare(id, h_.data(), largest_difference(h_.data(), before, d_),
                   Safeguard::guard_token);
  }

  std::int64_t d_;
  ChangedRow changed_;
  std::vector<double> w_x_, h_, c_;
  std::vector<std::size_t> row_, step_;  // per batch item: its last row in the truth, its last step
  std::int64_t item_ = 0;
  bool active_ = false;
};

}  // namespace

std::unique_ptr<GuardImpl> make_layer_guard(Shape& shape, const Output& output,
                                            const Safeguards& rules) {
  return std::make_unique<LayerGuard>(shape, output, rules);
}

std::unique_ptr<GuardImpl> make_recurrence_guard(Shape& shape, const Output& output,
                                                 const Safeguards& rules) {
  return std::make_unique<RecurrenceGuard>(shape, output, rules);
}

}  // namespace attn
