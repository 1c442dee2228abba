// SPDX-License-Identifier: MIT
// Rows into and out of the lanes of vectors, and sums of lanes, by squares of 4 x 4, which every set of
// vector instructions transposes alike; once per instruction set (so included inside foreach_target).
#if defined(ATTN_IMPLS_SUPPORT_TRANSPOSE_INL_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_IMPLS_SUPPORT_TRANSPOSE_INL_HPP_
#undef ATTN_IMPLS_SUPPORT_TRANSPOSE_INL_HPP_
#else
#define ATTN_IMPLS_SUPPORT_TRANSPOSE_INL_HPP_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace attn::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int square = 4;

#if HWY_TARGET != HWY_SCALAR
using Four = hn::Full128<float>;

HWY_INLINE void transpose(hn::Vec<Four> (&x)[square]) {
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

// columns [dims, width] <- rows[r] [dims] times scale. width is a multiple of the lanes.
template <int width, class T>
HWY_INLINE void rows_to_columns(const T* const (&rows)[width], std::int64_t dims, float scale,
                                float* columns) {
  std::int64_t whole = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == sizeof(float)) {
    const Four f;
    for (whole = 0; whole + square <= dims; whole += square) {
      for (int r = 0; r < width; r += square) {
        hn::Vec<Four> x[square];
        for (int k = 0; k < square; ++k) {
          x[k] = hn::Mul(hn::LoadU(f, rows[r + k] + whole), hn::Set(f, scale));
        }
        transpose(x);
        for (int k = 0; k < square; ++k) hn::Store(x[k], f, columns + (whole + k) * width + r);
      }
    }
  }
#endif
  for (std::int64_t c = whole; c < dims; ++c) {
    for (int r = 0; r < width; ++r) columns[c * width + r] = rows[r][c] * scale;
  }
}

// rows[r] [dims] <- columns [dims, width] times factors[r], of the first `count` rows.
template <int width, class T>
HWY_INLINE void columns_to_rows(const float* columns, std::int64_t dims, const float* factors,
                                std::int64_t count, T* const (&rows)[width]) {
  std::int64_t whole_rows = 0, whole = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == sizeof(float)) {
    const Four f;
    whole_rows = count / square * square, whole = dims / square * square;
    for (std::int64_t r = 0; r < whole_rows; r += square) {
      for (std::int64_t c = 0; c < whole; c += square) {
        hn::Vec<Four> x[square];
        for (int k = 0; k < square; ++k) {
          x[k] = hn::Mul(hn::Load(f, columns + (c + k) * width + r), hn::Load(f, factors + r));
        }
        transpose(x);
        for (int k = 0; k < square; ++k) hn::StoreU(x[k], f, rows[r + k] + c);
      }
    }
  }
#endif
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t c = r < whole_rows ? whole : 0; c < dims; ++c) {
      rows[r][c] = T(columns[c * width + r] * factors[r]);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
// Four lanes with the sum of all lanes of x.
template <class D>
HWY_INLINE hn::Vec<Four> folded(D /*d*/, hn::Vec<D> x) {
  if constexpr (hn::MaxLanes(D()) == square) {
    return x;
  } else {
    const hn::Half<D> half;
    return folded(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
  }
}
#endif

// sums[i] <- scale times the sum of the lanes of x[i].
template <int count>
HWY_INLINE void sums_of_lanes(const hn::Vec<hn::ScalableTag<float>> (&x)[count], float scale,
                              float* sums) {
  const hn::ScalableTag<float> f;
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Four four;
  for (; i + square <= count; i += square) {
    hn::Vec<Four> y[square];
    for (int k = 0; k < square; ++k) y[k] = folded(f, x[i + k]);
    transpose(y);
    const hn::Vec<Four> sum = hn::Add(hn::Add(y[0], y[1]), hn::Add(y[2], y[3]));
    hn::StoreU(hn::Mul(sum, hn::Set(four, scale)), four, sums + i);
  }
#endif
  for (; i < count; ++i) sums[i] = scale * hn::GetLane(hn::SumOfLanes(f, x[i]));
}

}  // namespace attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
