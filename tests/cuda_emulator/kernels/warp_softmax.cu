// SPDX-License-Identifier: MIT
// A warp per query: keys in tiles of 32, one for each lane, with an online softmax. Lanes hand each
// other their weights through shared memory, ordered by warp barriers alone.
#include "impls/support/cuda.cuh"
#include "tests/cuda_emulator/kernels/kernels.hpp"

namespace attn::test {
namespace {

constexpr unsigned all_lanes = 0xFFFFFFFFU;
constexpr int warps = 4;
constexpr int dim = kernel_dim;

__global__ void warp_softmax_kernel(const float* q, const float* k, const float* v, float* out,
                                    int heads, int n, bool causal) {
  ATTN_DYNAMIC_SHARED(float, shared);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  float* const weights = shared + warp * 32;
  const int row = static_cast<int>(blockIdx.x) * warps + warp;
  if (row >= heads * n) return;
  const int seen = causal ? row % n + 1 : n;
  const float* const key = k + static_cast<std::int64_t>(row / n) * n * dim;
  const float* const value = v + static_cast<std::int64_t>(row / n) * n * dim;
  float max = -INFINITY, sum = 0.0F, mixed[2] = {};
  for (int j_0 = 0; j_0 < seen; j_0 += 32) {
    const int j = j_0 + lane;
    float dot = 0.0F;
    for (int c = 0; c < dim && j < seen; ++c) dot = fmaf(q[row * dim + c], key[j * dim + c], dot);
    const float score = j < seen ? dot * 0.125F : -INFINITY;
    float tile_max = score;
    for (int other = 16; other > 0; other /= 2) {
      tile_max = fmaxf(tile_max, __shfl_xor_sync(all_lanes, tile_max, other));
    }
    const float new_max = fmaxf(max, tile_max), scale = expf(max - new_max);
    const float weight = expf(score - new_max);
    max = new_max;
    weights[lane] = weight;
    __syncwarp();  // all weights are there
    sum *= scale;
    for (float& m : mixed) m *= scale;
    for (int e = 0; e < 32 && j_0 + e < seen; ++e) {
      sum += weights[e];
      for (int half = 0; half < 2; ++half) {
        mixed[half] = fmaf(weights[e], value[(j_0 + e) * dim + lane + 32 * half], mixed[half]);
      }
    }
    __syncwarp();  // all weights are read
  }
  __syncwarp();  // redundant: what is left stays in each lane
  for (int half = 0; half < 2; ++half) out[row * dim + lane + 32 * half] = mixed[half] / sum;
}

}  // namespace

void warp_softmax(const Attention& a) {
  launch(warp_softmax_kernel, ceil_div(a.heads * a.n, warps), warps * 32,
         sizeof(float) * warps * 32, nullptr, static_cast<const float*>(a.q),
         static_cast<const float*>(a.k), static_cast<const float*>(a.v), a.out, a.heads, a.n,
         a.causal);
}

}  // namespace attn::test
