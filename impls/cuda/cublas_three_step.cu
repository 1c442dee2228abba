// SPDX-License-Identifier: MIT
// Idea: the lesson's three steps with the vendor's GEMM: what cuda.tiled is to be measured against.
// Math: S = Q K^T by cuBLAS, A = softmax(scale * S) of its rows, in place, Z = A V by cuBLAS.
// Memory traffic (elements; a GEMM counts each operand once, per head, for a block of r rows that see
//   `common` to `keys` keys): scores read r d + keys d and write r keys; softmax reads a pair twice
//   and writes it once; mixing reads r common + common d_v and writes r d_v; a row with t keys past
//   `common` reads t (1 + d_v) and its d_v outputs, and writes these. Without a causal mask common =
//   keys; where common is 0, outputs are written, not read.
// Why this shape: one GEMM for all heads of a batch item, or for the heads of one KV head, whose
//   stride of K and V is then 0. Under a causal mask S is worked off in blocks of 256 rows: fewer make
//   more and smaller GEMMs, more leave more to rest_kernel, which adds the keys that not all rows of a
//   block see, for a weight that is zero by the mask must not meet a value: 0 * NaN is NaN. alpha is 1,
//   because a GEMM with alpha 0 reads nothing and would lose a NaN. Default math: at least the bits of
//   f32, no TF32. softmax_kernel finds maximum and sum in one pass: of 3 reads and 2 writes, 2 and 1
//   are left for a second exp.
// Limits: f32, no key lengths, no probabilities; scratch is all of S, B h n_q n_kv. cuBLAS is loaded
//   when it is first asked for: the program starts without it.
// Source: Vaswani et al. 2017, section 3.2.1.
#include <dlfcn.h>

#include <cmath>
#include <limits>

#include "impls/attention.hpp"
#include "impls/support/cuda.cuh"

namespace attn {
namespace {

constexpr int block_threads = 256;
constexpr int warp = 32;
constexpr int warps = block_threads / warp;
constexpr unsigned all_lanes = 0xFFFFFFFFU;
constexpr std::int64_t causal_rows = 256;
constexpr std::int64_t workspace_bytes = 4 << 20;  // what cuBLAS would allocate; lies in the state
constexpr float least = std::numeric_limits<float>::lowest();

// The few words of cuBLAS that are used here, from its documentation.
struct Cublas {
  using Handle = void*;
  enum Operation : int { as_is = 0, transposed = 1 };
  int (*get_property)(int which, int* value) = nullptr;
  int (*create)(Handle* handle) = nullptr;
  int (*set_stream)(Handle handle, cudaStream_t stream) = nullptr;
  int (*set_workspace)(Handle handle, void* workspace, std::size_t bytes) = nullptr;
  int (*sgemm)(Handle handle, Operation a_as, Operation b_as, int m, int n, int k,
               const float* alpha, const float* a, int a_leading, long long a_stride,
               const float* b, int b_leading, long long b_stride, const float* beta, float* c,
               int c_leading, long long c_stride, int count) = nullptr;
  std::string missing;  // what keeps it from being used

  Cublas() {
    const std::string name = "libcublas.so." + std::to_string(CUDART_VERSION / 1000);
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      missing = dlerror();
      return;
    }
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, symbol));
      if (function == nullptr) missing = name + " has no " + symbol;
    };
    find(get_property, "cublasGetProperty");
    find(create, "cublasCreate_v2");
    find(set_stream, "cublasSetStream_v2");
    find(set_workspace, "cublasSetWorkspace_v2");
    find(sgemm, "cublasSgemmStridedBatched");
  }
};

const Cublas& cublas() {
  static const Cublas library;
  return library;
}

#define ATTN_CUBLAS_CHECK(expression)                                                          \
  do {                                                                                         \
    if (const int status = (expression); status != 0) {                                        \
      throw std::runtime_error(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " + \
                               #expression + ": cuBLAS status " + std::to_string(status));     \
    }                                                                                          \
  } while (false)

// One handle for the process, made by the first prepare.
Cublas::Handle handle() {
  static const Cublas::Handle created = [] {
    Cublas::Handle made = nullptr;
    ATTN_CUBLAS_CHECK(cublas().create(&made));
    return made;
  }();
  return created;
}

// cuBLAS counts rows and columns in int.
int cublas_int(std::int64_t value) {
  if (value > std::numeric_limits<int>::max()) {
    throw std::length_error("a dimension or stride of " + std::to_string(value) +
                            " does not fit the integer of cuBLAS");
  }
  return static_cast<int>(value);
}

// Query rows begin ... begin + rows - 1: all of them see the first `common` keys, the last `keys`.
struct RowBlock {
  std::int64_t begin, rows, common, keys;
};

template <class F>
void for_each_row_block(const DeviceShape& p, F&& f) {
  const std::int64_t step = p.causal ? causal_rows : std::max<std::int64_t>(p.n_q, 1);
  for (std::int64_t begin = 0; begin < p.n_q; begin += step) {
    const std::int64_t rows = std::min(step, p.n_q - begin);
    f(RowBlock{begin, rows, p.visible(begin), p.visible(begin + rows - 1)});
  }
}

// What rest_kernel and the GEMMs agree on.
__host__ __device__ std::int64_t common_of(const DeviceShape& p, std::int64_t i) {
  return p.visible(p.causal ? i / causal_rows * causal_rows : i);
}

// s [batch, heads, n_q, n_kv], a warp per row: one pass for maximum and sum, one for the weights. A
// lane that saw no key holds the least float and 0; (max - max) / sum is NaN for a row with a score of
// +inf or of -inf alone, else 0.
__global__ void softmax_kernel(DeviceShape p, float* s, DeviceView<float> log_sum_exp) {
  const int lane = threadIdx.x % warp;
  const std::int64_t rows = p.batch * p.heads * p.n_q;
  const std::int64_t step = std::int64_t{gridDim.x} * warps;
  for (std::int64_t e = std::int64_t{blockIdx.x} * warps + threadIdx.x / warp; e < rows;
       e += step) {
    float* const row = s + e * p.n_kv;
    const std::int64_t visible = p.visible(e % p.n_q);
    float max = least, sum = 0.0F;
    for (std::int64_t j = lane; j < visible; j += warp) {
      const float score = row[j] * p.scale, above = score - max;
      const float factor = expf(-fabsf(above));
      sum = above > 0.0F ? sum * factor + 1.0F : sum + factor;
      max = fmaxf(max, score);
    }
    for (int other = warp / 2; other > 0; other /= 2) {
      const float other_max = __shfl_xor_sync(all_lanes, max, other);
      const float other_sum = __shfl_xor_sync(all_lanes, sum, other);
      const float both = fmaxf(max, other_max);
      sum = sum * expf(max - both) + other_sum * expf(other_max - both);
      max = both;
    }
    sum += (max - max) / sum;
    for (std::int64_t j = lane; j < visible; j += warp) {
      row[j] = expf(row[j] * p.scale - max) / sum;
    }
    if (log_sum_exp.data != nullptr && lane == 0) {
      const std::int64_t head = e / p.n_q;
      log_sum_exp.row(head / p.heads, head % p.heads, e % p.n_q)[0] =
          visible > 0 ? max + logf(sum) : -INFINITY;
    }
  }
}

// A thread per output: adds the keys past those that all rows of its block see.
__global__ void rest_kernel(DeviceShape p, const float* s, DeviceView<const float> v,
                            DeviceView<float> out) {
  const std::int64_t outputs = p.batch * p.heads * p.n_q * p.head_dim_v;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t e = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; e < outputs;
       e += step) {
    const std::int64_t c = e % p.head_dim_v, row = e / p.head_dim_v, i = row % p.n_q;
    const std::int64_t b = row / p.n_q / p.heads, h = row / p.n_q % p.heads;
    const std::int64_t common = common_of(p, i), visible = p.visible(i);
    if (common > 0 && common == visible) continue;
    float* const to = out.row(b, h, i) + c;
    float sum = common > 0 ? *to : 0.0F;
    for (std::int64_t j = common; j < visible; ++j) {
      sum = fmaf(s[row * p.n_kv + j], v.row(b, h / p.group, j)[c], sum);
    }
    *to = sum;
  }
}

// A column-major operand of cuBLAS is a row-major one transposed: row i starts at data + i * stride.
// Batch entries lie `apart` elements behind one another. A single row's stride means nothing.
template <class T>
struct Matrices {
  T* data;
  std::int64_t stride, apart;
  [[nodiscard]] int leading(std::int64_t row_length) const {
    return cublas_int(std::max<std::int64_t>({stride, row_length, 1}));
  }
};

// c [rows, columns] = a [rows, inner] b, with b [inner, columns], or [columns, inner] if transposed.
void multiply(Cublas::Operation b_as, std::int64_t rows, std::int64_t columns, std::int64_t inner,
              Matrices<const float> a, Matrices<const float> b, Matrices<float> c,
              std::int64_t count) {
  if (rows == 0 || columns == 0 || inner == 0 || count == 0) return;
  const float one = 1.0F, zero = 0.0F;
  const int b_leading = b.leading(b_as == Cublas::transposed ? inner : columns);
  ATTN_CUBLAS_CHECK(cublas().sgemm(handle(), b_as, Cublas::as_is, cublas_int(columns),
                                   cublas_int(rows), cublas_int(inner), &one, b.data, b_leading,
                                   b.apart, a.data, a.leading(inner), a.apart, &zero, c.data,
                                   c.leading(columns), c.apart, cublas_int(count)));
}

std::optional<Refusal> refuses(const Problem& p) {
  if (auto refusal = refuse_unless_plain_device_core(p)) return refusal;
  if (cublas().missing.empty()) return std::nullopt;
  return Refusal{.kind = Refusal::Kind::unavailable,
                 .sentence = "needs cuBLAS beside the CUDA device: " + cublas().missing};
}

Cost cost(const Problem& p) {
  const DeviceShape shape(p);
  const std::int64_t d = p.head_dim, d_v = p.head_dim_v;
  constexpr std::int64_t merging = 2 * warp * 5;  // exps of a row's lanes, log2(32) times
  Cost cost;
  for_each_row_block(shape, [&](RowBlock block) {
    cost.flops += 2 * block.rows * (block.keys * d + block.common * d_v);
    cost.bytes += 4 * (block.rows * d + block.keys * d + block.rows * block.keys);
    if (block.common > 0) {
      cost.bytes += 4 * (block.rows * block.common + block.common * d_v + block.rows * d_v);
    }
    for (std::int64_t i = block.begin; i < block.begin + block.rows; ++i) {
      const std::int64_t visible = shape.visible(i), rest = visible - block.common;
      cost.flops += 2 * rest * d_v;
      cost.exps += 2 * visible + merging;
      cost.bytes += 4 * (3 * visible + rest * 2 * d_v);
      if (rest > 0 || block.common == 0) cost.bytes += 4 * (block.common > 0 ? 2 : 1) * d_v;
    }
  });
  const std::int64_t heads = p.batch * p.heads;
  cost.flops *= heads, cost.exps *= heads, cost.bytes *= heads;
  cost.state_bytes = workspace_bytes;
  cost.scratch_bytes = 4 * heads * p.n_q * p.n_kv;
  return cost;
}

// The state is cuBLAS's workspace and needs no contents.
void prepare(const Problem& /*p*/, const Parameters& /*parameters*/, void* /*state*/) { handle(); }

void run(const Problem& p, const Io& io, void* state, void* scratch) {
  const DeviceShape shape(p);
  float* const s = static_cast<float*>(scratch);
  const DeviceView<const float> v(io.v);
  const DeviceView<float> out(io.out);
  ATTN_CUBLAS_CHECK(cublas().set_stream(handle(), static_cast<cudaStream_t>(io.stream)));
  ATTN_CUBLAS_CHECK(cublas().set_workspace(handle(), state, workspace_bytes));

  // Calls f(b, h, count, kv_apart): `count` heads from h on, whose K and V lie kv_apart apart.
  const std::int64_t count = shape.group == 1 ? p.heads : shape.group;
  const bool shared = shape.group > 1;
  const auto for_each_run_of_heads = [&](auto&& f) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t h = 0; h < p.heads; h += count) {
        for_each_row_block(shape, [&](RowBlock block) { f(b, h, block); });
      }
    }
  };
  const auto scores = [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    return s + ((b * p.heads + h) * p.n_q + i) * p.n_kv;
  };
  for_each_run_of_heads([&](std::int64_t b, std::int64_t h, RowBlock block) {
    multiply(
        Cublas::transposed, block.rows, block.keys, p.head_dim,
        {io.q.row<float>(b, h, block.begin), io.q.token_stride, io.q.head_stride},
        {io.k.row<float>(b, h / shape.group, 0), io.k.token_stride, shared ? 0 : io.k.head_stride},
        {scores(b, h, block.begin), p.n_kv, p.n_q * p.n_kv}, count);
  });
  launch(softmax_kernel, ceil_div(p.batch * p.heads * p.n_q, warps), block_threads, 0, io.stream,
         shape, s, DeviceView<float>(io.log_sum_exp));
  for_each_run_of_heads([&](std::int64_t b, std::int64_t h, RowBlock block) {
    multiply(
        Cublas::as_is, block.rows, p.head_dim_v, block.common,
        {scores(b, h, block.begin), p.n_kv, p.n_q * p.n_kv},
        {io.v.row<float>(b, h / shape.group, 0), io.v.token_stride, shared ? 0 : io.v.head_stride},
        {out.data + b * out.batch_stride + h * out.head_stride + block.begin * out.token_stride,
         out.token_stride, out.head_stride},
        count);
  });
  if (!shape.causal && p.n_kv > 0) return;
  launch(rest_kernel, ceil_div(p.batch * p.heads * p.n_q * p.head_dim_v, block_threads),
         block_threads, 0, io.stream, shape, s, v, out);
}

std::string resolved_impl(const Problem& /*p*/) {
  std::string version = "cuBLAS ";
  for (int which = 0; which < 3; ++which) {  // major, minor, patch
    int value = 0;
    ATTN_CUBLAS_CHECK(cublas().get_property(which, &value));
    if (which > 0) version += '.';
    version += std::to_string(value);
  }
  return version;
}

}  // namespace

Backend cuda_cublas_three_step() {
  return {.name = "cuda.cublas_three_step",
          .offers_log_sum_exp = true,
          .memory = Memory::device,
          .refuses = refuses,
          .cost = cost,
          .prepare = prepare,
          .run = run,
          .resolved_impl = resolved_impl};
}

}  // namespace attn
