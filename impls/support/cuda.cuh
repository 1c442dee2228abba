// SPDX-License-Identifier: MIT
// What the CUDA backends share: the failure macro, the launch helper, views and shapes that a kernel
// may take by value, and the refusals of a machine without a usable device. Kernels are started
// through `launch`, take shared memory through ATTN_DYNAMIC_SHARED and use no inline PTX but that of
// ptx.cuh: then the same text also runs on a CPU.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "impls/attention.hpp"
#include "impls/support/ptx.cuh"

namespace attn {

struct CudaError : std::runtime_error {
  CudaError(cudaError_t error, const char* expression, std::string_view file, int line)
      : std::runtime_error(std::string(file.substr(file.rfind('/') + 1)) + ":" +
                           std::to_string(line) + ": " + expression + ": " +
                           cudaGetErrorName(error) + ": " + cudaGetErrorString(error)),
        code(error) {}
  cudaError_t code;
};

// Throws CudaError with file (its name alone: it ends up in published rows), line and expression
// unless the call succeeds.
#define ATTN_CUDA_CHECK(expression)                                              \
  do {                                                                           \
    const cudaError_t attn_cuda_error = (expression);                            \
    if (attn_cuda_error != cudaSuccess) {                                        \
      throw ::attn::CudaError(attn_cuda_error, #expression, __FILE__, __LINE__); \
    }                                                                            \
  } while (false)

// Starts `kernel` on up to `blocks` blocks. A grid's y and z end at 65,535 and its x at 2^31 - 1,
// so grids have one dimension and kernels step through their work by gridDim.x.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), std::int64_t blocks, int threads,
            std::size_t shared_bytes, void* stream, const Arguments&... arguments) {
  if (blocks <= 0) return;
  constexpr std::size_t without_opt_in = 48 * 1024;
  if (shared_bytes > without_opt_in) {
    ATTN_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared_bytes)));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(
      std::min<std::int64_t>(blocks, std::numeric_limits<std::int32_t>::max())));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  ATTN_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

__host__ __device__ inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// A view [batch, head, token, dim] that a kernel may index.
template <class T>
struct DeviceView {
  T* data;
  std::int64_t batch_stride, head_stride, token_stride;

  template <class Void>
  explicit DeviceView(const BasicView<Void>& view)
      : data(static_cast<T*>(view.data)),
        batch_stride(view.batch_stride),
        head_stride(view.head_stride),
        token_stride(view.token_stride) {}
  __device__ T* row(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return data + b * batch_stride + h * head_stride + t * token_stride;
  }
};

// A problem without key lengths, in a form that a kernel may take.
struct DeviceShape {
  std::int64_t batch, heads, heads_kv, group, n_q, n_kv, head_dim, head_dim_v;
  bool causal;
  float scale;

  explicit DeviceShape(const Problem& p)
      : batch(p.batch),
        heads(p.heads),
        heads_kv(p.heads_kv),
        group(p.heads / p.heads_kv),
        n_q(p.n_q),
        n_kv(p.n_kv),
        head_dim(p.head_dim),
        head_dim_v(p.head_dim_v),
        causal(p.mask == Mask::causal),
        scale(static_cast<float>(p.effective_scale())) {}

  // Keys that query i sees: Problem::visible without lengths. No query past the last sees any.
  __host__ __device__ std::int64_t visible(std::int64_t i) const {
    if (i >= n_q) return 0;
    if (!causal) return n_kv;
    const std::int64_t corner = i + 1 + n_kv - n_q;
    return corner < 0 ? 0 : corner < n_kv ? corner : n_kv;
  }
};

// Limits that depend on the machine: any error on the way to a device is a reason, never a failure.
inline std::optional<Refusal> refuse_without_device() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return std::nullopt;
  static_cast<void>(cudaGetLastError());  // not sticky: nothing later should trip over it
  return Refusal{
      .kind = Refusal::Kind::unavailable,
      .sentence = error == cudaSuccess
                      ? std::string("needs a CUDA device, and there is none")
                      : std::string("needs a CUDA device: ") + cudaGetErrorString(error)};
}

// The limits of every plain device core. The harness places the tensors where Backend::memory says,
// so the problem's own field is no reason to refuse.
inline std::optional<Refusal> refuse_unless_plain_device_core(const Problem& p) {
  if (p.scope != Scope::core) {
    return Refusal{.sentence = "a layer around a device core is not supported"};
  }
  if (p.dtype != DType::f32) return Refusal{.sentence = "computes in f32 only"};
  if (!p.key_lengths.empty()) return Refusal{.sentence = "takes no key lengths"};
  return refuse_without_device();
}

}  // namespace attn
