// SPDX-License-Identifier: MIT
// What the backends on a CBLAS share: the one-pool check, products of row-major matrices that lie
// in strided views, blocks of rows under a causal mask, and a softmax that does not lose to its
// GEMM.
#pragma once

#include <cblas.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "impls/attention.hpp"
#include "impls/support/vector_math.hpp"

namespace attn {

// OpenBLAS must thread through OpenMP: with its pthread flavour beside OpenMP there are two pools,
// and the same attention at n = 128 took 3.99 ms instead of 0.09 ms. Both flavours share a soname,
// so only the loaded library itself can say which one it is.
inline std::optional<Refusal> refuse_unless_one_pool() {
  const int parallel = openblas_get_parallel();
  if (parallel == OPENBLAS_OPENMP) return std::nullopt;
  return Refusal{.kind = Refusal::Kind::unavailable,
                 .sentence = std::string("the loaded OpenBLAS (") + openblas_get_config() +
                             ") is " +
                             (parallel == OPENBLAS_THREAD ? "the pthread" : "the sequential") +
                             " flavour; the OpenMP flavour would work (libopenblas-openmp-dev, "
                             "found first by the loader)"};
}

inline std::string describe_openblas() {
  const char* flavour = openblas_get_parallel() == OPENBLAS_OPENMP ? "OpenMP" : "not OpenMP";
  return std::string("OpenBLAS ") + openblas_get_corename() + " (" + flavour + ")";
}

// CBLAS counts in int; the products of such numbers are 64-bit inside OpenBLAS.
inline blasint blas_int(std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<blasint>::max()) {
    throw std::length_error("a dimension or stride of " + std::to_string(value) +
                            " does not fit the BLAS integer");
  }
  return static_cast<blasint>(value);
}

// A row-major matrix inside a larger tensor: row i starts at data + i * stride.
template <class T>
struct Matrix {
  T* data;
  std::int64_t stride;
  // BLAS wants a leading dimension of at least the row's length, also of a matrix with one row,
  // whose stride means nothing.
  [[nodiscard]] blasint leading(std::int64_t row_length) const {
    return blas_int(std::max<std::int64_t>({stride, row_length, 1}));
  }
};

// c [m, n] = alpha a b^T + beta c, with a [m, k] and b [n, k]. beta = 0 does not read c.
inline void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                                Matrix<const float> a, Matrix<const float> b, float beta,
                                Matrix<float> c) {
  if (m == 0 || n == 0) return;
  if (m == 1) {
    cblas_sgemv(CblasRowMajor, CblasNoTrans, blas_int(n), blas_int(k), alpha, b.data, b.leading(k),
                a.data, 1, beta, c.data, 1);
  } else {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, blas_int(m), blas_int(n), blas_int(k),
                alpha, a.data, a.leading(k), b.data, b.leading(k), beta, c.data, c.leading(n));
  }
}

// c [m, n] = a b + beta c, with a [m, k] and b [k, n]. beta = 0 does not read c.
inline void multiply(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<const float> a,
                     Matrix<const float> b, float beta, Matrix<float> c) {
  if (m == 0 || n == 0) return;
  if (m == 1) {
    cblas_sgemv(CblasRowMajor, CblasTrans, blas_int(k), blas_int(n), 1.0F, b.data, b.leading(n),
                a.data, 1, beta, c.data, 1);
  } else {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, blas_int(m), blas_int(n), blas_int(k),
                1.0F, a.data, a.leading(k), b.data, b.leading(n), beta, c.data, c.leading(n));
  }
}

// s [m, n] = scale q k^T, with q [m, d] and k [n, d]. At alpha = 0 BLAS reads neither matrix and would
// lose a NaN in them, so a scale of 0 is multiplied in afterwards.
inline void score(std::int64_t m, std::int64_t n, std::int64_t d, float scale,
                  Matrix<const float> q, Matrix<const float> k, Matrix<float> s) {
  multiply_transposed(m, n, d, scale == 0.0F ? 1.0F : scale, q, k, 0.0F, s);
  if (scale != 0.0F) return;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) s.data[i * s.stride + j] *= scale;
  }
}

// y [batch, n, width] = x w^T, with x [batch, n, inner] and w [width, inner]: one GEMM where the
// batch items of both lie behind one another, else one per item.
inline void project_tokens(std::int64_t batch, std::int64_t n, std::int64_t inner,
                           std::int64_t width, const ConstView& x, const float* w, const View& y) {
  const bool one_matrix =
      x.batch_stride == n * x.token_stride && y.batch_stride == n * y.token_stride;
  const std::int64_t parts = one_matrix ? std::min<std::int64_t>(batch, 1) : batch;
  for (std::int64_t b = 0; b < parts; ++b) {
    multiply_transposed(one_matrix ? batch * n : n, width, inner, 1.0F,
                        {x.row<float>(b, 0, 0), x.token_stride}, {w, inner}, 0.0F,
                        {y.row<float>(b, 0, 0), y.token_stride});
  }
}

// Query rows begin ... begin + rows - 1 of one batch item: all of them see the first `common` keys,
// the last of them sees `keys`.
struct RowBlock {
  std::int64_t begin, rows, common, keys;
};

// The rows of S are worked off in blocks, so that a block is still in a cache when the next step reads
// it: 256 rows took 2.37 ns a pair at n = 1024 and 2.50 at n = 8192 (Zen 5, one thread, d = 64); all
// rows at once 2.39 and 2.94, because S of n > 2048 leaves the last-level cache; 64 rows 2.55 and
// 2.64, 128 rows 2.41 and 2.54, 512 rows 2.37 and 2.57. Every thread gets as many: on two threads that
// is 3 % slower than all rows at once up to n = 2048 and 4 % faster from 4096 on. Where `group` heads
// lie in one row of queries, they count as rows.
constexpr std::int64_t block_rows = 256;

// Under a causal mask a block's scores are one GEMM over the keys of its last row, its mixing is one
// GEMM over the keys that all its rows see and one small product per row over the rest of the row.
// So no weight that is zero by the mask ever meets a value: 0 * NaN would be NaN.
constexpr std::int64_t causal_block_rows = 64;

template <class F>
void for_each_row_block(const Problem& p, std::int64_t b, std::int64_t group, F&& f) {
  const std::int64_t step = p.mask == Mask::causal
                                ? causal_block_rows
                                : std::max<std::int64_t>(1, p.threads * block_rows / group);
  for (std::int64_t begin = 0; begin < p.n_q; begin += step) {
    const std::int64_t rows = std::min(step, p.n_q - begin);
    f(RowBlock{begin, rows, p.visible(b, begin), p.visible(b, begin + rows - 1)});
  }
}

// The largest element, -inf of none; a NaN is passed over, for its exp will tell, and so will that of
// an infinity less itself. Sixteen
// independent maxima, because clang does not vectorise one maximum of floats without -ffast-math.
inline float row_max(const float* row, std::int64_t n) {
  constexpr std::int64_t lanes = 16;
  float max = -std::numeric_limits<float>::infinity();
  float lane_max[lanes];
  std::fill_n(lane_max, lanes, max);
  const std::int64_t whole = n / lanes * lanes;
  for (std::int64_t j = 0; j < whole; j += lanes) {
#pragma omp simd
    for (std::int64_t l = 0; l < lanes; ++l) {
      lane_max[l] = row[j + l] > lane_max[l] ? row[j + l] : lane_max[l];
    }
  }
  for (std::int64_t j = whole; j < n; ++j) max = row[j] > max ? row[j] : max;
  for (const float candidate : lane_max) max = candidate > max ? candidate : max;
  return max;
}

struct RowSum {
  float max, sum;
};

// row[0 ... n - 1] becomes exp(row - max) / sum. A function of plain pointers, because a loop
// inside an OpenMP region's lambda is not vectorised by every compiler. An empty row gives -inf and
// 0.
[[gnu::noinline]] inline RowSum softmax_row(float* row, std::int64_t n) {
  const float max = row_max(row, n);
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = 0; j < n; ++j) {
    const float e = simd_exp(row[j] - max);
    row[j] = e;
    sum += e;
  }
  const float inverse = 1.0F / sum;
#pragma omp simd
  for (std::int64_t j = 0; j < n; ++j) row[j] *= inverse;
  return {max, sum};
}

}  // namespace attn
