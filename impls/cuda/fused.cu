// SPDX-License-Identifier: MIT
// Idea: one pass over the keys in tiles, with a running maximum and sum per row: S never leaves the
//   chip.
// Math: per tile of 64 keys: m' = max(m, row max of S), r = exp(m - m'), P = exp(S - m'), l = l r +
//   sum P, O = O r + P V; at the end Z = O / l. exp is exp2f of log2(e) times the difference: folded
//   into the scale instead, log2(e) costs digits where scores are large. m starts as the least float
//   and (m - m) / l is added to l, for the reasons of cpu.online.
// Memory traffic (elements, per KV head and block of rows that sees `keys` keys): q and the output
//   once, rows (d + d_v), k and v once, keys (d + d_v); log_sum_exp, if wanted, rows more.
// Why this shape: rows are (query, head of the group) pairs, so a K/V tile serves the whole group. A
//   lane holds 8 x 8 scores and 8 x 8 outputs: 16 reads of 8 (scores) or 16 bytes (mixing) feed 128
//   or 256 multiply-adds, and lanes that share a row or a key share the read. A row lies in one warp:
//   its maximum takes shuffles, and P goes through shared memory, 16
//   keys at a time, behind a warp barrier (shuffles would move 4 bytes a lane, not 16). K comes in
//   slices of 32 dimensions, V in slices of 16 keys: two buffers, one block barrier a slice, the next
//   slice in registers meanwhile. 128 dimensions are spread over 16 columns of lanes, not 8: O would
//   not fit the registers. 48, 64 and 55 KiB for d to 32, 64 and 128: sm_75 has 64.
// Limits: f32, head_dim and head_dim_v up to 128, no key lengths, no probabilities. Tiles are computed
//   whole, except that mixing skips, pair by pair, what the mask hides: 0 * NaN would be NaN.
// Source: Dao 2023 (FlashAttention-2), algorithm 1; the register tile is that of an SGEMM.
#include <cmath>
#include <limits>
#include <type_traits>

#include "impls/attention.hpp"
#include "impls/support/cuda.cuh"

namespace attn {
namespace {

constexpr int block_threads = 128;
constexpr int warp = 32;
constexpr unsigned all_lanes = 0xFFFFFFFFU;
constexpr int most_dims = 128;
constexpr int tile_keys = 64;
constexpr int depth = 32;       // dimensions of a slice of K
constexpr int mixed_keys = 16;  // keys of a slice of V, and of P at a time
constexpr int rows = 8;         // of a lane
constexpr int most_elements = tile_keys * depth / block_threads;  // of a slice, of a thread
constexpr float log2_e = 1.44269504F;
constexpr float hidden = -1.0F;  // a weight that the mask hides; none of exp2f is
constexpr float least = std::numeric_limits<float>::lowest();

// How a warp's lanes share its tile: lane l has the rows row + lane_rows x and the keys column +
// columns y. `dims` is head_dim and head_dim_v, padded.
//
// Banks. Scores read 64 bits, a half warp at a time: the rows of K of its 8 columns begin 4 banks after
// one another (36, 68 and 132 are 4 modulo 32), its rows of Q likewise. P: 4 rows begin at banks 0, 24,
// 16, 8 and 2 rows at 0 and 16, so a warp stores 32 weights in 32 banks. V is read, and everything else
// stored, along a row.
template <int dims>
struct Layout {
  static constexpr int columns = dims == 128 ? 16 : 8;
  static constexpr int lane_rows = warp / columns;
  static constexpr int warp_rows = lane_rows * rows;
  static constexpr int block_rows = block_threads / warp * warp_rows;
  static constexpr int keys = tile_keys / columns;  // of a lane
  static constexpr int outputs = dims / columns;    // of a lane, by fours
  static constexpr int q_stride = dims + 4;
  static constexpr int k_stride = depth + 4;
  static constexpr int p_stride = columns == 16 ? 16 : 24;
  static constexpr int slice = tile_keys * k_stride;  // that of V, 16 dims, is no larger
  static constexpr std::size_t shared_bytes =
      (block_rows * (q_stride + p_stride) + 2 * slice) * sizeof(float);
};

__device__ float& at(float4& quad, int i) {
  return i == 0 ? quad.x : i == 1 ? quad.y : i == 2 ? quad.z : quad.w;
}
__device__ float2 pair_at(const float* first) { return *reinterpret_cast<const float2*>(first); }
__device__ float4& quad_at(float* first) { return *reinterpret_cast<float4*>(first); }

// One slice of K or V on its way through registers: `slice_keys` keys from j_0 on, `slice_dims`
// dimensions from c_0 on, zeros past the row's end. Keys at and past `keys`, which no row of the block
// sees, are zeros and not read. Consecutive threads take consecutive elements, one a load: words of
// 128 bits need aligned rows, which views do not promise, a kernel for each case doubles what is
// compiled, and a branch spilled registers; there are 128 multiply-adds for each of these loads.
template <int slice_keys, int slice_dims, int stride>
struct Slice {
  static constexpr int step = block_threads / slice_dims;  // keys
  static constexpr int elements = slice_keys / step;       // of a thread

  static __device__ void fetch(const DeviceView<const float>& of, const float* head,
                               std::int64_t width, std::int64_t j_0, std::int64_t keys, int c_0,
                               float (&next)[most_elements]) {
    const int j = static_cast<int>(threadIdx.x) / slice_dims;
    const int c = c_0 + static_cast<int>(threadIdx.x) % slice_dims;
    const float* const from = head + (j_0 + j) * of.token_stride + c;
    const int left =
        c < width ? static_cast<int>(keys - j_0 < slice_keys ? keys - j_0 : slice_keys) : 0;
#pragma unroll
    for (int e = 0; e < elements; ++e) {
      next[e] = j + e * step < left ? from[e * step * of.token_stride] : 0.0F;
    }
  }
  static __device__ void place(const float (&next)[most_elements], float* slice) {
    float* const to = slice + threadIdx.x / slice_dims * stride + threadIdx.x % slice_dims;
#pragma unroll
    for (int e = 0; e < elements; ++e) to[e * step * stride] = next[e];
  }
};

// Adds one slice of dimensions onto the scores of a lane, two at a time: by four the 64-dimension kernel
// spilled on every architecture.
template <class L>
__device__ void add_scores(const float* q, const float* k, float (&s)[rows][L::keys]) {
#pragma unroll 1
  for (int c = 0; c < depth; c += 2) {
    float2 a[rows];
#pragma unroll
    for (int x = 0; x < rows; ++x) a[x] = pair_at(q + x * L::lane_rows * L::q_stride + c);
#pragma unroll
    for (int y = 0; y < L::keys; ++y) {
      const float2 w = pair_at(k + y * L::columns * L::k_stride + c);
#pragma unroll
      for (int x = 0; x < rows; ++x) {
        s[x][y] = fmaf(a[x].x, w.x, s[x][y]);
        s[x][y] = fmaf(a[x].y, w.y, s[x][y]);
      }
    }
  }
}

// Scores become weights; O and l come to the new maximum. l stays a sum over the lane's own keys.
template <class L>
__device__ void soften(float (&s)[rows][L::keys], float (&o)[rows][L::outputs], float (&m)[rows],
                       float (&l)[rows]) {
#pragma unroll
  for (int x = 0; x < rows; ++x) {
    float max = m[x];
#pragma unroll
    for (int y = 0; y < L::keys; ++y) max = fmaxf(max, s[x][y]);
#pragma unroll
    for (int other = 2; other < 2 * L::columns; other *= 2) {
      max = fmaxf(max, __shfl_xor_sync(all_lanes, max, other));
    }
    const float rescale = exp2f((m[x] - max) * log2_e);
    m[x] = max;
    l[x] *= rescale;
#pragma unroll
    for (int y = 0; y < L::keys; ++y) l[x] += s[x][y] = exp2f((s[x][y] - max) * log2_e);
#pragma unroll
    for (int z = 0; z < L::outputs; ++z) o[x][z] *= rescale;
  }
}

// Adds one slice of keys onto the outputs of a lane; guarded: but for hidden weights.
template <class L, int dims, bool guarded>
__device__ void mix(float* p, float* v, float (&o)[rows][L::outputs]) {
#pragma unroll 1
  for (int j = 0; j < mixed_keys; j += 4) {
    float4 a[rows];
#pragma unroll
    for (int x = 0; x < rows; ++x) a[x] = quad_at(p + x * L::lane_rows * L::p_stride + j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int z = 0; z < L::outputs; z += 4) {
        const float4 w = quad_at(v + (j + i) * dims + z * L::columns);
#pragma unroll
        for (int x = 0; x < rows; ++x) {
          const float weight = at(a[x], i);
          if (guarded && weight == hidden) continue;
          o[x][z] = fmaf(weight, w.x, o[x][z]);
          o[x][z + 1] = fmaf(weight, w.y, o[x][z + 1]);
          o[x][z + 2] = fmaf(weight, w.z, o[x][z + 2]);
          o[x][z + 3] = fmaf(weight, w.w, o[x][z + 3]);
        }
      }
    }
  }
}

__device__ int clamp(std::int64_t value, int from, int to) {
  return static_cast<int>(value < from ? from : value < to ? value : to);
}

// Row r of a block is head (first + r) % group of query i_0 + (first + r) / group.
struct BlockRows {
  std::int64_t i_0, left;  // `left` rows from the first one on
  unsigned first, group;

  __device__ BlockRows(const DeviceShape& p, std::int64_t row_0)
      : i_0(row_0 / p.group),
        left(p.n_q * p.group - row_0),
        first(static_cast<unsigned>(row_0 % p.group)),
        group(static_cast<unsigned>(p.group)) {}
  __device__ int query_ahead(int r) const { return static_cast<int>((first + r) / group); }
  __device__ std::int64_t query(int r) const { return i_0 + query_ahead(r); }
  __device__ int head(int r) const { return static_cast<int>((first + r) % group); }
};

template <int dims>
__global__ void __launch_bounds__(block_threads)
    fused_kernel(DeviceShape p, std::int64_t row_tiles, DeviceView<const float> q,
                 DeviceView<const float> k, DeviceView<const float> v, DeviceView<float> out,
                 bool out_in_quads, DeviceView<float> log_sum_exp) {
  using L = Layout<dims>;
  using SliceOfK = Slice<tile_keys, depth, L::k_stride>;
  using SliceOfV = Slice<mixed_keys, dims, dims>;
  ATTN_DYNAMIC_SHARED(float, q_tile);                          // [block_rows][q_stride]
  float* const p_tile = q_tile + L::block_rows * L::q_stride;  // [block_rows][p_stride]
  float* const slices = p_tile + L::block_rows * L::p_stride;  // two
  const int lane = threadIdx.x % warp;
  const int column = lane / 2 % L::columns;
  const int row = threadIdx.x / warp * L::warp_rows + lane % 2 + lane / (2 * L::columns) * 2;
  float* const p_row = p_tile + row * L::p_stride;

  const std::int64_t heads = p.batch * p.heads_kv;
  int parity = 0;  // which slice is next
  for (std::int64_t t = blockIdx.x; t < heads * row_tiles; t += gridDim.x) {
    // The last rows see the most keys: longest first.
    const std::int64_t row_0 = (row_tiles - 1 - t / heads) * L::block_rows;
    const int b = static_cast<int>(t % heads / p.heads_kv), h = static_cast<int>(t % p.heads_kv);
    const BlockRows block(p, row_0);
    const int live = static_cast<int>(block.left < L::block_rows ? block.left : L::block_rows);
    const std::int64_t common = p.visible(block.i_0), keys = p.visible(block.query(live - 1));
    const float* const k_head = k.row(b, h, 0);
    const float* const v_head = v.row(b, h, 0);

    for (int e = threadIdx.x; e < L::block_rows * dims; e += block_threads) {
      const int r = e / dims, c = e % dims;
      q_tile[r * L::q_stride + c] = r < live && c < p.head_dim
                                        ? q.row(b, h * p.group + block.head(r), block.query(r))[c]
                                        : 0.0F;
    }

    float o[rows][L::outputs] = {}, l[rows] = {}, m[rows];
    for (int x = 0; x < rows; ++x) m[x] = least;
    float next[most_elements];
    if (keys > 0) SliceOfK::fetch(k, k_head, p.head_dim, 0, keys, 0, next);
    for (std::int64_t j_0 = 0; j_0 < keys; j_0 += tile_keys) {
      float s[rows][L::keys] = {};
      for (int c_0 = 0; c_0 < p.head_dim; c_0 += depth, parity ^= 1) {
        float* const slice = slices + parity * L::slice;
        SliceOfK::place(next, slice);
        // The slice and, at first, Q are written before they are read; and who passes has done with
        // the other slice, which is written next, and with P.
        __syncthreads();
        if (c_0 + depth < p.head_dim) {
          SliceOfK::fetch(k, k_head, p.head_dim, j_0, keys, c_0 + depth, next);
        } else {
          SliceOfV::fetch(v, v_head, p.head_dim_v, j_0, keys, 0, next);
        }
        add_scores<L>(q_tile + row * L::q_stride + c_0, slice + column * L::k_stride, s);
      }

      const bool masked = j_0 + tile_keys > common;
      const int corner = clamp(p.causal ? block.i_0 + 1 + p.n_kv - p.n_q - j_0 : tile_keys,
                               -L::block_rows, tile_keys);
      const int left = clamp(p.n_kv - j_0, 0, tile_keys);
      int seen[rows] = {};
#pragma unroll
      for (int x = 0; x < rows; ++x) {
        const int r = row + x * L::lane_rows;
        if (masked && r < live) seen[x] = clamp(corner + block.query_ahead(r), 0, left);
#pragma unroll
        for (int y = 0; y < L::keys; ++y) {
          s[x][y] *= p.scale;
          if (masked && column + y * L::columns >= seen[x]) s[x][y] = -INFINITY;
        }
      }
      soften<L>(s, o, m, l);
      if (masked) {
#pragma unroll
        for (int x = 0; x < rows; ++x) {
#pragma unroll
          for (int y = 0; y < L::keys; ++y) {
            if (column + y * L::columns >= seen[x]) s[x][y] = hidden;
          }
        }
      }

#pragma unroll
      for (int first = 0; first < tile_keys; first += mixed_keys, parity ^= 1) {
        float* const slice = slices + parity * L::slice;
        SliceOfV::place(next, slice);
        __syncthreads();  // as above
        if (first + mixed_keys < tile_keys) {
          SliceOfV::fetch(v, v_head, p.head_dim_v, j_0 + first + mixed_keys, keys, 0, next);
        } else if (j_0 + tile_keys < keys) {
          SliceOfK::fetch(k, k_head, p.head_dim, j_0 + tile_keys, keys, 0, next);
        }
#pragma unroll
        for (int x = 0; x < rows; ++x) {
#pragma unroll
          for (int y = 0; y < mixed_keys / L::columns; ++y) {
            p_row[x * L::lane_rows * L::p_stride + column + y * L::columns] =
                s[x][first / L::columns + y];
          }
        }
        __syncwarp();  // a row of P is written and read by one warp
        if (masked) {
          mix<L, dims, true>(p_row, slice + column * 4, o);
        } else {
          mix<L, dims, false>(p_row, slice + column * 4, o);
        }
      }
    }

#pragma unroll
    for (int x = 0; x < rows; ++x) {
      float sum = l[x];
#pragma unroll
      for (int other = 2; other < 2 * L::columns; other *= 2) {
        sum += __shfl_xor_sync(all_lanes, sum, other);
      }
      const int r = row + x * L::lane_rows;
      if (r >= live) continue;
      const std::int64_t i = block.query(r), head = h * p.group + block.head(r);
      const bool sees = p.visible(i) > 0;
      sum += (m[x] - m[x]) / sum;
      const float inverse = sees ? 1.0F / sum : 0.0F;
      if (log_sum_exp.data != nullptr && column == 0) {
        log_sum_exp.row(b, head, i)[0] = sees ? m[x] + logf(sum) : -INFINITY;
      }
      float* const to = out.row(b, head, i);
#pragma unroll
      for (int z = 0; z < L::outputs; z += 4) {
        const int c = column * 4 + z * L::columns;
        if (out_in_quads) {
          const float4 quad{o[x][z] * inverse, o[x][z + 1] * inverse, o[x][z + 2] * inverse,
                            o[x][z + 3] * inverse};
          if (c < p.head_dim_v) quad_at(to + c) = quad;
        } else {
          for (int e = 0; e < 4; ++e) {
            if (c + e < p.head_dim_v) to[c + e] = o[x][z + e] * inverse;
          }
        }
      }
    }
  }
}

// Calls f with the layout that the problem takes: std::integral_constant<int, dims>.
template <class F>
void with_dims(const Problem& p, F&& f) {
  const std::int64_t needed = std::max(p.head_dim, p.head_dim_v);
  if (needed <= 32) return f(std::integral_constant<int, 32>());
  if (needed <= 64) return f(std::integral_constant<int, 64>());
  f(std::integral_constant<int, most_dims>());
}

std::optional<Refusal> refuses(const Problem& p) {
  if (p.head_dim > most_dims || p.head_dim_v > most_dims) {
    return Refusal{.sentence = "takes head_dim and head_dim_v up to " + std::to_string(most_dims)};
  }
  return refuse_unless_plain_device_core(p);
}

Cost cost(const Problem& p) {
  const DeviceShape shape(p);
  Cost cost;
  with_dims(p, [&](auto dims) {
    using L = Layout<dims()>;
    const std::int64_t all_rows = p.n_q * shape.group;
    const std::int64_t depths = ceil_div(p.head_dim, depth) * depth;
    for (std::int64_t row_0 = 0; row_0 < all_rows; row_0 += L::block_rows) {
      const std::int64_t end = std::min<std::int64_t>(row_0 + L::block_rows, all_rows);
      const std::int64_t keys = shape.visible((end - 1) / shape.group);
      const std::int64_t tiles = ceil_div(keys, tile_keys);
      // Keys in tiles that every row sees whole; mixing does the rest pair by pair.
      const std::int64_t whole = shape.visible(row_0 / shape.group) / tile_keys * tile_keys;
      std::int64_t mixed = L::block_rows * whole;
      for (std::int64_t row = row_0; row < end; ++row) {
        mixed += shape.visible(row / shape.group) - whole;
      }
      cost.flops += 2 * (tiles * tile_keys * L::block_rows * depths + mixed * dims());
      cost.exps += tiles * L::block_rows * (tile_keys + L::columns);
      cost.bytes += 4 * (end - row_0 + keys) * (p.head_dim + p.head_dim_v);
    }
  });
  const std::int64_t heads = p.batch * p.heads_kv;
  cost.flops *= heads, cost.exps *= heads, cost.bytes *= heads;
  return cost;
}

// Whether every row of `width` elements is a whole number of aligned 128-bit words. Views promise
// neither.
template <class Void>
bool in_quads(const BasicView<Void>& view, std::int64_t width) {
  const std::int64_t strides = view.batch_stride | view.head_stride | view.token_stride;
  return reinterpret_cast<std::uintptr_t>(view.data) % sizeof(float4) == 0 &&
         (width | strides) % 4 == 0;
}

void run(const Problem& p, const Io& io, void* /*state*/, void* /*scratch*/) {
  with_dims(p, [&](auto dims) {
    using L = Layout<dims()>;
    const std::int64_t row_tiles = ceil_div(p.n_q * (p.heads / p.heads_kv), L::block_rows);
    launch(fused_kernel<dims()>, p.batch * p.heads_kv * row_tiles, block_threads, L::shared_bytes,
           io.stream, DeviceShape(p), row_tiles, DeviceView<const float>(io.q),
           DeviceView<const float>(io.k), DeviceView<const float>(io.v), DeviceView<float>(io.out),
           in_quads(io.out, p.head_dim_v), DeviceView<float>(io.log_sum_exp));
  });
}

}  // namespace

Backend cuda_fused() {
  return {.name = "cuda.fused",
          .exploits_sharing = true,
          .offers_log_sum_exp = true,
          .memory = Memory::device,
          .refuses = refuses,
          .cost = cost,
          .run = run};
}

}  // namespace attn
