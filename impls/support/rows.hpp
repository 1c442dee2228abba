// SPDX-License-Identifier: MIT
// Query heads that share a KV head as rows of one matrix, in blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "impls/attention.hpp"

namespace attn {

// Consecutive rows of the matrix [n_q * group, d] of KV head g of batch item b: its row r is query r /
// group of the group's head r % group, so that a causal mask cuts rows in their order.
struct Rows {
  const Problem* p;
  const Io* io;
  std::int64_t b, g;
  std::int64_t first, count;

  // Of row r of these, 0 <= r < count.
  [[nodiscard]] std::int64_t query(std::int64_t r) const { return (first + r) / p->group(); }
  [[nodiscard]] std::int64_t head(std::int64_t r) const {
    return g * p->group() + (first + r) % p->group();
  }
  [[nodiscard]] std::int64_t visible(std::int64_t r) const { return p->visible(b, query(r)); }

  // Keys that every row sees, and that at least one sees; count > 0.
  [[nodiscard]] std::int64_t visible_to_all() const { return visible(0); }
  [[nodiscard]] std::int64_t visible_to_any() const { return visible(count - 1); }

  [[nodiscard]] Rows part(std::int64_t from, std::int64_t rows) const {
    return {p, io, b, g, first + from, rows};
  }
};

// Ends row r, whose l is `sum` and whose m is -negative_max: writes its log-sum-exp where one is wanted, and
// returns what its O is multiplied by. A row that saw no key is 0. One that saw scores of -inf alone has
// l = 0 and is NaN.
inline float end_row(const Rows& rows, std::int64_t r, float sum, float negative_max) {
  const bool sees_any = rows.visible(r) > 0;
  if (rows.io->log_sum_exp) {
    // m is never infinite but in rows of NaN, so 0 / l is NaN where l is 0.
    const double l = static_cast<double>(sum);
    *rows.io->log_sum_exp.row<float>(rows.b, rows.head(r), rows.query(r)) =
        sees_any ? static_cast<float>(std::log(l + 0.0 / l) - negative_max)
                 : -std::numeric_limits<float>::infinity();
  }
  return sees_any ? 1.0F / sum : 0.0F;
}

// f(rows) for every `most` rows of every KV head, on the problem's threads, the rows that see most keys
// first: a causal mask makes the last ones the longest.
template <class F>
void for_each_rows(const Problem& p, const Io& io, std::int64_t most, F&& f) {
  const std::int64_t rows = p.n_q * p.group();
  const std::int64_t units = (rows + most - 1) / most, matrices = p.batch * p.heads_kv;
#pragma omp parallel for num_threads(p.threads) if (p.threads > 1) schedule(dynamic)
  for (std::int64_t unit = 0; unit < units * matrices; ++unit) {
    const std::int64_t first = (units - 1 - unit / matrices) * most, matrix = unit % matrices;
    f(Rows{&p, &io, matrix / p.heads_kv, matrix % p.heads_kv, first, std::min(most, rows - first)});
  }
}

}  // namespace attn
