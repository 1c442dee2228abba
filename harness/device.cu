// SPDX-License-Identifier: MIT
#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "harness/device.hpp"
#include "harness/work.hpp"
#include "impls/support/cuda.cuh"

namespace attn {
namespace {

class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::int64_t bytes) {
    if (bytes == 0) return;
    const cudaError_t error = cudaMalloc(&data_, static_cast<std::size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw std::bad_alloc();
    }
    ATTN_CUDA_CHECK(error);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// One tensor on both sides: strided on the host, without gaps on the device.
struct Mirror {
  const char* host_in;
  char* host_out;  // null for inputs
  std::int64_t batch, heads, tokens, row_bytes;
  std::int64_t batch_bytes, head_bytes, token_bytes;  // strides on the host
  DeviceBuffer buffer;

  template <class F>
  void for_each_head(F&& copy) const {
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        copy(static_cast<char*>(buffer.data()) + (b * heads + h) * tokens * row_bytes,
             b * batch_bytes + h * head_bytes);
      }
    }
  }
  [[nodiscard]] bool empty() const { return batch * heads * tokens * row_bytes == 0; }
  // A copy of rows wants a pitch of at least a row, also of a single row, whose stride means
  // nothing.
  [[nodiscard]] std::size_t pitch() const {
    return static_cast<std::size_t>(std::max(token_bytes, row_bytes));
  }
};

class CudaPoint final : public DevicePoint {
 public:
  CudaPoint(const Backend& backend, const Problem& problem, const Io& host, const void* host_state)
      : backend_(backend),
        problem_(problem),
        scratch_(backend.cost(problem).scratch_bytes),
        state_(backend.cost(problem).state_bytes) {
    const Problem& p = problem_;
    const std::int64_t element = bytes_per_element(p.dtype);
    mirrors_.reserve(6);
    io_.q = mirror<const void>(host.q, p.heads, p.n_q, p.head_dim, element);
    io_.k = mirror<const void>(host.k, p.heads_kv, p.n_kv, p.head_dim, element);
    io_.v = mirror<const void>(host.v, p.heads_kv, p.n_kv, p.head_dim_v, element);
    io_.out = mirror<void>(host.out, p.heads, p.n_q, p.head_dim_v, element);
    io_.probabilities = mirror<void>(host.probabilities, p.heads, p.n_q, p.n_kv, 4);
    io_.log_sum_exp = mirror<void>(host.log_sum_exp, p.heads, p.n_q, 1, 4);
    const std::int64_t state_bytes = backend.cost(problem).state_bytes;
    if (state_bytes > 0 && host_state != nullptr) {
      ATTN_CUDA_CHECK(cudaMemcpy(state_.data(), host_state, static_cast<std::size_t>(state_bytes),
                                 cudaMemcpyHostToDevice));
    }
    ATTN_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ATTN_CUDA_CHECK(cudaEventCreate(&start_));
    ATTN_CUDA_CHECK(cudaEventCreate(&stop_));
    io_.stream = stream_;
  }
  CudaPoint(const CudaPoint&) = delete;
  CudaPoint& operator=(const CudaPoint&) = delete;
  ~CudaPoint() override {
    if (start_ != nullptr) cudaEventDestroy(start_);
    if (stop_ != nullptr) cudaEventDestroy(stop_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void upload() override {
    for (const Mirror& m : mirrors_) {
      if (m.empty()) continue;
      m.for_each_head([&](char* device, std::int64_t host_offset) {
        ATTN_CUDA_CHECK(cudaMemcpy2D(device, static_cast<std::size_t>(m.row_bytes),
                                     m.host_in + host_offset, m.pitch(),
                                     static_cast<std::size_t>(m.row_bytes),
                                     static_cast<std::size_t>(m.tokens), cudaMemcpyHostToDevice));
      });
    }
    ATTN_CUDA_CHECK(cudaDeviceSynchronize());
  }

  double timed_run() override {
    ATTN_CUDA_CHECK(cudaEventRecord(start_, stream_));
    backend_.run(problem_, io_, state_.data(), scratch_.data());
    ATTN_CUDA_CHECK(cudaEventRecord(stop_, stream_));
    ATTN_CUDA_CHECK(cudaEventSynchronize(stop_));
    float milliseconds = 0.0F;
    ATTN_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return 1e-3 * static_cast<double>(milliseconds);
  }

  void flush_cache() override {
    if (flush_bytes_ == 0) {
      int device = 0, cache_bytes = 0;
      ATTN_CUDA_CHECK(cudaGetDevice(&device));
      ATTN_CUDA_CHECK(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device));
      flush_bytes_ = 2 * std::int64_t{cache_bytes};
      flush_.emplace_back(flush_bytes_);
    }
    ATTN_CUDA_CHECK(
        cudaMemsetAsync(flush_.back().data(), 0, static_cast<std::size_t>(flush_bytes_), stream_));
    ATTN_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  void download() override {
    for (const Mirror& m : mirrors_) {
      if (m.empty() || m.host_out == nullptr) continue;
      m.for_each_head([&](char* device, std::int64_t host_offset) {
        ATTN_CUDA_CHECK(cudaMemcpy2D(m.host_out + host_offset, m.pitch(), device,
                                     static_cast<std::size_t>(m.row_bytes),
                                     static_cast<std::size_t>(m.row_bytes),
                                     static_cast<std::size_t>(m.tokens), cudaMemcpyDeviceToHost));
      });
    }
  }

 private:
  template <class Void>
  BasicView<Void> mirror(const BasicView<Void>& host, std::int64_t heads, std::int64_t tokens,
                         std::int64_t dim, std::int64_t element) {
    if (!host) return {};
    char* out = nullptr;
    if constexpr (!std::is_const_v<Void>) out = static_cast<char*>(host.data);
    mirrors_.push_back({static_cast<const char*>(host.data), out, problem_.batch, heads, tokens,
                        dim * element, host.batch_stride * element, host.head_stride * element,
                        host.token_stride * element,
                        DeviceBuffer(problem_.batch * heads * tokens * dim * element)});
    return {mirrors_.back().buffer.data(), heads * tokens * dim, tokens * dim, dim};
  }

  Backend backend_;
  Problem problem_;
  Io io_;
  std::vector<Mirror> mirrors_;
  DeviceBuffer scratch_, state_;
  std::vector<DeviceBuffer> flush_;
  std::int64_t flush_bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

}  // namespace

std::unique_ptr<DevicePoint> make_device_point(const Backend& backend, const Problem& problem,
                                               const Io& host_io, const void* host_state) {
  if (problem.scope != Scope::core) {
    throw std::logic_error("a layer around a device core is not supported");
  }
  return std::make_unique<CudaPoint>(backend, problem, host_io, host_state);
}

std::string device_name() {
  int device = 0;
  cudaDeviceProp properties;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return properties.name;
}

}  // namespace attn
