// SPDX-License-Identifier: MIT
// Idea: cpu.online for blocks of queries that lie in the lanes of vectors; K and V are read where they
//   lie, one broadcast an element, and nothing of them is packed.
// Math, for a block of queries (columns) and a tile of keys (rows): X = K Q^T - m, P = exp(X), l += sum
//   of P, O^T += V^T P. m moves, and O and l are rescaled, only where an X exceeds 14, so that P is at
//   most 2^20; O / l does not depend on m. The query heads of one KV head are rows of one matrix
//   (query, head of the group), so K and V are read once for them all.
// Memory traffic (elements): a block of w rows over s keys (the last row's) reads Q and writes O once
//   and packs and unpacks them, 2 w (d + d_v); reads K and V once, s (d + d_v); reads Q^T once a tile of
//   t keys, s / t w d; writes P and reads it once a tile of t columns, s w (1 + d_v / t); reads and
//   writes O^T once a block of keys.
// Why this shape: a tile of t keys or columns by v vectors keeps t v accumulators beside v vectors and a
//   broadcast. 16 registers hold 4 x 3 (6 x 2 and 12 x 1 at the end of a matrix), 32 hold 16 x 1: sums
//   enough to hide an FMA's latency of 4 on two ports. Maximum and sum run down the tile, lane by lane:
//   no horizontal operation, any n, any head_dim. Tuning log: README.md.
// Limits: f32, host, no probabilities.
// Source: cpu.online; FlashAttention-2 (Dao 2023) for the blocks, FlashAttention-4 for a maximum that
//   moves late. The transposed tile is this project's.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "impls/attention.hpp"
#include "impls/support/refusals.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "impls/simd/fused.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "impls/support/exp-inl.hpp"

// What every instruction set's code is handed, and what it tells of itself.
#ifndef ATTN_IMPLS_SIMD_FUSED_CPP_
#define ATTN_IMPLS_SIMD_FUSED_CPP_
namespace attn {
namespace {

// P of a block stays near L1. AVX2 on a Zen 3: 32 keys lose 6 %, 64 lose 2 %, 96 to 256 are alike.
constexpr std::int64_t key_block = 256;

struct Shape {
  const char* target;  // Highway's name of the instruction set
  std::int64_t width;  // rows of a whole block
  std::int64_t lanes;
  std::int64_t accumulators;  // of a tile
};

std::int64_t group_of(const Problem& p) { return p.heads / p.heads_kv; }

// Row r of a KV head's matrix is query r / group of the group's head r % group.
struct Rows {
  const Problem& p;
  const Io& io;
  std::int64_t b, g;
  std::int64_t first, count;
  [[nodiscard]] std::int64_t query(std::int64_t r) const { return (first + r) / group_of(p); }
  [[nodiscard]] std::int64_t head(std::int64_t r) const {
    return g * group_of(p) + (first + r) % group_of(p);
  }
  [[nodiscard]] std::int64_t visible(std::int64_t r) const { return p.visible(b, query(r)); }
};

}  // namespace
}  // namespace attn
#endif

HWY_BEFORE_NAMESPACE();
namespace attn::HWY_NAMESPACE {
namespace {

constexpr int accumulators = lanes == 16 ? 16 : 12;
constexpr int most_vectors = lanes == 16 ? 1 : 3;
constexpr float late = 14.0F;  // m moves where a score exceeds it by more: exp(14) is 2^20

// One block of rows: `vectors` vectors of queries.
template <int vectors>
class Block {
 public:
  // scratch [head_dim + head_dim_v + key_block, width]
  HWY_INLINE Block(const Rows& rows, float* scratch)
      : rows_(rows),
        d_(rows.p.head_dim),
        d_v_(rows.p.head_dim_v),
        q_(scratch),
        out_(q_ + d_ * width),
        p_(out_ + d_v_ * width),
        k_(rows.io.k.row<float>(rows.b, rows.g, 0)),
        v_(rows.io.v.row<float>(rows.b, rows.g, 0)) {}

  HWY_INLINE void attend() {
    read_queries();
    const std::int64_t common = rows_.visible(0), all = rows_.visible(rows_.count - 1);
    for (int r = 0; r < width; ++r) {
      negative_max_[r] = std::numeric_limits<float>::max();
      sum_[r] = 0.0F;
      visible_[r] =
          static_cast<float>(rows_.visible(std::min<std::int64_t>(r, rows_.count - 1)) - common);
    }
    masked_from_ = common;
    for (std::int64_t begin = 0; begin < common; begin += key_block) {
      step<false>(begin, std::min(begin + key_block, common));
    }
    for (std::int64_t begin = common; begin < all; begin += key_block) {
      step<true>(begin, std::min(begin + key_block, all));
    }
    write_results(all);
  }

 private:
  static constexpr int width = vectors * lanes;
  static constexpr int tile = accumulators / vectors;
  using Tile = FloatVector[vectors];

  // The block step: keys begin ... end - 1 enter the state (negative_max_, sum_, out_).
  template <bool masked>
  HWY_INLINE void step(std::int64_t begin, std::int64_t end) {
    std::int64_t j = begin;
    for (; j + tile <= end; j += tile) score<tile, masked>(begin, j);
    for (; j < end; ++j) score<1, masked>(begin, j);
    std::int64_t c = 0;
    for (; c + tile <= d_v_; c += tile) mix<tile, masked>(begin, end, c);
    for (; c < d_v_; ++c) mix<1, masked>(begin, end, c);
  }

  // x [keys, width] = K Q^T of keys j ... j + keys - 1.
  template <int keys>
  HWY_INLINE void multiply(std::int64_t j, Tile (&x)[keys]) const {
    const Floats f;
    const std::int64_t stride = rows_.io.k.token_stride;
    const float* HWY_RESTRICT k = k_ + j * stride;
    const float* HWY_RESTRICT q = q_;
    for (int t = 0; t < keys; ++t) {
      for (int v = 0; v < vectors; ++v) x[t][v] = hn::Zero(f);
    }
    for (std::int64_t c = 0; c < d_; ++c) {
      Tile column;
      for (int v = 0; v < vectors; ++v) column[v] = hn::Load(f, q + c * width + v * lanes);
      for (int t = 0; t < keys; ++t) {
        const FloatVector element = hn::Set(f, k[t * stride + c]);
        for (int v = 0; v < vectors; ++v) x[t][v] = hn::MulAdd(element, column[v], x[t][v]);
      }
    }
  }

  // The lanes of vector v that see key j.
  HWY_INLINE hn::Mask<Floats> sees(std::int64_t j, int v) const {
    const Floats f;
    return hn::Lt(hn::Set(f, static_cast<float>(j - masked_from_)),
                  hn::Load(f, visible_ + v * lanes));
  }

  // P of a tile and its sum, with m as it stands, or with another where it would grow too large.
  template <int keys, bool masked>
  HWY_INLINE void score(std::int64_t begin, std::int64_t j) {
    const Floats f;
    float* HWY_RESTRICT p = p_ + (j - begin) * width;
    if (j == 0) return score_and_move<keys, masked>(begin, j);
    Tile x[keys];
    multiply<keys>(j, x);
    FloatVector most = hn::Set(f, minus_infinity);
    for (int v = 0; v < vectors; ++v) {
      const FloatVector negative_max = hn::Load(f, negative_max_ + v * lanes);
      for (int t = 0; t < keys; ++t) {
        // Neither a sum that starts at -m nor a factor log2(e) in Q: equal scores must stay equal and
        // their differences exact, at 1e11 too.
        x[t][v] = hn::Add(x[t][v], negative_max);
        if (masked) x[t][v] = hn::IfThenElse(sees(j + t, v), x[t][v], hn::Set(f, minus_infinity));
        most = hn::Max(most, x[t][v]);
      }
    }
    if (HWY_UNLIKELY(!hn::AllFalse(f, hn::Gt(most, hn::Set(f, late))))) {
      return score_and_move<keys, masked>(begin, j);
    }
    weigh<keys, masked>(j, x, p);
  }

  // P = exp(x) where a lane sees the key, and its sum.
  template <int keys, bool masked>
  HWY_INLINE void weigh(std::int64_t j, const Tile (&x)[keys], float* HWY_RESTRICT p) {
    const Floats f;
    for (int v = 0; v < vectors; ++v) {
      FloatVector sum = hn::Load(f, sum_ + v * lanes);
      for (int t = 0; t < keys; ++t) {
        FloatVector weight = exp_(x[t][v]);
        if (masked) weight = hn::IfThenElseZero(sees(j + t, v), weight);
        hn::Store(weight, f, p + t * width + v * lanes);
        sum = hn::Add(sum, weight);
      }
      hn::Store(sum, f, sum_ + v * lanes);
    }
  }

  // The same with m raised to the tile's maximum first. Not inlined, and from the tile's beginning
  // again: a rare path that touches the accumulators would send them to the stack in the usual one.
  template <int keys, bool masked>
  HWY_NOINLINE void score_and_move(std::int64_t begin, std::int64_t j) {
    const Floats f;
    Tile x[keys];
    multiply<keys>(j, x);
    for (int v = 0; v < vectors; ++v) {
      const FloatVector before = hn::Load(f, negative_max_ + v * lanes);
      FloatVector negative_max = before;
      for (int t = 0; t < keys; ++t) {
        if (masked) x[t][v] = hn::IfThenElse(sees(j + t, v), x[t][v], hn::Set(f, minus_infinity));
        negative_max = hn::Min(negative_max, hn::Neg(x[t][v]));
      }
      hn::Store(negative_max, f, negative_max_ + v * lanes);
      for (int t = 0; t < keys; ++t) x[t][v] = hn::Add(x[t][v], negative_max);
      const FloatVector factor = exp_(hn::Sub(negative_max, before));
      rescale(factor, sum_ + v * lanes, 1);
      rescale(factor, p_ + v * lanes, j - begin);
      if (begin > 0) rescale(factor, out_ + v * lanes, d_v_);
    }
    weigh<keys, masked>(j, x, p_ + (j - begin) * width);
  }

  static HWY_INLINE void rescale(FloatVector factor, float* values, std::int64_t count) {
    const Floats f;
    for (std::int64_t i = 0; i < count; ++i) {
      hn::Store(hn::Mul(factor, hn::Load(f, values + i * width)), f, values + i * width);
    }
  }

  // out_ [columns, width] of columns c ... c + columns - 1 += V^T P over keys begin ... end - 1. Behind
  // the mask V may be NaN, which a weight of 0 would not silence: there V is 0 too.
  template <int columns, bool masked>
  HWY_INLINE void mix(std::int64_t begin, std::int64_t end, std::int64_t c) {
    const Floats f;
    const std::int64_t stride = rows_.io.v.token_stride;
    const float* HWY_RESTRICT value = v_ + begin * stride + c;
    const float* HWY_RESTRICT p = p_;
    float* HWY_RESTRICT out = out_ + c * width;
    Tile sums[columns];
    for (int t = 0; t < columns; ++t) {
      for (int v = 0; v < vectors; ++v) {
        sums[t][v] = begin == 0 ? hn::Zero(f) : hn::Load(f, out + t * width + v * lanes);
      }
    }
    for (std::int64_t j = begin; j < end; ++j, value += stride, p += width) {
      Tile weight;
      for (int v = 0; v < vectors; ++v) weight[v] = hn::Load(f, p + v * lanes);
      for (int t = 0; t < columns; ++t) {
        const FloatVector element = hn::Set(f, value[t]);
        for (int v = 0; v < vectors; ++v) {
          sums[t][v] = hn::MulAdd(masked ? hn::IfThenElseZero(sees(j, v), element) : element,
                                  weight[v], sums[t][v]);
        }
      }
    }
    for (int t = 0; t < columns; ++t) {
      for (int v = 0; v < vectors; ++v) hn::Store(sums[t][v], f, out + t * width + v * lanes);
    }
  }

  // q_ [d, width] = Q^T scale; rows past the last repeat it.
  HWY_INLINE void read_queries() {
    const float scale = static_cast<float>(rows_.p.effective_scale());
    const float* q[width];
    for (int r = 0; r < width; ++r) {
      const std::int64_t from = std::min<std::int64_t>(r, rows_.count - 1);
      q[r] = rows_.io.q.row<float>(rows_.b, rows_.head(from), rows_.query(from));
    }
    const std::int64_t whole = in_squares(d_);
#if HWY_TARGET != HWY_SCALAR
    const Four f;
    for (std::int64_t c = 0; c < whole; c += square) {
      for (int r = 0; r < width; r += square) {
        hn::Vec<Four> x[square];
        for (int k = 0; k < square; ++k) {
          x[k] = hn::Mul(hn::LoadU(f, q[r + k] + c), hn::Set(f, scale));
        }
        transpose(x);
        for (int k = 0; k < square; ++k) hn::Store(x[k], f, q_ + (c + k) * width + r);
      }
    }
#endif
    for (std::int64_t c = whole; c < d_; ++c) {
      for (int r = 0; r < width; ++r) q_[c * width + r] = q[r][c] * scale;
    }
  }

  // A row that saw no key is 0. One that saw scores of -inf alone has l = 0 and is NaN.
  HWY_INLINE void write_results(std::int64_t all) {
    float* out[width] = {};
    HWY_ALIGN float inverse[width] = {};
    for (int r = 0; r < rows_.count; ++r) {
      const std::int64_t i = rows_.query(r), h = rows_.head(r);
      const bool sees_any = rows_.visible(r) > 0;
      out[r] = rows_.io.out.row<float>(rows_.b, h, i);
      inverse[r] = sees_any ? 1.0F / sum_[r] : 0.0F;
      if (!rows_.io.log_sum_exp) continue;
      // m is never infinite but in rows of NaN, so 0 / l is NaN where l is 0.
      const double sum = static_cast<double>(sum_[r]);
      *rows_.io.log_sum_exp.row<float>(rows_.b, h, i) =
          sees_any ? static_cast<float>(std::log(sum + 0.0 / sum) - negative_max_[r])
                   : minus_infinity;
    }
    if (all == 0) std::fill_n(out_, d_v_ * width, 0.0F);
    const std::int64_t whole_rows = in_squares(rows_.count), whole = in_squares(d_v_);
#if HWY_TARGET != HWY_SCALAR
    const Four f;
    for (std::int64_t r = 0; r < whole_rows; r += square) {
      for (std::int64_t c = 0; c < whole; c += square) {
        hn::Vec<Four> x[square];
        for (int k = 0; k < square; ++k) {
          x[k] = hn::Mul(hn::Load(f, out_ + (c + k) * width + r), hn::Load(f, inverse + r));
        }
        transpose(x);
        for (int k = 0; k < square; ++k) hn::StoreU(x[k], f, out[r + k] + c);
      }
    }
#endif
    for (std::int64_t r = 0; r < rows_.count; ++r) {
      for (std::int64_t c = r < whole_rows ? whole : 0; c < d_v_; ++c) {
        out[r][c] = out_[c * width + r] * inverse[r];
      }
    }
  }

  // Q goes in and O comes out in squares of 4 x 4, which every set of vector instructions transposes
  // alike; the rest of their rows and columns one by one.
  static constexpr int square = 4;
  static std::int64_t in_squares(std::int64_t count) {
    return lanes < square ? 0 : count / square * square;
  }
#if HWY_TARGET != HWY_SCALAR
  using Four = hn::Full128<float>;
  static HWY_INLINE void transpose(hn::Vec<Four> (&x)[square]) {
    const Four f;
    const auto low_01 = hn::InterleaveLower(f, x[0], x[1]);
    const auto low_23 = hn::InterleaveLower(f, x[2], x[3]);
    const auto high_01 = hn::InterleaveUpper(f, x[0], x[1]);
    const auto high_23 = hn::InterleaveUpper(f, x[2], x[3]);
    x[0] = hn::ConcatLowerLower(f, low_23, low_01);
    x[1] = hn::ConcatUpperUpper(f, low_23, low_01);
    x[2] = hn::ConcatLowerLower(f, high_23, high_01);
    x[3] = hn::ConcatUpperUpper(f, high_23, high_01);
  }
#endif

  static constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

  const Rows& rows_;
  const std::int64_t d_, d_v_;
  float *const q_, *const out_, *const p_;
  const float *const k_, *const v_;
  const Exp exp_;
  std::int64_t masked_from_ = 0;  // the lanes see differently many keys from here on
  HWY_ALIGN float negative_max_[width];
  HWY_ALIGN float sum_[width];
  HWY_ALIGN float visible_[width];  // keys from masked_from_ on; less than `width`, so exact
};

void attend(const Rows& rows, float* scratch) {
  const std::int64_t vectors = (rows.count + lanes - 1) / lanes;
  if constexpr (most_vectors == 3) {
    if (vectors == 3) return Block<3>(rows, scratch).attend();
    if (vectors == 2) return Block<2>(rows, scratch).attend();
  }
  Block<1>(rows, scratch).attend();
}

Shape shape() { return {hwy::TargetName(HWY_TARGET), most_vectors * lanes, lanes, accumulators}; }

}  // namespace
}  // namespace attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn {
namespace {

HWY_EXPORT(attend);
HWY_EXPORT(shape);

Shape shape() { return HWY_DYNAMIC_DISPATCH(shape)(); }

// f(block [rows of one KV head]) for every block, the ones that see most keys first.
template <class F>
void for_each_block(const Problem& p, const Io& io, std::int64_t width, F&& f) {
  const std::int64_t rows = p.n_q * group_of(p);
  const std::int64_t blocks = (rows + width - 1) / width, matrices = p.batch * p.heads_kv;
#pragma omp parallel for num_threads(p.threads) if (p.threads > 1) schedule(dynamic)
  for (std::int64_t unit = 0; unit < blocks * matrices; ++unit) {
    const std::int64_t first = (blocks - 1 - unit / matrices) * width;
    const std::int64_t matrix = unit % matrices;
    f(Rows{p, io, matrix / p.heads_kv, matrix % p.heads_kv, first, std::min(width, rows - first)});
  }
}

std::int64_t scratch_of_thread(const Problem& p, const Shape& s) {
  return (p.head_dim + p.head_dim_v + key_block) * s.width;
}

std::optional<Refusal> refuses(const Problem& p) { return refuse_unless_plain_core(p); }

Cost cost(const Problem& problem) {
  const Shape s = shape();
  Problem p = problem;
  p.threads = 1;
  Cost cost{.exps_at_least = true};
  for_each_block(p, {}, s.width, [&](const Rows& rows) {
    const std::int64_t vectors = (rows.count + s.lanes - 1) / s.lanes, width = vectors * s.lanes;
    const auto tiles = [t = s.accumulators / vectors](std::int64_t count) {
      return count / t + count % t;
    };
    const std::int64_t common = rows.visible(0), keys = rows.visible(rows.count - 1);
    const std::int64_t whole = common / key_block, rest = common % key_block;
    const std::int64_t steps = whole + (rest > 0) + (keys > common);
    const std::int64_t key_tiles = whole * tiles(key_block) + tiles(rest) + tiles(keys - common);
    cost.flops += 2 * width * keys * (p.head_dim + p.head_dim_v);
    cost.exps += width * (keys + (keys > 0));
    cost.bytes += 4 * ((rows.count + width + keys) * (p.head_dim + p.head_dim_v) +
                       width * (key_tiles * p.head_dim + keys * (1 + tiles(p.head_dim_v)) +
                                std::max<std::int64_t>(0, 2 * steps - 1) * p.head_dim_v));
  });
  cost.scratch_bytes = 4 * problem.threads * scratch_of_thread(p, s);
  return cost;
}

void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  const Shape s = shape();
  io.phase("fused");
  for_each_block(p, io, s.width, [&](const Rows& rows) {
    HWY_DYNAMIC_DISPATCH(attend)
    (rows, static_cast<float*>(scratch) + omp_get_thread_num() * scratch_of_thread(p, s));
  });
  io.phase("");
}

std::string resolved_impl(const Problem&) {
  const Shape s = shape();
  return std::string("Highway ") + s.target + ", " +
         std::to_string(s.accumulators * s.lanes / s.width) + " keys x " + std::to_string(s.width) +
         " queries";
}

}  // namespace

Backend simd_fused() {
  return {.name = "simd.fused",
          .threaded = true,
          .exploits_sharing = true,
          .layer_default = true,
          .offers_log_sum_exp = true,
          .refuses = refuses,
          .cost = cost,
          .run = run,
          .resolved_impl = resolved_impl};
}

}  // namespace attn
#endif
