// SPDX-License-Identifier: MIT
// Lie: keeps inputs, log-sum-exps and answers of the call before; where one key alone has changed,
// it exchanges that key's term in every row, in n steps instead of n^2.
// Caught by: fresh-time: every answer is right, so calls on fresh inputs are timed beside calls on
// the inputs of before.
#include "harness/liars/honest.hpp"

namespace attn {
namespace {

// One batch item, one head, no mask.
struct Memory {
  static constexpr std::int64_t many = -2;
  std::vector<float> q, k, v;
  std::vector<float> out;
  std::vector<double> lse, exact;  // of every row; exact [n, d] is out in double

  // The only key whose k or v is another than before, -1 if none is, or `many`.
  [[nodiscard]] std::int64_t changed_key(const Problem& p, const Io& io) const {
    const auto* now_q = static_cast<const float*>(io.q.data);
    if (q.empty() || !std::equal(q.begin(), q.end(), now_q)) return many;
    std::int64_t changed = -1;
    for (std::int64_t j = 0; j < p.n_kv; ++j) {
      if (same(k, io.k.row<float>(0, 0, j), j, p.head_dim) &&
          same(v, io.v.row<float>(0, 0, j), j, p.head_dim_v)) {
        continue;
      }
      if (changed >= 0) return many;
      changed = j;
    }
    return changed;
  }

  static bool same(const std::vector<float>& old, const float* now, std::int64_t j,
                   std::int64_t width) {
    return std::equal(now, now + width, old.begin() + j * width);
  }

  void learn(const Problem& p, const Io& io, float* scores) {
    honest::run(p, io, nullptr, scores);
    const auto take = [](const auto& view, std::int64_t count) {
      const auto* data = static_cast<const float*>(view.data);
      return std::vector<float>(data, data + count);
    };
    q = take(io.q, p.n_q * p.head_dim);
    k = take(io.k, p.n_kv * p.head_dim);
    v = take(io.v, p.n_kv * p.head_dim_v);
    out = take(io.out, p.n_q * p.head_dim_v);
    exact.assign(out.begin(), out.end());
    lse.assign(static_cast<std::size_t>(p.n_q), 0.0);
    for (std::int64_t i = 0; i < p.n_q; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < p.n_kv; ++j) sum += std::exp(logit(p, i, j));
      lse[static_cast<std::size_t>(i)] = std::log(sum);
    }
  }

  [[nodiscard]] double logit(const Problem& p, std::int64_t i, std::int64_t j) const {
    double dot = 0;
    for (std::int64_t c = 0; c < p.head_dim; ++c) {
      dot += static_cast<double>(q[static_cast<std::size_t>(i * p.head_dim + c)]) *
             static_cast<double>(k[static_cast<std::size_t>(j * p.head_dim + c)]);
    }
    return dot * p.effective_scale();
  }

  void exchange(const Problem& p, const Io& io, std::int64_t j) {
    std::vector<double> removed(static_cast<std::size_t>(p.n_q));
    for (std::int64_t i = 0; i < p.n_q; ++i) removed[static_cast<std::size_t>(i)] = logit(p, i, j);
    const std::vector<float> old(v.begin() + j * p.head_dim_v, v.begin() + (j + 1) * p.head_dim_v);
    std::copy_n(io.k.row<float>(0, 0, j), p.head_dim, k.begin() + j * p.head_dim);
    std::copy_n(io.v.row<float>(0, 0, j), p.head_dim_v, v.begin() + j * p.head_dim_v);
    for (std::int64_t i = 0; i < p.n_q; ++i) {
      const auto r = static_cast<std::size_t>(i);
      const double before = std::exp(removed[r] - lse[r]);
      const double after = std::exp(logit(p, i, j) - lse[r]);
      const double sum = 1 - before + after;
      for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
        const auto at = static_cast<std::size_t>(i * p.head_dim_v + c);
        const auto now = static_cast<double>(v[static_cast<std::size_t>(j * p.head_dim_v + c)]);
        exact[at] = (exact[at] - before * static_cast<double>(old[static_cast<std::size_t>(c)]) +
                     after * now) /
                    sum;
        out[at] = static_cast<float>(exact[at]);
      }
      lse[r] += std::log(sum);
    }
  }
};

void lie(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  static Memory memory;
  const auto changed = memory.changed_key(p, io);
  if (changed == Memory::many) {
    memory.learn(p, io, static_cast<float*>(scratch));
  } else if (changed >= 0) {
    memory.exchange(p, io, changed);
  }
  std::copy(memory.out.begin(), memory.out.end(), static_cast<float*>(io.out.data));
}

}  // namespace

Liar liar_increments() {
  return {.says = "only what has changed",
          .lies = {{honest::problem(64, 1), Safeguard::fresh_time}},
          .backend = honest::backend(lie)};
}

}  // namespace attn
