// SPDX-License-Identifier: MIT
// Single words of ptx.cuh on one warp, so that what the twins give can be compared: with the layouts
// of the PTX ISA everywhere, with a device where there is one.
#include "impls/support/cuda.cuh"
#include "tests/cuda_emulator/kernels/kernels.hpp"

namespace attn::test {
namespace {

template <int count>
__global__ void load_matrices_kernel(const unsigned short* a, unsigned* b, bool transposed) {
  ATTN_DYNAMIC_SHARED(unsigned short, shared);
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < 8 * count) cp_async(shared + 8 * lane, a + 8 * lane);
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  unsigned matrices[count];
  const unsigned short* const row = shared + lane % (8 * count) * 8;
  if (transposed) {
    ldmatrix_transposed(matrices, row);
  } else {
    ldmatrix(matrices, row);
  }
  for (int m = 0; m < count; ++m) b[lane * count + m] = matrices[m];
}

// Reads its fragments from global memory, element by element, as the PTX ISA spreads them.
template <class T>
__global__ void multiply_kernel(const unsigned short* a, const unsigned short* b, float* c) {
  const unsigned g = threadIdx.x / 4, t = threadIdx.x % 4;
  const auto left = [&](unsigned r, unsigned column) {
    return a[16 * r + column] | unsigned{a[16 * r + column + 1]} << 16;
  };
  const auto right = [&](unsigned r) { return b[8 * r + g] | unsigned{b[8 * r + 8 + g]} << 16; };
  float sums[4] = {};
  mma_m16n8k16<T>(sums,
                  {left(g, 2 * t), left(g + 8, 2 * t), left(g, 2 * t + 8), left(g + 8, 2 * t + 8)},
                  {right(2 * t), right(2 * t + 8)});
  for (unsigned e = 0; e < 2; ++e) {
    c[8 * g + 2 * t + e] = sums[e];
    c[8 * (g + 8) + 2 * t + e] = sums[2 + e];
  }
}

}  // namespace

void load_matrices(const void* a, unsigned* b, int count, bool transposed) {
  launch(count == 2 ? load_matrices_kernel<2> : load_matrices_kernel<4>, 1, 32,
         static_cast<std::size_t>(128 * count), nullptr, static_cast<const unsigned short*>(a), b,
         transposed);
}

void multiply(const void* a, const void* b, float* c, bool bfloat) {
  launch(bfloat ? multiply_kernel<__nv_bfloat16> : multiply_kernel<__half>, 1, 32, 0, nullptr,
         static_cast<const unsigned short*>(a), static_cast<const unsigned short*>(b), c);
}

}  // namespace attn::test
