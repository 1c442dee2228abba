// SPDX-License-Identifier: MIT
// Online softmax with wmma: 16 queries for each of four warps, keys in tiles of 32. No lane knows
// which elements of a fragment it has, so scores, weights and sums go through shared memory.
#include <cuda_fp16.h>
#include <mma.h>

#include "impls/support/cuda.cuh"
#include "tests/cuda_emulator/kernels/kernels.hpp"

namespace attn::test {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int dim = kernel_dim;
constexpr int warps = 4;
constexpr int rows = 16;  // of a warp
constexpr int keys = 32;  // of a tile

struct Shared {
  __half q[warps * rows * dim], k[keys * dim], v[keys * dim];
  struct Warp {
    float scores[rows * keys], sums[rows * dim];
    __half weights[rows * keys];
  } warp[warps];
};

using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;
using A = wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major>;
template <class Layout>
using B = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, Layout>;

// count rows from row `first` of [n, dim]; zeros behind the end.
__device__ void load_rows(__half* to, const __half* from, int first, int count, int n) {
  for (int e = static_cast<int>(threadIdx.x); e < count * dim; e += warps * 32) {
    to[e] = first + e / dim < n ? from[first * dim + e] : __float2half(0.0F);
  }
}

__global__ void wmma_flash_kernel(const __half* q, const __half* k, const __half* v, float* out,
                                  int n, bool causal) {
  ATTN_DYNAMIC_SHARED(Shared, shared);
  const int tiles = (n + warps * rows - 1) / (warps * rows);
  const int head = static_cast<int>(blockIdx.x) / tiles;
  const int block_row = static_cast<int>(blockIdx.x) % tiles * warps * rows;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t offset = static_cast<std::int64_t>(head) * n * dim;
  Shared::Warp& mine = shared->warp[warp];
  // Two lanes share a row: one has its even columns, the other its odd ones.
  const int row = lane / 2, i = block_row + warp * rows + row;
  const int seen = i >= n ? 0 : causal ? i + 1 : n;
  const int block_end = block_row + warps * rows;
  const int end = causal && block_end < n ? block_end : n;

  load_rows(shared->q, q + offset, block_row, warps * rows, n);
  for (int c = lane % 2; c < dim; c += 2) mine.sums[row * dim + c] = 0.0F;
  float max = -INFINITY, sum = 0.0F;
  for (int j_0 = 0; j_0 < end; j_0 += keys) {
    __syncthreads();  // the tile before is read
    load_rows(shared->k, k + offset, j_0, keys, n);
    load_rows(shared->v, v + offset, j_0, keys, n);
    __syncthreads();  // the tile is there
    for (int column = 0; column < keys; column += 16) {
      Sums scores;
      wmma::fill_fragment(scores, 0.0F);
      for (int c = 0; c < dim; c += 16) {
        A a;
        B<wmma::col_major> b;
        wmma::load_matrix_sync(a, shared->q + warp * rows * dim + c, dim);
        wmma::load_matrix_sync(b, shared->k + column * dim + c, dim);
        wmma::mma_sync(scores, a, b, scores);
      }
      wmma::store_matrix_sync(mine.scores + column, scores, keys, wmma::mem_row_major);
    }
    __syncwarp();  // scores are there
    float new_max = max;
    for (int c = lane % 2; c < keys && j_0 + c < seen; c += 2) {
      new_max = fmaxf(new_max, mine.scores[row * keys + c] * 0.125F);
    }
    new_max = fmaxf(new_max, __shfl_xor_sync(0xFFFFFFFFU, new_max, 1));
    const float scale = max == new_max ? 1.0F : expf(max - new_max);
    max = new_max;
    sum *= scale;
    for (int c = lane % 2; c < keys; c += 2) {
      const float weight = j_0 + c < seen ? expf(mine.scores[row * keys + c] * 0.125F - max) : 0.0F;
      sum += weight;
      mine.weights[row * keys + c] = __float2half(weight);
    }
    for (int c = lane % 2; c < dim; c += 2) mine.sums[row * dim + c] *= scale;
    __syncwarp();  // weights and scaled sums are there
    for (int column = 0; column < dim; column += 16) {
      Sums sums;
      wmma::load_matrix_sync(sums, mine.sums + column, dim, wmma::mem_row_major);
      for (int j = 0; j < keys; j += 16) {
        A a;
        B<wmma::row_major> b;
        wmma::load_matrix_sync(a, mine.weights + j, keys);
        wmma::load_matrix_sync(b, shared->v + j * dim + column, dim);
        wmma::mma_sync(sums, a, b, sums);
      }
      wmma::store_matrix_sync(mine.sums + column, sums, dim, wmma::mem_row_major);
    }
  }
  __syncwarp();  // the last sums are there
  sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
  if (i >= n) return;
  for (int c = lane % 2; c < dim; c += 2) {
    out[offset + static_cast<std::int64_t>(i) * dim + c] = mine.sums[row * dim + c] / sum;
  }
}

}  // namespace

void wmma_flash(const Attention& a) {
  launch(wmma_flash_kernel, a.heads * ceil_div(a.n, warps * rows), warps * 32, sizeof(Shared),
         nullptr, static_cast<const __half*>(a.q), static_cast<const __half*>(a.k),
         static_cast<const __half*>(a.v), a.out, a.n, a.causal);
}

}  // namespace attn::test
