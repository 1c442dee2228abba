// SPDX-License-Identifier: MIT
// The blas backends without OpenBLAS: this program defines the library functions itself, in loops
// that count, so a call that is not counted here is a link error.
#include <cblas.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "harness/work.hpp"
#include "tests/impls/check.hpp"

namespace {

std::int64_t counted_flops = 0;

// Element (i, j) of op(matrix), row-major.
float element(const float* matrix, blasint leading, CBLAS_TRANSPOSE transpose, std::int64_t i,
              std::int64_t j) {
  return transpose == CblasNoTrans ? matrix[i * leading + j] : matrix[j * leading + i];
}

}  // namespace

extern "C" {

int openblas_get_parallel(void) { return OPENBLAS_OPENMP; }
char* openblas_get_config(void) {
  static char config[] = "counting";
  return config;
}
char* openblas_get_corename(void) { return openblas_get_config(); }

void cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b,
                 blasint m, blasint n, blasint k, float alpha, const float* a, blasint lda,
                 const float* b, blasint ldb, float beta, float* c, blasint ldc) {
  ASSERT_EQ(order, CblasRowMajor);
  ASSERT_GE(lda, std::max(1, transpose_a == CblasNoTrans ? k : m));
  ASSERT_GE(ldb, std::max(1, transpose_b == CblasNoTrans ? n : k));
  ASSERT_GE(ldc, std::max(1, n));
  counted_flops += 2 * std::int64_t{m} * n * k;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      float sum = 0.0F;
      for (std::int64_t e = 0; e < k; ++e) {
        sum += element(a, lda, transpose_a, i, e) * element(b, ldb, transpose_b, e, j);
      }
      float& out = c[i * ldc + j];
      out = alpha * sum + (beta == 0.0F ? 0.0F : beta * out);
    }
  }
}

void cblas_sgemv(CBLAS_ORDER order, CBLAS_TRANSPOSE transpose, blasint m, blasint n, float alpha,
                 const float* a, blasint lda, const float* x, blasint incx, float beta, float* y,
                 blasint incy) {
  ASSERT_EQ(order, CblasRowMajor);
  ASSERT_GE(lda, std::max(1, n));
  counted_flops += 2 * std::int64_t{m} * n;
  const std::int64_t rows = transpose == CblasNoTrans ? m : n;
  const std::int64_t inner = transpose == CblasNoTrans ? n : m;
  for (std::int64_t i = 0; i < rows; ++i) {
    float sum = 0.0F;
    for (std::int64_t e = 0; e < inner; ++e) sum += element(a, lda, transpose, i, e) * x[e * incx];
    float& out = y[i * incy];
    out = alpha * sum + (beta == 0.0F ? 0.0F : beta * out);
  }
}

}  // extern "C"

namespace attn {
#define ATTN_BACKEND(name) Backend name();
#include "blas_backends.inc"
#undef ATTN_BACKEND
}  // namespace attn

namespace attn::test {
namespace {

std::vector<Backend> backends() {
  return {
#define ATTN_BACKEND(name) name(),
#include "blas_backends.inc"
#undef ATTN_BACKEND
  };
}

TEST(BlasCounting, FlopsAreWhatTheCallsDo) {
  for (const Backend& backend : backends()) {
    int checked = 0;
    for (const Case& c : cases_for(backend.family)) {
      SCOPED_TRACE(std::string(backend.name) + " " + c.name);
      if (refuses(backend, c.problem)) continue;
      const Cost declared = cost(backend, c.problem);
      counted_flops = 0;
      check_run(c, backend, declared,
                [&](const Problem& p, const Io& io, void* state, void* scratch) {
                  run(backend, p, io, state, scratch);
                });
      EXPECT_EQ(declared.flops, counted_flops);
      ++checked;
    }
    EXPECT_GE(checked, 8) << backend.name;
  }
}

TEST(BlasCounting, WithoutACausalMaskNoFlopIsWasted) {
  for (const Backend& backend : backends()) {
    for (const Case& c : cases_for(backend.family)) {
      if (c.problem.mask == Mask::causal && backend.family == Family::attention) continue;
      if (refuses(backend, c.problem)) continue;
      EXPECT_EQ(cost(backend, c.problem).flops, flops_model(c.problem, backend.family))
          << backend.name << " " << c.name;
    }
  }
}

}  // namespace
}  // namespace attn::test
