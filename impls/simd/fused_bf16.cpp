// SPDX-License-Identifier: MIT
// Idea: simd.fused with both products in bf16 dot products (vdpbf16ps), twice the rate of f32's
//   multiply-adds; K is read where it lies, V is packed once a call.
// Math: as simd.fused. Scores, m, l and O stay f32; P is rounded to bf16 for the second product only, so
//   l sums what was not rounded. A product of two pairs adds a.x b.x + a.y b.y to an f32.
// Memory traffic (elements): V read once and written as pairs of keys, 2 n_kv d_v; a block of 16 rows over
//   s keys reads Q and writes O once and packs and unpacks them, 2 * 16 (d + d_v), clearing O^T first;
//   reads K and packed V once, s (d + d_v); reads Q's pairs once a tile of 16 keys; writes scores and
//   reads them, writes P and reads it once a panel of 16 columns; reads and writes O^T once a block of
//   keys.
// Why this shape: 16 keys (or columns) x 16 rows are 16 sums in 32 registers; a pair of neighbours in d is
//   32 bits of K as it lies, but a pair of keys is not in V, hence the packing, which a block of rows
//   could not pay for alone. The exponential of one tile goes between the products of the next. On a
//   Zen 4 prototype: 1.81 x the f32 peak at n = 4096, 8 keys x 32 rows 1.82, without interleaving 1.73.
// Limits: bf16, host, no probabilities. Without AVX512-BF16 simd.fused computes (resolved_impl).
// Source: simd.fused.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "impls/attention.hpp"
#include "impls/support/half.hpp"
#include "impls/support/rows.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "impls/simd/fused_bf16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "impls/support/exp-inl.hpp"
#include "impls/support/transpose-inl.hpp"

#ifndef ATTN_IMPLS_SIMD_FUSED_BF16_CPP_
#define ATTN_IMPLS_SIMD_FUSED_BF16_CPP_
namespace attn {

Backend simd_fused();

namespace {

constexpr std::int64_t width = 16;  // rows of a block, and columns of a panel of V
constexpr std::int64_t key_tile = 16;
constexpr std::int64_t key_block = 256;

std::int64_t halves(std::int64_t count) { return (count + 1) / 2; }
std::int64_t panels(std::int64_t d_v) { return (d_v + width - 1) / width; }

// Scratch in 32-bit words: V of every KV head as pairs of keys [panels, halves(n_kv), width], then of every
// thread its scores [key_tile, width], P as pairs [key_block / 2, width], Q as pairs [halves(d), width] and
// O^T [panels * width, width].
struct Sizes {
  std::int64_t packed, thread;
  explicit Sizes(const Problem& p)
      : packed(panels(p.head_dim_v) * halves(p.n_kv) * width),
        thread((key_tile + key_block / 2 + halves(p.head_dim) + panels(p.head_dim_v) * width) *
               width) {}
};

}  // namespace
}  // namespace attn
#endif

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace attn::HWY_NAMESPACE {
namespace {

constexpr float late = 14.0F;  // m moves where a score exceeds it by more: exp(14) is 2^20
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

using Bits = hn::RebindToUnsigned<Floats>;

// sum + a.x b.x + a.y b.y in every lane; a: the pair at `pair` in all lanes, b: [width] pairs.
HWY_INLINE FloatVector dot(FloatVector sum, hn::Vec<Bits> a, hn::Vec<Bits> b) {
  return FloatVector{_mm512_dpbf16_ps(sum.raw, reinterpret_cast<__m512bh>(a.raw),
                                      reinterpret_cast<__m512bh>(b.raw))};
}

// One block of rows and its state.
class Block {
 public:
  // scratch: of the thread. v: V of the KV head as pairs.
  HWY_INLINE Block(const Rows& rows, float* scratch, const std::uint32_t* v)
      : rows_(rows),
        d_(rows.p->head_dim),
        d_v_(rows.p->head_dim_v),
        common_(rows.visible_to_all()),
        all_(rows.visible_to_any()),
        k_(rows.io->k.row<BFloat16>(rows.b, rows.g, 0)),
        v_(v),
        scale_(static_cast<float>(rows.p->effective_scale())),
        scores_(scratch),
        p_(reinterpret_cast<std::uint32_t*>(scores_ + key_tile * width)),
        q_(p_ + key_block / 2 * width),
        out_(reinterpret_cast<float*>(q_ + halves(d_) * width)) {}

  HWY_INLINE void attend() {
    begin();
    for (std::int64_t first = 0; first < all_; first += key_block) {
      walk(first, std::min(first + key_block, all_));
    }
    end();
  }

 private:
  HWY_INLINE void begin() {
    for (std::int64_t r = 0; r < width; ++r) {  // rows past the last repeat it
      const std::int64_t from = std::min(r, rows_.count - 1);
      const BFloat16* q = rows_.io->q.row<BFloat16>(rows_.b, rows_.head(from), rows_.query(from));
      for (std::int64_t c = 0; c < d_; c += 2) {
        q_[c / 2 * width + r] = pair_of(q[c], c + 1 < d_ ? q[c + 1] : BFloat16(0.0F));
      }
      negative_max_[r] = std::numeric_limits<float>::max();
      sum_[r] = 0.0F;
      visible_[r] = static_cast<float>(rows_.visible(from) - common_);
    }
    std::fill_n(out_, panels(d_v_) * width * width, 0.0F);
  }

  static HWY_INLINE std::uint32_t pair_of(BFloat16 low, BFloat16 high) {
    return std::uint32_t{low.bits} | std::uint32_t{high.bits} << 16;
  }

  // Keys first ... last - 1 enter the state. The scores of a tile wait in scores_ until the next tile's
  // products are computed.
  HWY_INLINE void walk(std::int64_t first, std::int64_t last) {
    first_ = mixed_ = weighed_ = first;
    std::int64_t j = first;
    for (; j + key_tile <= std::min(last, common_); j += key_tile) score<false>(j);
    for (; j < last; j += key_tile) score<true>(j);
    for (; weighed_ < last; weighed_ += 2) weigh_pair(weighed_);
    mix(last);
  }

  // Of keys j ... j + 15: scores_ <- Q K^T scale, -inf where a row does not see the key.
  template <bool masked>
  HWY_INLINE void score(std::int64_t j) {
    const Floats f;
    const Bits bits;
    const std::int64_t stride = rows_.io->k.token_stride;
    const BFloat16* const k = k_ + j * stride;
    const BFloat16* key[key_tile];
    for (std::int64_t t = 0; t < key_tile; ++t) {
      key[t] = k + (masked ? std::min(t, all_ - 1 - j) : t) * stride;
    }
    FloatVector x[key_tile];
    for (FloatVector& score : x) score = hn::Zero(f);
    const std::int64_t pairs = d_ / 2;
    std::int64_t c = 0;
    for (std::int64_t i = 0; i < key_tile / 2; ++i) {
      if (weighed_ < j) weigh_pair(weighed_), weighed_ += 2;
      for (const std::int64_t stop = pairs * (i + 1) / (key_tile / 2); c < stop; ++c) {
        const auto q = hn::Load(bits, q_ + c * width);
        for (int t = 0; t < key_tile; ++t) {
          std::uint32_t two;
          std::memcpy(&two, key[t] + 2 * c, sizeof two);
          x[t] = dot(x[t], hn::Set(bits, two), q);
        }
      }
    }
    if (d_ % 2 != 0) {
      const auto q = hn::Load(bits, q_ + pairs * width);
      for (int t = 0; t < key_tile; ++t) {
        x[t] = dot(x[t], hn::Set(bits, std::uint32_t{key[t][d_ - 1].bits}), q);
      }
    }
    FloatVector most = hn::Set(f, minus_infinity);
    for (int t = 0; t < key_tile; ++t) {
      x[t] = hn::Mul(x[t], hn::Set(f, scale_));
      if (masked) x[t] = hn::IfThenElse(sees(j + t), x[t], hn::Set(f, minus_infinity));
      hn::Store(x[t], f, scores_ + t * width);
      most = hn::Max(most, x[t]);
    }
    most = hn::Add(most, hn::Load(f, negative_max_));
    if (HWY_UNLIKELY(!hn::AllFalse(f, hn::Gt(most, hn::Set(f, late))))) raise(j);
  }

  HWY_INLINE hn::Mask<Floats> sees(std::int64_t j) const {
    const Floats f;
    return hn::Lt(hn::Set(f, static_cast<float>(j - common_)), hn::Load(f, visible_));
  }

  // Scores of keys j and j + 1 become a pair of weights.
  HWY_INLINE void weigh_pair(std::int64_t j) {
    const Floats f;
    const Bits bits;
    const float* const scores = scores_ + (j - first_) % key_tile * width;
    const FloatVector negative_max = hn::Load(f, negative_max_);
    const FloatVector low = exp_(hn::Add(hn::Load(f, scores), negative_max));
    const FloatVector high = exp_(hn::Add(hn::Load(f, scores + width), negative_max));
    hn::Store(hn::Add(hn::Load(f, sum_), hn::Add(low, high)), f, sum_);
    const auto upper = hn::And(rounded(high), hn::Set(bits, 0xFFFF0000U));
    hn::Store(hn::Or(hn::ShiftRight<16>(rounded(low)), upper), bits, p_ + (j - first_) / 2 * width);
  }
  // bf16 to nearest even in the upper half; a NaN of ours is quiet and stays one.
  static HWY_INLINE hn::Vec<Bits> rounded(FloatVector value) {
    const Bits bits;
    const auto x = hn::BitCast(bits, value);
    const auto odd = hn::And(hn::ShiftRight<16>(x), hn::Set(bits, 1U));
    return hn::Add(x, hn::Add(odd, hn::Set(bits, 0x7FFFU)));
  }

  // m rises to the largest of scores_, those of keys j ... j + 15. Not inlined: it is rare.
  HWY_NOINLINE void raise(std::int64_t j) {
    const Floats f;
    mix(j);  // with the old m
    const FloatVector before = hn::Load(f, negative_max_);
    FloatVector after = before;
    for (int t = 0; t < key_tile; ++t) {
      after = hn::Min(after, hn::Neg(hn::Load(f, scores_ + t * width)));
    }
    hn::Store(after, f, negative_max_);
    const FloatVector factor = exp_(hn::Sub(after, before));
    hn::Store(hn::Mul(factor, hn::Load(f, sum_)), f, sum_);
    for (std::int64_t i = 0; i < panels(d_v_) * width; ++i) {
      hn::Store(hn::Mul(factor, hn::Load(f, out_ + i * width)), f, out_ + i * width);
    }
  }

  // O^T += V^T P of keys mixed_ ... end - 1.
  HWY_INLINE void mix(std::int64_t end) {
    const std::int64_t middle = std::clamp(common_ / 2 * 2, mixed_, end);
    if (middle > mixed_) mix_pairs<false>(mixed_ / 2, middle / 2);
    if (end > middle) mix_pairs<true>(middle / 2, halves(end));
    mixed_ = end;
  }
  // Where a row does not see a key V may be NaN, which a weight of 0 would not silence: there it is 0 too.
  template <bool masked>
  HWY_INLINE void mix_pairs(std::int64_t from, std::int64_t to) {
    const Floats f;
    const Bits bits;
    for (std::int64_t panel = 0; panel < panels(d_v_); ++panel) {
      float* const out = out_ + panel * width * width;
      const std::uint32_t* const v = v_ + panel * halves(rows_.p->n_kv) * width;
      FloatVector sums[width];
      for (int c = 0; c < width; ++c) sums[c] = hn::Load(f, out + c * width);
      for (std::int64_t i = from; i < to; ++i) {
        const auto weights = hn::Load(bits, p_ + (i - first_ / 2) * width);
        auto seen = hn::Zero(bits);
        if (masked) {
          seen = hn::Or(low_half(sees(2 * i)), hn::ShiftLeft<16>(low_half(sees(2 * i + 1))));
        }
        for (int c = 0; c < width; ++c) {
          const auto values = hn::Set(bits, v[i * width + c]);
          sums[c] = dot(sums[c], masked ? hn::And(seen, values) : values, weights);
        }
      }
      for (int c = 0; c < width; ++c) hn::Store(sums[c], f, out + c * width);
    }
  }
  static HWY_INLINE hn::Vec<Bits> low_half(hn::Mask<Floats> lanes_that_see) {
    const Bits bits;
    return hn::IfThenElseZero(hn::RebindMask(bits, lanes_that_see), hn::Set(bits, 0xFFFFU));
  }

  HWY_INLINE void end() {
    BFloat16* out[width] = {};
    float inverse[width] = {};
    for (std::int64_t r = 0; r < rows_.count; ++r) {
      out[r] = rows_.io->out.row<BFloat16>(rows_.b, rows_.head(r), rows_.query(r));
      inverse[r] = end_row(rows_, r, sum_[r], negative_max_[r]);
    }
    columns_to_rows(out_, d_v_, inverse, rows_.count, out);
  }

  const Rows& rows_;
  const std::int64_t d_, d_v_;
  const std::int64_t common_, all_;  // keys that every row sees, and that one sees
  const BFloat16* const k_;
  const std::uint32_t* const v_;
  const float scale_;
  float* const scores_;
  std::uint32_t *const p_, *const q_;
  float* const out_;
  const Exp exp_;
  // Keys: the walk's first; the first that is not mixed yet; the first whose score is no weight yet.
  std::int64_t first_ = 0, mixed_ = 0, weighed_ = 0;
  HWY_ALIGN float negative_max_[width];
  HWY_ALIGN float sum_[width];
  HWY_ALIGN float visible_[width];  // keys from common_ on
};

void attend(const Rows& rows, float* scratch, const std::uint32_t* v) {
  Block(rows, scratch, v).attend();
}
bool has_dot_products() { return __builtin_cpu_supports("avx512bf16") != 0; }

}  // namespace
}  // namespace attn::HWY_NAMESPACE
HWY_POP_ATTRIBUTES
#else
namespace attn::HWY_NAMESPACE {
namespace {

void attend(const Rows&, float*, const std::uint32_t*) {}
bool has_dot_products() { return false; }

}  // namespace
}  // namespace attn::HWY_NAMESPACE
#endif

#if HWY_ONCE
namespace attn {
namespace {

HWY_EXPORT(attend);
HWY_EXPORT(has_dot_products);

bool has_dot_products() { return HWY_DYNAMIC_DISPATCH(has_dot_products)(); }

// V of KV head g of item b as pairs of keys; what no row sees, and what pads, is 0.
void pack(const Problem& p, const Io& io, std::int64_t b, std::int64_t g, std::uint32_t* packed) {
  const std::int64_t keys = p.n_q > 0 ? p.visible(b, p.n_q - 1) : 0;
  const auto element = [&](std::int64_t j, std::int64_t c) {
    return j < keys && c < p.head_dim_v ? io.v.row<BFloat16>(b, g, j)[c].bits : std::uint16_t{0};
  };
  for (std::int64_t panel = 0; panel < panels(p.head_dim_v); ++panel) {
    for (std::int64_t i = 0; i < halves(p.n_kv); ++i) {
      for (std::int64_t c = panel * width; c < (panel + 1) * width; ++c) {
        *packed++ = std::uint32_t{element(2 * i, c)} | std::uint32_t{element(2 * i + 1, c)} << 16;
      }
    }
  }
}

std::optional<Refusal> refuses(const Problem& p) {
  if (p.dtype != DType::bf16) return Refusal{.sentence = "computes in bf16 only"};
  if (p.memory != Memory::host) return Refusal{.sentence = "reads host memory only"};
  return std::nullopt;
}

Cost cost(const Problem& problem) {
  if (!has_dot_products()) return simd_fused().cost(problem);
  Problem p = problem;
  p.threads = 1;
  const Sizes sizes(p);
  const std::int64_t d = p.head_dim, d_v = p.head_dim_v, columns = panels(d_v) * width;
  Cost cost{.exps_at_least = true};
  cost.bytes = p.batch * p.heads_kv * (2 * p.n_kv * d_v + 4 * sizes.packed);
  for_each_rows(p, {}, width, [&](const Rows& rows) {
    const std::int64_t keys = rows.visible_to_any();
    const std::int64_t tiles = (keys + key_tile - 1) / key_tile, pairs = halves(keys);
    const std::int64_t blocks = (keys + key_block - 1) / key_block;
    cost.flops += 4 * width * (tiles * key_tile * halves(d) + pairs * columns);
    cost.exps += width * (2 * pairs + (keys > 0));
    cost.bytes += 2 * rows.count * (d + d_v) + 4 * width * (halves(d) + 2 * columns) +
                  2 * tiles * key_tile * d + 4 * pairs * columns +
                  4 * width *
                      (tiles * halves(d) + 2 * tiles * key_tile + pairs + pairs * panels(d_v) +
                       2 * blocks * columns);
  });
  cost.scratch_bytes =
      4 * (problem.batch * problem.heads_kv * sizes.packed + problem.threads * sizes.thread);
  return cost;
}

void run(const Problem& p, const Io& io, void* state, void* scratch) {
  if (!has_dot_products()) return simd_fused().run(p, io, state, scratch);
  const Sizes sizes(p);
  const std::int64_t matrices = p.batch * p.heads_kv;
  std::uint32_t* const packed = static_cast<std::uint32_t*>(scratch);
  float* const of_threads = reinterpret_cast<float*>(packed + matrices * sizes.packed);
  io.phase("packing");
#pragma omp parallel for num_threads(p.threads) if (p.threads > 1) schedule(static)
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
    pack(p, io, matrix / p.heads_kv, matrix % p.heads_kv, packed + matrix * sizes.packed);
  }
  io.phase("fused");
  for_each_rows(p, io, width, [&](const Rows& rows) {
    HWY_DYNAMIC_DISPATCH(attend)
    (rows, of_threads + omp_get_thread_num() * sizes.thread,
     packed + (rows.b * p.heads_kv + rows.g) * sizes.packed);
  });
  io.phase("");
}

std::string resolved_impl(const Problem& p) {
  if (has_dot_products()) return "Highway AVX3 and AVX512-BF16, 16 keys x 16 queries";
  return "simd.fused, as the CPU lacks AVX512-BF16: " + simd_fused().resolved_impl(p);
}

}  // namespace

Backend simd_fused_bf16() {
  return {.name = "simd.fused_bf16",
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
