// SPDX-License-Identifier: MIT
// Idea: the two products of cuda.naive as tiles of 64 x 64 in shared memory, softmax as a warp per
//   row.
// Math: S = scale * Q K^T, A = softmax of its rows, in place, Z = A V: three kernels, all heads at
//   once.
// Memory traffic (elements, per head and 64 rows i): scores read q once per tile of 64 keys and k
//   once (64 t d + min(64 t, n_kv) d, t tiles) and write each visible pair; softmax reads a pair
//   three times and writes it twice; mixing, per 64 output dimensions, reads each visible weight
//   once and v once and writes the outputs. A kernel stops at the last key that its last row sees.
// Why this shape: 256 threads hold 4 x 4 sums each, so 8 reads of shared memory feed 16
//   multiply-adds (one read each in a tile without registers). Depth 32 makes a warp read one row
//   of 128 bytes; it is stored transposed with stride 65, so the 32 lanes hit 32 banks, and sums
//   read 16 consecutive floats or a broadcast. Under a causal mask the chunks that some row does
//   not see take a guarded loop instead of zero weights, because 0 * NaN would be NaN.
// Limits: f32, no key lengths, no probabilities; scratch is all of S, B h n_q n_kv. Tiles are
//   computed whole, so flops exceed the model where a size is no multiple of 64, most with one
//   query.
// Source: the tiling is folklore (CUDA C++ Programming Guide, "Shared Memory"); S in memory as
//   kernel 1.
#include <cmath>

#include "impls/attention.hpp"
#include "impls/support/cuda.cuh"

namespace attn {
namespace {

constexpr int tile = 64;   // rows and columns of a block's outputs
constexpr int depth = 32;  // of the summed dimension per chunk: a warp's width
constexpr int side = 16;   // threads along each edge of a tile
constexpr int sums = tile / side;
constexpr int block_threads = side * side;
constexpr int warp = 32;
constexpr int stride = tile + 1;  // of a chunk in shared memory
constexpr std::size_t shared_bytes = 2 * depth * stride * sizeof(float);

// s [batch, heads, n_q, n_kv]; scores behind the mask are not written and later not read.
__global__ void __launch_bounds__(block_threads)
    scores_kernel(DeviceShape p, DeviceView<const float> q, DeviceView<const float> k, float* s) {
  ATTN_DYNAMIC_SHARED(float, q_chunk);
  float* const k_chunk = q_chunk + depth * stride;
  const int lane = threadIdx.x % warp, warp_index = threadIdx.x / warp;
  const int column = threadIdx.x % side, row = threadIdx.x / side;
  const std::int64_t key_tiles = ceil_div(p.n_kv, tile), row_tiles = ceil_div(p.n_q, tile);
  const std::int64_t tiles = p.batch * p.heads * row_tiles * key_tiles;

  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const std::int64_t j_0 = t % key_tiles * tile, i_0 = t / key_tiles % row_tiles * tile;
    const std::int64_t head = t / key_tiles / row_tiles, b = head / p.heads, h = head % p.heads;
    const std::int64_t last = i_0 + tile < p.n_q ? i_0 + tile - 1 : p.n_q - 1;
    if (j_0 >= p.visible(last)) continue;

    float sum[sums][sums] = {};
    for (std::int64_t c_0 = 0; c_0 < p.head_dim; c_0 += depth) {
      const std::int64_t c = c_0 + lane;
      for (int r = warp_index; r < tile; r += block_threads / warp) {
        q_chunk[lane * stride + r] =
            i_0 + r < p.n_q && c < p.head_dim ? q.row(b, h, i_0 + r)[c] : 0.0F;
        k_chunk[lane * stride + r] =
            j_0 + r < p.n_kv && c < p.head_dim ? k.row(b, h / p.group, j_0 + r)[c] : 0.0F;
      }
      __syncthreads();
      const int end = static_cast<int>(p.head_dim - c_0 < depth ? p.head_dim - c_0 : depth);
      for (int e = 0; e < end; ++e) {
        float a[sums], w[sums];
        for (int r = 0; r < sums; ++r) a[r] = q_chunk[e * stride + row + side * r];
        for (int r = 0; r < sums; ++r) w[r] = k_chunk[e * stride + column + side * r];
        for (int x = 0; x < sums; ++x) {
          for (int y = 0; y < sums; ++y) sum[x][y] = fmaf(a[x], w[y], sum[x][y]);
        }
      }
      __syncthreads();
    }
    for (int x = 0; x < sums; ++x) {
      const std::int64_t i = i_0 + row + side * x;
      for (int y = 0; y < sums; ++y) {
        const std::int64_t j = j_0 + column + side * y;
        if (j < p.visible(i)) s[(head * p.n_q + i) * p.n_kv + j] = sum[x][y] * p.scale;
      }
    }
  }
}

__global__ void __launch_bounds__(block_threads) softmax_kernel(DeviceShape p, float* s) {
  constexpr unsigned all_lanes = 0xFFFFFFFFU;
  constexpr int warps = block_threads / warp;
  const int lane = threadIdx.x % warp;
  const std::int64_t rows = p.batch * p.heads * p.n_q;
  const std::int64_t step = std::int64_t{gridDim.x} * warps;
  for (std::int64_t e = std::int64_t{blockIdx.x} * warps + threadIdx.x / warp; e < rows;
       e += step) {
    float* row = s + e * p.n_kv;
    const std::int64_t visible = p.visible(e % p.n_q);
    float max = -INFINITY;
    for (std::int64_t j = lane; j < visible; j += warp) max = fmaxf(max, row[j]);
    for (int other = warp / 2; other > 0; other /= 2) {
      max = fmaxf(max, __shfl_xor_sync(all_lanes, max, other));
    }
    float sum = 0.0F;
    for (std::int64_t j = lane; j < visible; j += warp) {
      const float weight = expf(row[j] - max);
      row[j] = weight;
      sum += weight;
    }
    for (int other = warp / 2; other > 0; other /= 2) {
      sum += __shfl_xor_sync(all_lanes, sum, other);
    }
    for (std::int64_t j = lane; j < visible; j += warp) row[j] /= sum;
  }
}

// Adds one chunk of keys onto a thread's sums; guarded: row x takes only keys before seen[x].
template <bool guarded>
__device__ void add_chunk(const float* a_chunk, const float* v_chunk, int row, int column, int end,
                          const int* seen, float (&sum)[sums][sums]) {
  for (int e = 0; e < end; ++e) {
    float a[sums], w[sums];
    for (int r = 0; r < sums; ++r) a[r] = a_chunk[e * stride + row + side * r];
    for (int r = 0; r < sums; ++r) w[r] = v_chunk[e * stride + column + side * r];
    for (int x = 0; x < sums; ++x) {
      if (guarded && e >= seen[x]) continue;
      for (int y = 0; y < sums; ++y) sum[x][y] = fmaf(a[x], w[y], sum[x][y]);
    }
  }
}

__global__ void __launch_bounds__(block_threads)
    mixing_kernel(DeviceShape p, const float* s, DeviceView<const float> v, DeviceView<float> out) {
  ATTN_DYNAMIC_SHARED(float, a_chunk);
  float* const v_chunk = a_chunk + depth * stride;
  const int lane = threadIdx.x % warp, warp_index = threadIdx.x / warp;
  const int column = threadIdx.x % side, row = threadIdx.x / side;
  const std::int64_t column_tiles = ceil_div(p.head_dim_v, tile), row_tiles = ceil_div(p.n_q, tile);
  const std::int64_t tiles = p.batch * p.heads * row_tiles * column_tiles;

  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const std::int64_t c_0 = t % column_tiles * tile, i_0 = t / column_tiles % row_tiles * tile;
    const std::int64_t head = t / column_tiles / row_tiles, b = head / p.heads, h = head % p.heads;
    const std::int64_t last = i_0 + tile < p.n_q ? i_0 + tile - 1 : p.n_q - 1;
    const std::int64_t common = p.visible(i_0), keys = p.visible(last);

    float sum[sums][sums] = {};
    for (std::int64_t j_0 = 0; j_0 < keys; j_0 += depth) {
      for (int r = warp_index; r < tile; r += block_threads / warp) {
        const std::int64_t i = i_0 + r;
        a_chunk[lane * stride + r] =
            j_0 + lane < p.visible(i) ? s[(head * p.n_q + i) * p.n_kv + j_0 + lane] : 0.0F;
      }
      for (int e = threadIdx.x / tile; e < depth; e += block_threads / tile) {
        const std::int64_t c = c_0 + threadIdx.x % tile;
        v_chunk[e * stride + threadIdx.x % tile] =
            j_0 + e < keys && c < p.head_dim_v ? v.row(b, h / p.group, j_0 + e)[c] : 0.0F;
      }
      __syncthreads();
      if (j_0 + depth <= common) {
        add_chunk<false>(a_chunk, v_chunk, row, column, depth, nullptr, sum);
      } else {
        int seen[sums];
        for (int x = 0; x < sums; ++x) {
          const std::int64_t ahead = p.visible(i_0 + row + side * x) - j_0;
          seen[x] = static_cast<int>(ahead < 0 ? 0 : ahead < depth ? ahead : depth);
        }
        add_chunk<true>(a_chunk, v_chunk, row, column, depth, seen, sum);
      }
      __syncthreads();
    }
    for (int x = 0; x < sums; ++x) {
      const std::int64_t i = i_0 + row + side * x;
      for (int y = 0; y < sums; ++y) {
        const std::int64_t c = c_0 + column + side * y;
        if (i < p.n_q && c < p.head_dim_v) out.row(b, h, i)[c] = sum[x][y];
      }
    }
  }
}

std::optional<Refusal> refuses(const Problem& p) { return refuse_unless_plain_device_core(p); }

Cost cost(const Problem& p) {
  const DeviceShape shape(p);
  const std::int64_t d = p.head_dim, d_v = p.head_dim_v;
  const std::int64_t column_tiles = ceil_div(d_v, tile);
  Cost cost;
  for (std::int64_t i_0 = 0; i_0 < p.n_q; i_0 += tile) {
    const std::int64_t rows = std::min<std::int64_t>(tile, p.n_q - i_0);
    const std::int64_t keys = shape.visible(i_0 + rows - 1);
    const std::int64_t key_tiles = ceil_div(keys, tile);
    // Keys in chunks that every row of the tile sees; the guarded loop does the rest pair by pair.
    const std::int64_t unguarded = shape.visible(i_0) / depth * depth;
    std::int64_t pairs = 0;
    for (std::int64_t i = i_0; i < i_0 + rows; ++i) pairs += shape.visible(i);
    cost.flops += 2 * key_tiles * tile * tile * d;
    cost.flops += 2 * column_tiles * tile * (tile * unguarded + pairs - rows * unguarded);
    cost.bytes += 4 * (key_tiles * rows * d + std::min(key_tiles * tile, p.n_kv) * d + 6 * pairs);
    cost.bytes += 4 * (column_tiles * pairs + keys * d_v + rows * d_v);
  }
  cost.flops *= p.batch * p.heads;
  cost.bytes *= p.batch * p.heads;
  cost.exps = p.heads * p.pairs();
  cost.scratch_bytes = 4 * p.batch * p.heads * p.n_q * p.n_kv;
  return cost;
}

void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  const DeviceShape shape(p);
  float* const s = static_cast<float*>(scratch);
  const std::int64_t heads = p.batch * p.heads, row_tiles = ceil_div(p.n_q, tile);
  const DeviceView<const float> q(io.q), k(io.k), v(io.v);
  const DeviceView<float> out(io.out);
  launch(scores_kernel, heads * row_tiles * ceil_div(p.n_kv, tile), block_threads, shared_bytes,
         io.stream, shape, q, k, s);
  launch(softmax_kernel, ceil_div(heads * p.n_q, block_threads / warp), block_threads, 0, io.stream,
         shape, s);
  launch(mixing_kernel, heads * row_tiles * ceil_div(p.head_dim_v, tile), block_threads,
         shared_bytes, io.stream, shape, s, v, out);
}

}  // namespace

Backend cuda_tiled() {
  return {
      .name = "cuda.tiled", .memory = Memory::device, .refuses = refuses, .cost = cost, .run = run};
}

}  // namespace attn
