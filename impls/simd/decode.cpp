// SPDX-License-Identifier: MIT
// Idea: a few queries against a long cache: the keys are split over the threads, each row of K and V is
//   read once for all the query rows of its KV head, and the parts are merged by their log-sum-exp.
// Math: per part, P = exp(S - m), l = sum of P, O = P V, with m as late as in simd.fused; over the parts
//   with M = max of m, w = exp(m - M): out = sum of w O / sum of w l.
// Memory traffic (elements, per KV head, r query rows padded to R): Q read once, written and read once a
//   block of 8 keys in f32; K and V read once a group of four rows; P written and read thrice; O read
//   and written once a block; the parts written, read and merged once.
// Why this shape: one query has nothing to fill lanes with, so vectors run along d, and a row of K in
//   registers meets four query rows: 8 sums of products (16 where there are 32 registers) hide an FMA's
//   latency of 4 on two ports. Four vectors of sums become one of four scores by a transposition.
//   P lies [key, row], so that m and l are vertical in vectors of whole keys. Blocks of 8 keys keep both
//   streams alive for the prefetcher: on a Zen 4 blocks of 32 reached 0.83 of the read bandwidth, of 8
//   0.89, both with the keys 128 ahead fetched to L2; fetched to L1 they lost a third (prototype).
// Limits: at most 16 queries; f32 arithmetic (16-bit tensors are converted), host, no probabilities.
// Source: FlashDecoding (Dao et al. 2023) for the split; the block is this project's.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "impls/attention.hpp"
#include "impls/support/half.hpp"
#include "impls/support/rows.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "impls/simd/decode.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "impls/support/exp-inl.hpp"
#include "impls/support/transpose-inl.hpp"

#ifndef ATTN_IMPLS_SIMD_DECODE_CPP_
#define ATTN_IMPLS_SIMD_DECODE_CPP_
namespace attn {
namespace {

constexpr std::int64_t most_queries = 16;
constexpr std::int64_t key_block = 8;
constexpr std::int64_t ahead = 128;  // keys between the one that is read and the one fetched to L2
constexpr std::int64_t least_part = 64;  // keys, for which a thread is worth its merging

// What one thread does at a time: the rows of one KV head over some of its keys.
struct Part {
  Rows rows;
  std::int64_t begin, end;
  float* out;  // [rows, d_v], not divided by l yet
  float* max;  // [rows]; the least float where no key had any weight
  float* sum;  // [rows]
};

// Parts of each KV head: as few as give every thread as many.
std::int64_t parts(const Problem& p) {
  const std::int64_t matrices = std::max<std::int64_t>(1, p.batch * p.heads_kv);
  const std::int64_t wanted = p.threads / std::gcd(matrices, std::int64_t{p.threads});
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, p.n_kv / least_part));
}

std::int64_t in_fours(std::int64_t rows) { return (rows + 3) / 4 * 4; }

constexpr std::int64_t state_of_group = 2 * 16;  // floats: m and l, a vector each

// Scratch in floats: of every thread m and l of all groups of four rows, then Q [rows, d] in f32, a
// multiple of a cache line; then of every part its out, max and sum.
struct Sizes {
  std::int64_t states, thread, part;
  explicit Sizes(const Problem& p) {
    const std::int64_t rows = in_fours(p.n_q * p.group());
    states = rows / 4 * state_of_group;
    thread = (states + rows * p.head_dim + 15) / 16 * 16;
    part = rows * (p.head_dim_v + 2);
  }
};

struct Shape {
  const char* target;  // Highway's name of the instruction set
  std::int64_t lanes;
  std::int64_t accumulators;  // of a tile
};

}  // namespace
}  // namespace attn
#endif

HWY_BEFORE_NAMESPACE();
namespace attn::HWY_NAMESPACE {
namespace {

constexpr int accumulators = lanes == 16 ? 16 : 8;
constexpr float late = 14.0F;  // m moves where a score exceeds it by more: exp(14) is 2^20
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

HWY_INLINE FloatVector load(const float* from) { return hn::LoadU(Floats(), from); }
HWY_INLINE FloatVector load(const BFloat16* from) {
  const hn::Rebind<hwy::bfloat16_t, Floats> narrow;
  return hn::PromoteTo(Floats(), hn::LoadU(narrow, reinterpret_cast<const hwy::bfloat16_t*>(from)));
}
// Highway 1.0.3's own conversion makes a number of an infinity where the CPU has none (F16C).
HWY_INLINE FloatVector load(const Float16* from) {
  HWY_ALIGN float values[lanes];
  std::copy_n(from, lanes, values);
  return hn::Load(Floats(), values);
}

// `rows` query rows against a part of the keys: their m, l and O. T is the type of K and V.
template <class T, int rows>
class Group {
 public:
  // q [rows of the part, d]; state [2, lanes]: -m and l of each lane.
  HWY_INLINE Group(const Part& part, const Exp& exp, std::int64_t first, const float* q,
                   float* state)
      : part_(part),
        exp_(exp),
        first_(first),
        q_(q + first * d()),
        negative_max_(state),
        sum_(state + lanes),
        out_(part.out + first * d_v()) {}

  HWY_INLINE void begin() {
    std::fill_n(negative_max_, lanes, std::numeric_limits<float>::max());
    std::fill_n(sum_, lanes, 0.0F);
    std::fill_n(out_, rows * d_v(), 0.0F);
  }

  // The keys j ... j + count - 1, count <= key_block. k, v: their first rows.
  template <bool masked>
  HWY_INLINE void step(const T* k, const T* v, std::int64_t j, std::int64_t count) {
    const Floats f;
    HWY_ALIGN float p[flat];
    score<key_block>(k, count, 0, p);
    if (masked) {
      std::fill(p + count * rows, p + flat, minus_infinity);
      for (std::int64_t t = 0; t < count; ++t) {
        for (int r = 0; r < rows; ++r) {
          if (j + t >= visible(r)) p[t * rows + r] = minus_infinity;
        }
      }
    } else if (flat > key_block * rows) {
      std::fill(p + key_block * rows, p + flat, minus_infinity);
    }
    const FloatVector bound = hn::Sub(hn::Set(f, late), hn::Load(f, negative_max_));
    FloatVector most = hn::Load(f, p);
    for (int i = lanes; i < flat; i += lanes) most = hn::Max(most, hn::Load(f, p + i));
    if (HWY_UNLIKELY(!hn::AllFalse(f, hn::Gt(most, bound)))) raise(p);
    const FloatVector negative_max = hn::Load(f, negative_max_);
    FloatVector sum = hn::Load(f, sum_);
    for (int i = 0; i < flat; i += lanes) {
      const FloatVector weight = exp_(hn::Add(hn::Load(f, p + i), negative_max));
      hn::Store(weight, f, p + i);
      sum = hn::Add(sum, weight);
    }
    hn::Store(sum, f, sum_);
    mix<accumulators / rows, masked>(v, j, count, p, 0);
  }

  HWY_INLINE void end() const {
    for (int r = 0; r < rows && first_ + r < part_.rows.count; ++r) {
      float sum = 0.0F;
      for (int i = r; i < lanes; i += rows) sum += sum_[i];
      part_.sum[first_ + r] = sum;
      part_.max[first_ + r] = -negative_max_[r];
    }
  }

 private:
  static constexpr int flat = std::max(static_cast<int>(key_block) * rows, lanes);  // P, filled up
  static_assert(lanes % rows == 0 && flat % lanes == 0);

  [[nodiscard]] std::int64_t d() const { return part_.rows.p->head_dim; }
  [[nodiscard]] std::int64_t d_v() const { return part_.rows.p->head_dim_v; }
  [[nodiscard]] std::int64_t visible(int r) const {
    return part_.rows.visible(std::min(first_ + r, part_.rows.count - 1));
  }

  // p [count, rows] of keys t ... count - 1, `keys` at a time and then half as many.
  template <int keys>
  HWY_INLINE void score(const T* k, std::int64_t count, std::int64_t t, float* p) const {
    if constexpr (keys * rows <= accumulators) {
      const Floats f;
      const std::int64_t stride = part_.rows.io->k.token_stride;
      const float scale = static_cast<float>(part_.rows.p->effective_scale());
      for (; t + keys <= count; t += keys) {
        const T* HWY_RESTRICT key = k + t * stride;
        FloatVector x[keys * rows];
        for (FloatVector& sum : x) sum = hn::Zero(f);
        std::int64_t c = 0;
        for (; c + lanes <= d(); c += lanes) {
          FloatVector q[rows];
          for (int r = 0; r < rows; ++r) q[r] = hn::LoadU(f, q_ + r * d() + c);
          for (int i = 0; i < keys; ++i) {
            const FloatVector element = load(key + i * stride + c);
            for (int r = 0; r < rows; ++r)
              x[i * rows + r] = hn::MulAdd(element, q[r], x[i * rows + r]);
          }
        }
        float* sums = p + t * rows;
        sums_of_lanes(x, scale, sums);
        for (; c < d(); ++c) {
          for (int i = 0; i < keys * rows; ++i) {
            sums[i] +=
                scale * q_[i % rows * d() + c] * static_cast<float>(key[i / rows * stride + c]);
          }
        }
      }
    }
    if constexpr (keys > 1) score<keys / 2>(k, count, t, p);
  }

  // m rises to the largest score of each row in p; what was summed with the old m follows. Not inlined:
  // it is rare.
  HWY_NOINLINE void raise(const float* p) {
    const Floats f;
    HWY_ALIGN float after[lanes];
    for (int r = 0; r < rows; ++r) {
      float least = negative_max_[r];
      for (int i = r; i < flat; i += rows) least = std::min(least, -p[i]);
      for (int i = r; i < lanes; i += rows) after[i] = least;
    }
    const FloatVector factor = exp_(hn::Sub(hn::Load(f, after), hn::Load(f, negative_max_)));
    hn::Store(hn::Mul(factor, hn::Load(f, sum_)), f, sum_);
    std::copy_n(after, lanes, negative_max_);
    hn::Store(factor, f, after);
    for (int r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < d_v(); ++c) out_[r * d_v() + c] *= after[r];
    }
  }

  // out_ of columns c ... += P V, `vectors` vectors of columns at a time and then half as many. Where a
  // row does not see a key, V may be NaN, which a weight of 0 would not silence.
  template <int vectors, bool masked>
  HWY_INLINE void mix(const T* v, std::int64_t j, std::int64_t count, const float* p,
                      std::int64_t c) {
    const Floats f;
    const std::int64_t stride = part_.rows.io->v.token_stride;
    const auto hidden = [&](std::int64_t t, int r) { return masked && j + t >= visible(r); };
    for (; c + vectors * lanes <= d_v(); c += vectors * lanes) {
      float* HWY_RESTRICT out = out_ + c;
      FloatVector sums[rows][vectors];
      for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < vectors; ++i) sums[r][i] = hn::LoadU(f, out + r * d_v() + i * lanes);
      }
      for (std::int64_t t = 0; t < count; ++t) {
        FloatVector element[vectors];
        for (int i = 0; i < vectors; ++i) element[i] = load(v + t * stride + c + i * lanes);
        for (int r = 0; r < rows; ++r) {
          if (hidden(t, r)) continue;
          const FloatVector weight = hn::Set(f, p[t * rows + r]);
          for (int i = 0; i < vectors; ++i) sums[r][i] = hn::MulAdd(weight, element[i], sums[r][i]);
        }
      }
      for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < vectors; ++i) hn::StoreU(sums[r][i], f, out + r * d_v() + i * lanes);
      }
    }
    if constexpr (vectors > 1) return mix<vectors / 2, masked>(v, j, count, p, c);
    for (; c < d_v(); ++c) {
      for (std::int64_t t = 0; t < count; ++t) {
        for (int r = 0; r < rows; ++r) {
          if (hidden(t, r)) continue;
          out_[r * d_v() + c] += p[t * rows + r] * static_cast<float>(v[t * stride + c]);
        }
      }
    }
  }

  const Part& part_;
  const Exp& exp_;
  const std::int64_t first_;
  const float* const q_;
  float *const negative_max_, *const sum_, *const out_;
};

// The keys' rows that come `ahead` later, to L2. For 16-bit rows the hardware's own prefetcher is as good.
template <class T>
HWY_INLINE void fetch(const T* row, std::int64_t stride, std::int64_t dim) {
  if constexpr (sizeof(T) == sizeof(float)) {
    for (std::int64_t j = 0; j < key_block; ++j) {
      for (std::int64_t c = 0; c < dim; c += 16) __builtin_prefetch(row + j * stride + c, 0, 2);
    }
  }
}

// f(Group) for every group of rows: four where that fills lanes.
template <class T, class F>
HWY_INLINE void for_each_group(const Part& part, const Exp& exp, const float* q, float* states,
                               F&& f) {
  constexpr std::int64_t widest = lanes < square ? 1 : square;
  for (std::int64_t first = 0; first < part.rows.count; first += widest) {
    float* const state = states + first * state_of_group / square;
    const std::int64_t rest = part.rows.count - first;
    if constexpr (widest > 1) {
      if (rest > 2) {
        f(Group<T, 4>(part, exp, first, q, state));
        continue;
      }
      if (rest == 2) {
        f(Group<T, 2>(part, exp, first, q, state));
        continue;
      }
    }
    f(Group<T, 1>(part, exp, first, q, state));
  }
}

template <class T>
void attend(const Part& part, float* scratch) {
  const Rows& rows = part.rows;
  const std::int64_t d = rows.p->head_dim, d_v = rows.p->head_dim_v;
  const Exp exp;
  float* const states = scratch;
  float* const q = scratch + Sizes(*rows.p).states;
  for (std::int64_t r = 0; r < in_fours(rows.count); ++r) {  // rows past the last repeat it
    const std::int64_t from = std::min(r, rows.count - 1);
    const T* row = rows.io->q.row<T>(rows.b, rows.head(from), rows.query(from));
    for (std::int64_t c = 0; c < d; ++c) q[r * d + c] = row[c];
  }
  for_each_group<T>(part, exp, q, states, [](auto&& group) HWY_ATTR { group.begin(); });
  const std::int64_t k_stride = rows.io->k.token_stride, v_stride = rows.io->v.token_stride;
  const std::int64_t common = rows.visible_to_all();
  for (std::int64_t j = part.begin; j < part.end; j += key_block) {
    const T* const k = rows.io->k.row<T>(rows.b, rows.g, j);
    const T* const v = rows.io->v.row<T>(rows.b, rows.g, j);
    if (j + ahead + key_block <= part.end) {
      fetch(k + ahead * k_stride, k_stride, d);
      fetch(v + ahead * v_stride, v_stride, d_v);
    }
    const std::int64_t count = std::min(key_block, part.end - j);
    const bool whole = count == key_block && j + count <= common;
    for_each_group<T>(part, exp, q, states, [&](auto&& group) HWY_ATTR {
      whole ? group.template step<false>(k, v, j, count)
            : group.template step<true>(k, v, j, count);
    });
  }
  for_each_group<T>(part, exp, q, states, [](auto&& group) HWY_ATTR { group.end(); });
}

void attend_part(const Part& part, float* scratch) {
  with_element(part.rows.p->dtype,
               [&](auto element) HWY_ATTR { attend<decltype(element)>(part, scratch); });
}

Shape shape() { return {hwy::TargetName(HWY_TARGET), lanes, accumulators}; }

}  // namespace
}  // namespace attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn {
namespace {

HWY_EXPORT(attend_part);
HWY_EXPORT(shape);

Shape shape() { return HWY_DYNAMIC_DISPATCH(shape)(); }

// All rows of KV head g of batch item b.
Rows all_rows(const Problem& p, const Io& io, std::int64_t matrix) {
  return {&p, &io, matrix / p.heads_kv, matrix % p.heads_kv, 0, p.n_q * p.group()};
}

// Part `number` of `count`, whose results lie at `results`: whole blocks but at the end.
Part part_of(const Rows& rows, std::int64_t number, std::int64_t count, float* results) {
  const std::int64_t keys = rows.count > 0 ? rows.visible_to_any() : 0;
  const std::int64_t blocks = (keys + key_block - 1) / key_block;
  const auto border = [&](std::int64_t k) {
    return std::min(keys, blocks * k / count * key_block);
  };
  float* const max = results + in_fours(rows.count) * rows.p->head_dim_v;
  return {rows, border(number), border(number + 1), results, max, max + in_fours(rows.count)};
}

// Row r of a KV head from its parts. A row that sees no key is 0; one of scores of -inf alone is NaN.
template <class T>
void merge(const Rows& rows, std::int64_t r, std::int64_t count, std::int64_t stride,
           float* results) {
  const std::int64_t d_v = rows.p->head_dim_v, h = rows.head(r), i = rows.query(r);
  const bool sees_any = rows.visible(r) > 0;
  const auto part = [&](std::int64_t k) { return part_of(rows, k, count, results + k * stride); };
  float max = std::numeric_limits<float>::lowest();
  for (std::int64_t k = 0; k < count; ++k) max = std::max(max, part(k).max[r]);
  float sum = 0.0F;
  for (std::int64_t k = 0; k < count; ++k) {
    float& weight = part(k).max[r];
    weight = std::exp(weight - max);
    sum += weight * part(k).sum[r];
  }
  T* out = rows.io->out.row<T>(rows.b, h, i);
  for (std::int64_t c = 0; c < d_v; ++c) {
    float mixed = 0.0F;
    for (std::int64_t k = 0; k < count; ++k) mixed += part(k).max[r] * part(k).out[r * d_v + c];
    out[c] = T(sees_any ? mixed / sum : 0.0F);
  }
  if (rows.io->log_sum_exp) {
    *rows.io->log_sum_exp.row<float>(rows.b, h, i) =
        sees_any ? max + std::log(sum + 0.0F / sum) : -std::numeric_limits<float>::infinity();
  }
}

std::optional<Refusal> refuses(const Problem& p) {
  if (p.memory != Memory::host) return Refusal{.sentence = "reads host memory only"};
  if (p.n_q > most_queries) {
    return Refusal{.sentence = "takes at most " + std::to_string(most_queries) + " queries"};
  }
  return std::nullopt;
}

Cost cost(const Problem& p) {
  const Shape s = shape();
  const Sizes sizes(p);
  const std::int64_t d = p.head_dim, d_v = p.head_dim_v, element = bytes_per_element(p.dtype);
  const std::int64_t matrices = p.batch * p.heads_kv, count = parts(p);
  const auto tiles = [](std::int64_t items, std::int64_t most) {
    std::int64_t all = 0;
    for (std::int64_t t = most; t > 0; items %= t, t /= 2) all += items / t;
    return all;
  };
  Cost cost{.exps_at_least = true};
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
    const Rows rows = all_rows(p, {}, matrix);
    for (std::int64_t k = 0; k < count; ++k) {
      const Part part = part_of(rows, k, count, nullptr);
      const std::int64_t keys = part.end - part.begin;
      const std::int64_t whole = keys / key_block, rest = keys % key_block;
      cost.bytes += (element + 4) * in_fours(rows.count) * d;
      for (std::int64_t first = 0, wide = 0; first < rows.count; first += wide) {
        const std::int64_t left = rows.count - first;
        wide = s.lanes < 4 || left == 1 ? 1 : left == 2 ? 2 : 4;
        const std::int64_t flat = std::max(key_block * wide, s.lanes), blocks = whole + (rest > 0);
        const std::int64_t most = std::min(key_block, s.accumulators / wide);
        const std::int64_t columns =
            tiles(d_v / s.lanes, s.accumulators / wide) + (d_v % s.lanes > 0);
        for (std::int64_t r = first; r < first + wide; ++r) {
          const std::int64_t seen = rows.visible(std::min(r, rows.count - 1));
          cost.flops +=
              2 * (keys * d + (std::clamp(seen, part.begin, part.end) - part.begin) * d_v);
        }
        cost.exps += flat * blocks;
        cost.bytes += element * keys * (d + d_v) +
                      4 * (wide * d * (whole * tiles(key_block, most) + tiles(rest, most)) +
                           flat * blocks * (4 + columns) + wide * d_v * (1 + 2 * blocks));
      }
    }
    cost.exps += count * rows.count;
    cost.bytes += rows.count * (4 * count * (d_v + 3) + element * d_v);
  }
  cost.scratch_bytes = 4 * (p.threads * sizes.thread + matrices * count * sizes.part);
  return cost;
}

void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  const Sizes sizes(p);
  const std::int64_t matrices = p.batch * p.heads_kv, rows = p.n_q * p.group(), count = parts(p);
  float* const of_threads = static_cast<float*>(scratch);
  float* const of_parts = of_threads + p.threads * sizes.thread;
  io.phase("fused");
#pragma omp parallel num_threads(p.threads) if (p.threads > 1)
  {
#pragma omp for schedule(dynamic)
    for (std::int64_t unit = 0; unit < matrices * count; ++unit) {
      const Part part =
          part_of(all_rows(p, io, unit / count), unit % count, count, of_parts + unit * sizes.part);
      HWY_DYNAMIC_DISPATCH(attend_part)(part, of_threads + omp_get_thread_num() * sizes.thread);
    }
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < matrices * rows; ++row) {
      const std::int64_t matrix = row / rows;
      with_element(p.dtype, [&](auto element) {
        merge<decltype(element)>(all_rows(p, io, matrix), row % rows, count, sizes.part,
                                 of_parts + matrix * count * sizes.part);
      });
    }
  }
  io.phase("");
}

std::string resolved_impl(const Problem& p) {
  return std::string("Highway ") + shape().target + ", keys split by " + std::to_string(parts(p));
}

}  // namespace

Backend simd_decode() {
  return {.name = "simd.decode",
          .threaded = true,
          .exploits_sharing = true,
          .offers_log_sum_exp = true,
          .refuses = refuses,
          .cost = cost,
          .run = run,
          .resolved_impl = resolved_impl};
}

}  // namespace attn
#endif
