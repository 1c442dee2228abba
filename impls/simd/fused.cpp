// SPDX-License-Identifier: MIT
// Idea: cpu.online for blocks of queries that lie in the lanes of vectors; K and V are read where they
//   lie, one broadcast an element, and nothing of them is packed.
// Math, for a block of queries (columns) and a tile of keys (rows): X = K Q^T - m, P = exp(X), l += sum
//   of P, O^T += V^T P. m moves, and O and l are rescaled, only where an X exceeds 14, so that P is at
//   most 2^20; O / l does not depend on m. The query heads of one KV head are rows of one matrix
//   (query, head of the group), so K and V are read once for them all.
// Memory traffic (elements): a block of w rows over s keys (the last row's) reads Q and writes O once
//   and packs and unpacks them, 2 w (d + d_v), clearing O^T first, w d_v; reads K and V once, s (d +
//   d_v); reads Q^T once a tile of t keys, s / t w d; writes scores, reads them, writes weights and reads
//   these once a tile of t columns, s w (3 + d_v / t); reads and writes O^T once a block of keys.
//   16-bit K and V are converted once for the blocks that walk together: read, written, read.
// Why this shape: a tile of t keys or columns by v vectors keeps t v accumulators beside v vectors and a
//   broadcast. 16 registers hold 4 x 3 (6 x 2 and 12 x 1 at the end of a matrix), 32 hold 16 x 1: sums
//   enough to hide an FMA's latency of 4 on two ports. Maximum and sum run down the tile, lane by lane:
//   no horizontal operation, any n, any head_dim. Tuning log: README.md.
// Limits: f32 arithmetic (16-bit tensors are converted), host, no probabilities.
// Source: cpu.online; FlashAttention-2 (Dao 2023) for the blocks, FlashAttention-4 for a maximum that
//   moves late. The transposed tile is this project's.
#include <omp.h>

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>

#include "impls/attention.hpp"
#include "impls/support/half.hpp"
#include "impls/support/rows.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "impls/simd/fused.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "impls/support/exp-inl.hpp"
#include "impls/support/transpose-inl.hpp"

// What every instruction set's code is handed, and what it tells of itself.
#ifndef ATTN_IMPLS_SIMD_FUSED_CPP_
#define ATTN_IMPLS_SIMD_FUSED_CPP_
namespace attn {
namespace {

// P of a block stays near L1. AVX2 on a Zen 3: 32 keys lose 6 %, 64 lose 2 %, 96 to 256 are alike.
constexpr std::int64_t key_block = 256;
constexpr std::int64_t most_together = 4;

struct Shape {
  const char* target;  // Highway's name of the instruction set
  std::int64_t width;  // rows of a whole block
  std::int64_t lanes;
  std::int64_t accumulators;  // of a tile
};

// Blocks that walk over a block of keys together, so that it comes from far away, or is converted, once
// for them all, wherever every thread still has several such walks.
std::int64_t together(const Problem& p, std::int64_t width) {
  const std::int64_t rows = p.n_q * p.group() * p.heads_kv * p.batch;
  const bool many = rows >= 8 * p.threads * most_together * width;
  return many || p.dtype != DType::f32 ? most_together : 1;
}

// Scratch of a thread, in floats.
struct Scratch {
  std::int64_t keys;   // K and V of a block of keys, converted [key_block, d + d_v]
  std::int64_t p;      // [key_block, width]
  std::int64_t block;  // Q^T and O^T of a block [d + d_v, width]
  std::int64_t total;
  Scratch(const Problem& problem, std::int64_t width) {
    const std::int64_t dims = problem.head_dim + problem.head_dim_v;
    keys = problem.dtype == DType::f32 ? 0 : key_block * dims;
    p = key_block * width;
    block = dims * width;
    total = keys + p + most_together * block;  // the same at every n
  }
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
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// Consecutive keys of one KV head: K [count, d], V [count, d_v].
struct Keys {
  const float *k, *v;
  std::int64_t k_stride, v_stride, count;
  [[nodiscard]] Keys part(std::int64_t from, std::int64_t to) const {
    return {k + from * k_stride, v + from * v_stride, k_stride, v_stride, to - from};
  }
};

// `vectors` vectors of rows and their state after the keys so far: m, l and O^T.
template <int vectors>
class Block {
 public:
  static constexpr int width = vectors * lanes;

  HWY_INLINE Block() {}

  // scratch [d + d_v, width]: Q^T and O^T.
  template <class T>
  HWY_INLINE void begin(const Rows& rows, float* scratch) {
    rows_ = rows;
    d_ = rows.p->head_dim, d_v_ = rows.p->head_dim_v;
    q_ = scratch, out_ = scratch + d_ * width;
    common_ = rows.visible_to_all(), all_ = rows.visible_to_any();
    for (int r = 0; r < width; ++r) {
      negative_max_[r] = std::numeric_limits<float>::max();
      sum_[r] = 0.0F;
      visible_[r] =
          static_cast<float>(rows.visible(std::min<std::int64_t>(r, rows.count - 1)) - common_);
    }
    const T* q[width];
    for (int r = 0; r < width; ++r) {  // rows past the last repeat it
      const std::int64_t from = std::min<std::int64_t>(r, rows.count - 1);
      q[r] = rows.io->q.row<T>(rows.b, rows.head(from), rows.query(from));
    }
    rows_to_columns(q, d_, static_cast<float>(rows.p->effective_scale()), q_);
    std::fill_n(out_, d_v_ * width, 0.0F);
  }

  // The block step: keys first, first + 1, ... enter the state as far as the rows see them.
  // p [keys.count, width].
  HWY_NOINLINE void step(const Keys& keys, std::int64_t first, float* p) {
    const std::int64_t common = std::clamp<std::int64_t>(common_ - first, 0, keys.count);
    const std::int64_t all = std::clamp<std::int64_t>(all_ - first, 0, keys.count);
    if (common > 0) walk<false>(keys.part(0, common), 0, p);
    if (all > common) walk<true>(keys.part(common, all), first + common - common_, p);
  }

  template <class T>
  HWY_INLINE void end() {
    T* out[width] = {};
    HWY_ALIGN float inverse[width] = {};
    for (int r = 0; r < rows_.count; ++r) {
      out[r] = rows_.io->out.row<T>(rows_.b, rows_.head(r), rows_.query(r));
      inverse[r] = end_row(rows_, r, sum_[r], negative_max_[r]);
    }
    columns_to_rows(out_, d_v_, inverse, rows_.count, out);
  }

 private:
  static constexpr int tile = accumulators / vectors;
  // With registers to spare the exponential of one tile goes between the multiply-adds of the next.
  static constexpr bool interleaved = lanes == 16;
  using Tile = FloatVector[vectors];

  // behind: the number of the first key among those that not every row sees.
  template <bool masked>
  HWY_INLINE void walk(const Keys& keys, std::int64_t behind, float* p) {
    std::int64_t done = 0;  // rows of P that are weights; the ones after it are scores
    score_tiles<tile, masked>(keys, behind, p, 0, done);
    weigh(p, done, keys.count);
    mix_tiles<tile, masked>(keys, behind, p, 0);
  }

  // Tiles of `count` keys from key j on as long as they last, then of half as many.
  template <int count, bool masked>
  HWY_INLINE void score_tiles(const Keys& keys, std::int64_t behind, float* p, std::int64_t j,
                              std::int64_t& done) {
    for (; j + count <= keys.count; j += count) score<count, masked>(keys, behind, p, j, done);
    if constexpr (count > 1) score_tiles<count / 2, masked>(keys, behind, p, j, done);
  }
  template <int count, bool masked>
  HWY_INLINE void mix_tiles(const Keys& keys, std::int64_t behind, const float* p, std::int64_t c) {
    for (; c + count <= d_v_; c += count) mix<count, masked>(keys, behind, p, c);
    if constexpr (count > 1) mix_tiles<count / 2, masked>(keys, behind, p, c);
  }

  // The lanes of vector v that see key `behind`.
  HWY_INLINE hn::Mask<Floats> sees(std::int64_t behind, int v) const {
    const Floats f;
    return hn::Lt(hn::Set(f, static_cast<float>(behind)), hn::Load(f, visible_ + v * lanes));
  }

  // Rows j ... j + count - 1 of P become K Q^T, -inf behind the mask, and m is raised where one of
  // them exceeds it by too much.
  template <int count, bool masked>
  HWY_INLINE void score(const Keys& keys, std::int64_t behind, float* HWY_RESTRICT p,
                        std::int64_t j, std::int64_t& done) {
    const Floats f;
    const std::int64_t stride = keys.k_stride;
    const float* HWY_RESTRICT k = keys.k + j * stride;
    const float* HWY_RESTRICT q = q_;
    Tile x[count];
    for (int t = 0; t < count; ++t) {
      for (int v = 0; v < vectors; ++v) x[t][v] = hn::Zero(f);
    }
    const auto multiply = [&](std::int64_t from, std::int64_t to) HWY_ATTR {
      for (std::int64_t c = from; c < to; ++c) {
        Tile column;
        load(column, q + c * width);
        for (int t = 0; t < count; ++t) {
          const FloatVector element = hn::Set(f, k[t * stride + c]);
          for (int v = 0; v < vectors; ++v) x[t][v] = hn::MulAdd(element, column[v], x[t][v]);
        }
      }
    };
    if (interleaved && count == tile && done + count == j) {
      Tile sum;
      load(sum, sum_);
      for (int t = 0; t < count; ++t) {
        weigh_row(p + (done + t) * width, sum);
        multiply(d_ * t / count, d_ * (t + 1) / count);
      }
      store(sum, sum_);
      done = j;
    } else {
      multiply(0, d_);
    }
    Tile most;
    for (int v = 0; v < vectors; ++v) {
      for (int t = 0; t < count; ++t) {
        if (masked) {
          x[t][v] = hn::IfThenElse(sees(behind + j + t, v), x[t][v], hn::Set(f, minus_infinity));
        }
        hn::Store(x[t][v], f, p + (j + t) * width + v * lanes);
        most[v] = t == 0 ? x[t][v] : hn::Max(most[v], x[t][v]);
      }
      most[v] = hn::Add(most[v], hn::Load(f, negative_max_ + v * lanes));
      if (v > 0) most[0] = hn::Max(most[0], most[v]);
    }
    if (HWY_UNLIKELY(!hn::AllFalse(f, hn::Gt(most[0], hn::Set(f, late))))) {
      weigh(p, done, j);
      done = j;
      raise(p, j, count);
    }
    if constexpr (!interleaved) weigh(p, j, j + count), done = j + count;
  }

  // Rows from ... to - 1 of P: scores become weights, and enter l.
  HWY_INLINE void weigh(float* p, std::int64_t from, std::int64_t to) {
    Tile sum;
    load(sum, sum_);
    for (std::int64_t j = from; j < to; ++j) weigh_row(p + j * width, sum);
    store(sum, sum_);
  }
  // Neither a product that starts at -m nor a factor log2(e) in Q: equal scores must stay equal and
  // their differences exact, at 1e11 too.
  HWY_INLINE void weigh_row(float* HWY_RESTRICT row, Tile& sum) const {
    const Floats f;
    for (int v = 0; v < vectors; ++v) {
      const FloatVector weight =
          exp_(hn::Add(hn::Load(f, row + v * lanes), hn::Load(f, negative_max_ + v * lanes)));
      hn::Store(weight, f, row + v * lanes);
      sum[v] = hn::Add(sum[v], weight);
    }
  }

  // m rises to the largest of rows j ... j + count - 1 of P; what was weighed with the old m follows.
  // Not inlined: a rare path would send the usual one's accumulators to the stack.
  HWY_NOINLINE void raise(float* p, std::int64_t j, std::int64_t count) {
    const Floats f;
    for (int v = 0; v < vectors; ++v) {
      const FloatVector before = hn::Load(f, negative_max_ + v * lanes);
      FloatVector after = before;
      for (std::int64_t t = j; t < j + count; ++t) {
        after = hn::Min(after, hn::Neg(hn::Load(f, p + t * width + v * lanes)));
      }
      hn::Store(after, f, negative_max_ + v * lanes);
      const FloatVector factor = exp_(hn::Sub(after, before));
      rescale(factor, sum_ + v * lanes, 1);
      rescale(factor, p + v * lanes, j);
      rescale(factor, out_ + v * lanes, d_v_);
    }
  }

  static HWY_INLINE void load(Tile& to, const float* from) {
    for (int v = 0; v < vectors; ++v) to[v] = hn::Load(Floats(), from + v * lanes);
  }
  static HWY_INLINE void store(const Tile& from, float* to) {
    for (int v = 0; v < vectors; ++v) hn::Store(from[v], Floats(), to + v * lanes);
  }

  static HWY_INLINE void rescale(FloatVector factor, float* values, std::int64_t count) {
    const Floats f;
    for (std::int64_t i = 0; i < count; ++i) {
      hn::Store(hn::Mul(factor, hn::Load(f, values + i * width)), f, values + i * width);
    }
  }

  // O^T of columns c ... c + count - 1 += V^T P. Behind the mask V may be NaN, which a weight of 0
  // would not silence: there V is 0 too.
  template <int count, bool masked>
  HWY_INLINE void mix(const Keys& keys, std::int64_t behind, const float* HWY_RESTRICT p,
                      std::int64_t c) {
    const Floats f;
    const float* HWY_RESTRICT value = keys.v + c;
    float* HWY_RESTRICT out = out_ + c * width;
    Tile sums[count];
    for (int t = 0; t < count; ++t) load(sums[t], out + t * width);
    for (std::int64_t j = 0; j < keys.count; ++j, value += keys.v_stride, p += width) {
      Tile weight;
      load(weight, p);
      for (int t = 0; t < count; ++t) {
        const FloatVector element = hn::Set(f, value[t]);
        for (int v = 0; v < vectors; ++v) {
          sums[t][v] =
              hn::MulAdd(masked ? hn::IfThenElseZero(sees(behind + j, v), element) : element,
                         weight[v], sums[t][v]);
        }
      }
    }
    for (int t = 0; t < count; ++t) store(sums[t], out + t * width);
  }

  Rows rows_;
  std::int64_t d_, d_v_;
  std::int64_t common_, all_;  // keys that every row sees, and that one sees
  float *q_, *out_;
  Exp exp_;
  HWY_ALIGN float negative_max_[width];
  HWY_ALIGN float sum_[width];
  HWY_ALIGN float visible_[width];  // keys from common_ on; less than `width`, so exact
};

// Keys first ... first + count - 1 as they lie, or converted into buffer [count, d + d_v].
template <class T>
Keys keys_of(const Rows& rows, std::int64_t first, std::int64_t count, float* buffer) {
  const auto floats = [&](const ConstView& view, std::int64_t dim, float* to,
                          std::int64_t& stride) {
    const T* from = view.row<T>(rows.b, rows.g, first);
    if constexpr (std::is_same_v<T, float>) {
      stride = view.token_stride;
      return from;
    } else {
      stride = dim;
      for (std::int64_t j = 0; j < count; ++j, from += view.token_stride) {
        for (std::int64_t c = 0; c < dim; ++c) to[j * dim + c] = from[c];
      }
      return static_cast<const float*>(to);
    }
  };
  const std::int64_t d = rows.p->head_dim;
  Keys keys{};
  keys.k = floats(rows.io->k, d, buffer, keys.k_stride);
  keys.v = floats(rows.io->v, rows.p->head_dim_v, buffer + count * d, keys.v_stride);
  keys.count = count;
  return keys;
}

// Whole blocks of `vectors` vectors and at most one that is not, all walking together.
template <class T, int vectors>
void attend(const Rows& rows, float* scratch) {
  constexpr std::int64_t width = Block<vectors>::width;
  const Scratch sizes(*rows.p, most_vectors * lanes);
  float* const p = scratch + sizes.keys;
  Block<vectors> blocks[most_together];
  std::int64_t count = 0;
  for (std::int64_t first = 0; first < rows.count; first += width, ++count) {
    blocks[count].template begin<T>(rows.part(first, std::min(width, rows.count - first)),
                                    p + sizes.p + count * sizes.block);
  }
  const std::int64_t all = rows.visible_to_any();
  for (std::int64_t first = 0; first < all; first += key_block) {
    const Keys keys = keys_of<T>(rows, first, std::min(key_block, all - first), scratch);
    for (std::int64_t i = 0; i < count; ++i) blocks[i].step(keys, first, p);
  }
  for (std::int64_t i = 0; i < count; ++i) blocks[i].template end<T>();
}

// A last block that is not whole has as many vectors as it needs, and walks alone.
void attend_rows(const Rows& rows, float* scratch) {
  with_element(rows.p->dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    const std::int64_t rest = rows.count % (most_vectors * lanes), whole = rows.count - rest;
    if (whole > 0) attend<T, most_vectors>(rows.part(0, whole), scratch);
    const Rows last = rows.part(whole, rest);
    if constexpr (most_vectors == 3) {
      if (rest > 2 * lanes) return attend<T, 3>(last, scratch);
      if (rest > lanes) return attend<T, 2>(last, scratch);
    }
    if (rest > 0) attend<T, 1>(last, scratch);
  });
}

Shape shape() { return {hwy::TargetName(HWY_TARGET), most_vectors * lanes, lanes, accumulators}; }

}  // namespace
}  // namespace attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn {
namespace {

HWY_EXPORT(attend_rows);
HWY_EXPORT(shape);

Shape shape() { return HWY_DYNAMIC_DISPATCH(shape)(); }

std::optional<Refusal> refuses(const Problem& p) {
  if (p.memory != Memory::host) return Refusal{.sentence = "reads host memory only"};
  return std::nullopt;
}

Cost cost(const Problem& problem) {
  const Shape s = shape();
  Problem p = problem;
  p.threads = 1;
  const std::int64_t d = p.head_dim, d_v = p.head_dim_v, element = bytes_per_element(p.dtype);
  Cost cost{.exps_at_least = true};
  for_each_rows(p, {}, s.width, [&](const Rows& rows) {
    const std::int64_t vectors = (rows.count + s.lanes - 1) / s.lanes, width = vectors * s.lanes;
    const auto tiles = [tile = s.accumulators / vectors](std::int64_t count) {
      std::int64_t all = 0;
      for (std::int64_t t = tile; t > 0; count %= t, t /= 2) all += count / t;
      return all;
    };
    const std::int64_t common = rows.visible_to_all(), keys = rows.visible_to_any();
    const auto walk = [&](std::int64_t from, std::int64_t to) {
      if (to <= from) return;
      cost.bytes += 4 * width * (tiles(to - from) * d + 2 * d_v);
    };
    for (std::int64_t first = 0; first < keys; first += key_block) {
      const std::int64_t last = std::min(first + key_block, keys);
      walk(first, std::min(last, common));
      walk(std::max(first, common), last);
    }
    cost.flops += 2 * width * keys * (d + d_v);
    cost.exps += width * (keys + (keys > 0));
    cost.bytes += element * rows.count * (d + d_v) +
                  4 * (width * (d + 2 * d_v + keys * (3 + tiles(d_v))) + keys * (d + d_v));
  });
  if (p.dtype != DType::f32) {
    for_each_rows(p, {}, together(p, s.width) * s.width, [&](const Rows& rows) {
      cost.bytes += (element + 4) * rows.visible_to_any() * (d + d_v);
    });
  }
  cost.scratch_bytes = 4 * problem.threads * Scratch(problem, s.width).total;
  return cost;
}

void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  const Shape s = shape();
  const std::int64_t of_thread = Scratch(p, s.width).total;
  io.phase("fused");
  for_each_rows(p, io, together(p, s.width) * s.width, [&](const Rows& rows) {
    HWY_DYNAMIC_DISPATCH(attend_rows)
    (rows, static_cast<float*>(scratch) + omp_get_thread_num() * of_thread);
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
