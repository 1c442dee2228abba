// SPDX-License-Identifier: MIT
// A block per query: scores in shared memory, and a reduction over the block whose buffer is used
// for the maximum and then again for the sum.
#include "impls/support/cuda.cuh"
#include "tests/cuda_emulator/kernels/kernels.hpp"

namespace attn::test {
namespace {

constexpr int threads = 128;
constexpr int warps = threads / 32;
constexpr int dim = kernel_dim;

template <class Combine>
__device__ float reduce(float value, float* partial, const Combine& combine) {
  for (int other = 16; other > 0; other /= 2) {
    value = combine(value, __shfl_xor_sync(0xFFFFFFFFU, value, other));
  }
  __syncthreads();  // the reduction before may still read the buffer
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[0];
  for (int w = 1; w < warps; ++w) value = combine(value, partial[w]);
  return value;
}

__global__ void block_softmax_kernel(const float* q, const float* k, const float* v, float* out,
                                     int heads, int n, bool causal) {
  ATTN_DYNAMIC_SHARED(float, partial);
  float* const weights = partial + warps;
  const int thread = static_cast<int>(threadIdx.x);
  for (int row = static_cast<int>(blockIdx.x); row < heads * n;
       row += static_cast<int>(gridDim.x)) {
    const int head = row / n, seen = causal ? row % n + 1 : n;
    const float* const key = k + static_cast<std::int64_t>(head) * n * dim;
    const float* const value = v + static_cast<std::int64_t>(head) * n * dim;
    float max = -INFINITY, sum = 0.0F;
    for (int j = thread; j < seen; j += threads) {
      float dot = 0.0F;
      for (int c = 0; c < dim; ++c) dot = fmaf(q[row * dim + c], key[j * dim + c], dot);
      weights[j] = dot * 0.125F;
      max = fmaxf(max, weights[j]);
    }
    max = reduce(max, partial, [](float a, float b) { return fmaxf(a, b); });
    for (int j = thread; j < seen; j += threads) {
      weights[j] = expf(weights[j] - max);
      sum += weights[j];
    }
    sum = reduce(sum, partial, [](float a, float b) { return a + b; });
    if (thread < dim) {
      float mixed = 0.0F;
      for (int j = 0; j < seen; ++j) mixed = fmaf(weights[j], value[j * dim + thread], mixed);
      out[row * dim + thread] = mixed / sum;
    }
    __syncthreads();  // before the weights of the next row
  }
}

}  // namespace

void block_softmax(const Attention& a) {
  launch(block_softmax_kernel, a.heads * a.n / 4, threads, sizeof(float) * (warps + a.n), nullptr,
         static_cast<const float*>(a.q), static_cast<const float*>(a.k),
         static_cast<const float*>(a.v), a.out, a.heads, a.n, a.causal);
}

}  // namespace attn::test
