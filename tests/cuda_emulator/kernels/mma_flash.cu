// SPDX-License-Identifier: MIT
// Online softmax with mma.sync: 16 queries for each of four warps, keys in tiles of 32 that arrive by
// cp.async in two buffers while the other is in use. Scores and weights stay in registers: the sums
// of the first product lie in the lanes as the left matrix of the second wants them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "impls/support/cuda.cuh"
#include "tests/cuda_emulator/kernels/kernels.hpp"

namespace attn::test {
namespace {

constexpr unsigned all_lanes = 0xFFFFFFFFU;
constexpr int dim = kernel_dim;
constexpr int warps = 4;
constexpr int rows = 16;  // of a warp
constexpr int keys = 32;  // of a tile
constexpr int chunk = 8;  // elements of 16 bytes
constexpr int chunks = dim / chunk;

// Where chunk c of row r lies: rows of 128 bytes take all 32 banks, so the chunks of eight rows that
// ldmatrix reads at once are spread over them.
__device__ int place(int r, int c) { return r * dim + (c ^ (r % chunks)) * chunk; }

template <class T>
__device__ void copy_rows(T* to, const T* from, int first, int count, int n) {
  for (int e = static_cast<int>(threadIdx.x); e < count * chunks; e += warps * 32) {
    const int r = e / chunks, c = e % chunks;
    cp_async(to + place(r, c), from + (first + r) * dim + c * chunk, first + r < n);
  }
}

template <class T>
__device__ unsigned pair(float first, float second) {
  unsigned bits;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 both = __floats2half2_rn(first, second);
    memcpy(&bits, &both, sizeof(bits));
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
    memcpy(&bits, &both, sizeof(bits));
  }
  return bits;
}

template <class T>
__global__ void mma_flash_kernel(const T* q, const T* k, const T* v, float* out, int n,
                                 bool causal) {
  ATTN_DYNAMIC_SHARED(T, shared);
  T* const q_tile = shared;
  T* const kv_tiles = shared + warps * rows * dim;  // two buffers of k [keys, dim], v [keys, dim]
  const int tiles = (n + warps * rows - 1) / (warps * rows);
  const int head = static_cast<int>(blockIdx.x) / tiles;
  const int block_row = static_cast<int>(blockIdx.x) % tiles * warps * rows;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t offset = static_cast<std::int64_t>(head) * n * dim;
  const int block_end = block_row + warps * rows;
  const int end = causal && block_end < n ? block_end : n;
  // This lane has elements of two rows of each product.
  const int i[2] = {block_row + warp * rows + lane / 4, block_row + warp * rows + lane / 4 + 8};
  const int seen[2] = {causal && i[0] < n ? i[0] + 1 : n, causal && i[1] < n ? i[1] + 1 : n};

  const auto copy_tile = [&](int j_0, T* to) {
    copy_rows(to, k + offset, j_0, keys, n);
    copy_rows(to + keys * dim, v + offset, j_0, keys, n);
    cp_async_commit();
  };
  copy_rows(q_tile, q + offset, block_row, warps * rows, n);
  cp_async_commit();
  copy_tile(0, kv_tiles);
  cp_async_wait<1>();
  __syncthreads();  // q is there
  unsigned q_parts[dim / 16][4];
  for (int c = 0; c < dim / 16; ++c) {
    ldmatrix(q_parts[c], q_tile + place(warp * rows + lane % 16, 2 * c + lane / 16));
  }

  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, mixed[dim / 8][4] = {};
  for (int j_0 = 0; j_0 < end; j_0 += keys) {
    const T* const k_tile = kv_tiles + j_0 / keys % 2 * 2 * keys * dim;
    const T* const v_tile = k_tile + keys * dim;
    copy_tile(j_0 + keys, kv_tiles + (j_0 / keys + 1) % 2 * 2 * keys * dim);
    cp_async_wait<1>();
    __syncthreads();  // the tile is there

    float scores[keys / 8][4] = {};
    for (int t = 0; t < keys / 8; ++t) {
      for (int c = 0; c < dim / 32; ++c) {
        unsigned parts[4];
        ldmatrix(parts, k_tile + place(8 * t + lane % 8, 4 * c + lane / 8));
        mma_m16n8k16<T>(scores[t], q_parts[2 * c], {parts[0], parts[1]});
        mma_m16n8k16<T>(scores[t], q_parts[2 * c + 1], {parts[2], parts[3]});
      }
    }
    for (int r = 0; r < 2; ++r) {
      float new_max = max[r];
      for (int t = 0; t < keys / 8; ++t) {
        for (int e = 0; e < 2; ++e) {
          float& score = scores[t][2 * r + e];
          score = j_0 + 8 * t + 2 * (lane % 4) + e < seen[r] ? score * 0.125F : -INFINITY;
          new_max = fmaxf(new_max, score);
        }
      }
      // A row is in four neighbouring lanes.
      new_max = fmaxf(new_max, __shfl_xor_sync(all_lanes, new_max, 1));
      new_max = fmaxf(new_max, __shfl_xor_sync(all_lanes, new_max, 2));
      const float scale = expf(max[r] - new_max);
      max[r] = new_max;
      sum[r] *= scale;
      for (int t = 0; t < dim / 8; ++t) {
        for (int e = 0; e < 2; ++e) mixed[t][2 * r + e] *= scale;
      }
      for (int t = 0; t < keys / 8; ++t) {
        for (int e = 0; e < 2; ++e) {
          float& score = scores[t][2 * r + e];
          score = expf(score - new_max);
          sum[r] += score;
        }
      }
    }
    for (int s = 0; s < keys / 16; ++s) {
      const unsigned weights[4] = {pair<T>(scores[2 * s][0], scores[2 * s][1]),
                                   pair<T>(scores[2 * s][2], scores[2 * s][3]),
                                   pair<T>(scores[2 * s + 1][0], scores[2 * s + 1][1]),
                                   pair<T>(scores[2 * s + 1][2], scores[2 * s + 1][3])};
      for (int c = 0; c < chunks; c += 2) {
        unsigned parts[4];
        ldmatrix_transposed(parts, v_tile + place(16 * s + lane % 16, c + lane / 16));
        mma_m16n8k16<T>(mixed[c], weights, {parts[0], parts[1]});
        mma_m16n8k16<T>(mixed[c + 1], weights, {parts[2], parts[3]});
      }
    }
    __syncthreads();  // the tile is read, and its buffer free
  }
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(all_lanes, sum[r], 1);
    sum[r] += __shfl_xor_sync(all_lanes, sum[r], 2);
    if (i[r] >= n) continue;
    for (int t = 0; t < dim / 8; ++t) {
      for (int e = 0; e < 2; ++e) {
        out[offset + static_cast<std::int64_t>(i[r]) * dim + 8 * t + 2 * (lane % 4) + e] =
            mixed[t][2 * r + e] / sum[r];
      }
    }
  }
}

template <class T>
void run(const Attention& a) {
  launch(mma_flash_kernel<T>, a.heads * ceil_div(a.n, warps * rows), warps * 32,
         sizeof(T) * (warps * rows + 4 * keys) * dim, nullptr, static_cast<const T*>(a.q),
         static_cast<const T*>(a.k), static_cast<const T*>(a.v), a.out, a.n, a.causal);
}

}  // namespace

void mma_flash_half(const Attention& a) { run<__half>(a); }
void mma_flash_bfloat(const Attention& a) { run<__nv_bfloat16>(a); }

}  // namespace attn::test
