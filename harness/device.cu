// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "harness/device.hpp"
#include "harness/nvml.hpp"
#include "harness/work.hpp"
#include "impls/support/cuda.cuh"

namespace attn {
namespace {

constexpr int fence_pattern = 0xA5;
constexpr int not_a_number = 0xFF;  // in every byte: NaN in every floating-point type

class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::int64_t bytes) {
    try {
      ATTN_CUDA_CHECK(cudaMalloc(&data_, static_cast<std::size_t>(bytes)));
    } catch (const CudaError& error) {
      if (error.code != cudaErrorMemoryAllocation) throw;
      static_cast<void>(cudaGetLastError());
      throw DeviceOutOfMemory("no " + std::to_string(bytes) +
                              " bytes of the device's memory: " + cudaGetErrorString(error.code));
    }
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }
  [[nodiscard]] char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

// Memory between two zones of a pattern.
class Fenced {
 public:
  explicit Fenced(std::int64_t bytes) : capacity_(bytes), memory_(bytes + 2 * fence) {
    enclose(bytes);
  }
  // From here on only the first `bytes` may be written. Waits for nothing.
  void enclose(std::int64_t bytes) {
    bytes_ = bytes;
    ATTN_CUDA_CHECK(cudaMemset(memory_.data(), fence_pattern, fence));
    ATTN_CUDA_CHECK(cudaMemset(data() + bytes_, fence_pattern, fence));
  }
  [[nodiscard]] char* data() const { return memory_.data() + fence; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  // "wrote before the start of WHAT on the device", or empty.
  [[nodiscard]] std::string broken(const std::string& what) const {
    if (!is_pattern(memory_.data())) return "wrote before the start of " + what + " on the device";
    if (!is_pattern(data() + bytes_)) return "wrote after the end of " + what + " on the device";
    return {};
  }

 private:
  static constexpr std::int64_t fence = device_fence_bytes;
  static bool is_pattern(const char* zone) {
    std::vector<char> bytes(fence);
    ATTN_CUDA_CHECK(cudaMemcpy(bytes.data(), zone, fence, cudaMemcpyDeviceToHost));
    return std::all_of(bytes.begin(), bytes.end(),
                       [](char byte) { return byte == static_cast<char>(fence_pattern); });
  }

  std::int64_t capacity_, bytes_ = 0;
  DeviceBuffer memory_;
};

std::int64_t l2_bytes() {
  static const int once = [] {
    int device = 0, bytes = 0;
    ATTN_CUDA_CHECK(cudaGetDevice(&device));
    ATTN_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
    return bytes;
  }();
  return once;
}

// What all points of a process share. Never freed: at its end the driver may be gone already.
struct Shared {
  std::vector<Fenced> scratch;        // one, or none yet
  std::vector<DeviceBuffer> traffic;  // likewise

  void make_room(std::int64_t scratch_bytes) {
    if (!scratch.empty() && scratch.front().capacity() >= scratch_bytes) return;
    scratch.clear();  // first, or both would have to fit
    scratch.emplace_back(scratch_bytes);
  }
  char* traffic_buffer() {
    if (traffic.empty()) traffic.emplace_back(device_traffic_bytes());
    return traffic.front().data();
  }
};
Shared& shared() {
  static auto* const all = new Shared;
  return *all;
}

const Nvml& nvml() {
  static const auto* const one = [] {
    int device = 0;
    char id[32] = "";
    ATTN_CUDA_CHECK(cudaGetDevice(&device));
    ATTN_CUDA_CHECK(cudaDeviceGetPCIBusId(id, sizeof id, device));
    return new Nvml(id);
  }();
  return *one;
}

// A stream and what is timed on it.
class Timer {
 public:
  Timer() {
    ATTN_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ATTN_CUDA_CHECK(cudaEventCreate(&start_));
    ATTN_CUDA_CHECK(cudaEventCreate(&stop_));
  }
  Timer(const Timer&) = delete;
  ~Timer() {
    if (start_ != nullptr) cudaEventDestroy(start_);
    if (stop_ != nullptr) cudaEventDestroy(stop_);
    cudaStreamDestroy(stream_);
  }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }

  // Seconds of what `enqueue` puts on the stream; `meanwhile` runs before its end is waited for.
  template <class Enqueue, class Meanwhile>
  double seconds(const Enqueue& enqueue, const Meanwhile& meanwhile) const {
    ATTN_CUDA_CHECK(cudaEventRecord(start_, stream_));
    enqueue();
    ATTN_CUDA_CHECK(cudaEventRecord(stop_, stream_));
    meanwhile();
    ATTN_CUDA_CHECK(cudaEventSynchronize(stop_));
    float milliseconds = 0.0F;
    ATTN_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

// ---- roofs ---------------------------------------------------------------------------------------

// One step is 256 multiply-adds a thread, so that the loop's own instructions are one in a hundred; 16
// chains hide a latency of 4 even where a scheduler has a single warp.
constexpr int fma_chains = 16, fma_unrolled = 16, fma_threads = 256;
constexpr std::int64_t flops_per_step = 2LL * fma_chains * fma_unrolled;

// x / 2 + 1 / 2 stays at 1, neither denormal nor infinite, and nothing is ever written.
__global__ void fma_kernel(float half, std::int64_t steps, float* never) {
  float acc[fma_chains];
#pragma unroll
  for (int a = 0; a < fma_chains; ++a) acc[a] = half + static_cast<float>(threadIdx.x + a);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < fma_unrolled; ++i) {
#pragma unroll
      for (int a = 0; a < fma_chains; ++a) acc[a] = fmaf(acc[a], half, half);
    }
  }
  float sum = 0.0F;
#pragma unroll
  for (int a = 0; a < fma_chains; ++a) sum += acc[a];
  if (sum == half) *never = sum;
}

// The best rate of calls that double in length, up to an eighth of the time: `enqueue(repeats)` puts
// work on the stream and returns how much.
template <class Enqueue>
double best_rate(const Timer& timer, double seconds, const Enqueue& enqueue) {
  double best = 0, spent = 0, work = 0;
  for (std::int64_t repeats = 1; spent < seconds;) {
    const double took = timer.seconds([&] { work = enqueue(repeats); }, [] {});
    if (took > 0) best = std::max(best, work / took);
    spent += took;
    if (took < seconds / 8) repeats *= 2;
  }
  return best;
}

// ---- points --------------------------------------------------------------------------------------

// One tensor on both sides: strided on the host, without gaps on the device.
struct Mirror {
  const char* host_in;
  char* host_out;  // null for inputs
  std::int64_t batch, heads, tokens, row_bytes;
  std::int64_t batch_bytes, head_bytes, token_bytes;  // strides on the host
  Fenced buffer;

  template <class F>
  void for_each_head(F&& copy) const {
    if (tokens * row_bytes == 0) return;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        copy(buffer.data() + (b * heads + h) * tokens * row_bytes,
             b * batch_bytes + h * head_bytes);
      }
    }
  }
  // A copy of rows wants a pitch of at least a row, also of a single row, whose stride means
  // nothing.
  [[nodiscard]] std::size_t pitch() const {
    return static_cast<std::size_t>(std::max(token_bytes, row_bytes));
  }
  void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                 cudaMemcpyKind kind) const {
    ATTN_CUDA_CHECK(cudaMemcpy2D(to, to_pitch, from, from_pitch,
                                 static_cast<std::size_t>(row_bytes),
                                 static_cast<std::size_t>(tokens), kind));
  }
  [[nodiscard]] bool differs() const {
    const auto row = static_cast<std::size_t>(row_bytes);
    std::vector<char> there(row * static_cast<std::size_t>(tokens));
    bool different = false;
    for_each_head([&](const char* device, std::int64_t host_offset) {
      copy_rows(there.data(), row, device, row, cudaMemcpyDeviceToHost);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const char* here = host_in + host_offset + t * token_bytes;
        different |= std::memcmp(there.data() + t * row_bytes, here, row) != 0;
      }
    });
    return different;
  }
};

class CudaPoint final : public DevicePoint {
 public:
  CudaPoint(const Backend& backend, const Problem& problem, const Io& host, const void* host_state)
      : backend_(backend),
        problem_(problem),
        scratch_bytes_(backend.cost(problem).scratch_bytes),
        state_(backend.cost(problem).state_bytes),
        clocks_(nvml()) {
    const Problem& p = problem_;
    const std::int64_t element = bytes_per_element(p.dtype);
    mirrors_.reserve(6);
    io_.q = mirror<const void>(host.q, p.heads, p.n_q, p.head_dim, element);
    io_.k = mirror<const void>(host.k, p.heads_kv, p.n_kv, p.head_dim, element);
    io_.v = mirror<const void>(host.v, p.heads_kv, p.n_kv, p.head_dim_v, element);
    io_.out = mirror<void>(host.out, p.heads, p.n_q, p.head_dim_v, element);
    io_.probabilities = mirror<void>(host.probabilities, p.heads, p.n_q, p.n_kv, 4);
    io_.log_sum_exp = mirror<void>(host.log_sum_exp, p.heads, p.n_q, 1, 4);
    if (state_.bytes() > 0 && host_state != nullptr) {
      ATTN_CUDA_CHECK(cudaMemcpy(state_.data(), host_state,
                                 static_cast<std::size_t>(state_.bytes()), cudaMemcpyHostToDevice));
    }
    io_.stream = timer_.stream();
    poison_scratch();
  }

  void upload() override {
    for (const Mirror& m : mirrors_) {
      m.for_each_head([&](char* device, std::int64_t host_offset) {
        m.copy_rows(device, static_cast<std::size_t>(m.row_bytes), m.host_in + host_offset,
                    m.pitch(), cudaMemcpyHostToDevice);
      });
    }
    ATTN_CUDA_CHECK(cudaDeviceSynchronize());
  }

  void poison_scratch() override {
    shared().make_room(scratch_bytes_);
    Fenced& scratch = shared().scratch.front();
    scratch.enclose(scratch_bytes_);
    ATTN_CUDA_CHECK(
        cudaMemset(scratch.data(), not_a_number, static_cast<std::size_t>(scratch_bytes_)));
    ATTN_CUDA_CHECK(cudaDeviceSynchronize());  // the point's stream waits for no other
  }

  DeviceTiming timed_run() override {
    DeviceTiming timing;
    void* const scratch = shared().scratch.front().data();
    try {
      timing.seconds = timer_.seconds([&] { backend_.run(problem_, io_, state_.data(), scratch); },
                                      [&] { timing.clocks = clocks_.read(); });
    } catch (const CudaError& error) {
      if (error.code != cudaErrorMemoryAllocation) throw;
      throw DeviceOutOfMemory(error.what());
    }
    return timing;
  }

  void flush_cache() override {
    ATTN_CUDA_CHECK(cudaMemsetAsync(shared().traffic_buffer(), 0,
                                    static_cast<std::size_t>(2 * l2_bytes()), timer_.stream()));
    ATTN_CUDA_CHECK(cudaStreamSynchronize(timer_.stream()));
  }

  void download() override {
    for (const Mirror& m : mirrors_) {
      if (m.host_out == nullptr) continue;
      m.for_each_head([&](const char* device, std::int64_t host_offset) {
        m.copy_rows(m.host_out + host_offset, m.pitch(), device,
                    static_cast<std::size_t>(m.row_bytes), cudaMemcpyDeviceToHost);
      });
    }
  }

  [[nodiscard]] std::string broken_fence() const override {
    std::string words = shared().scratch.front().broken("the scratch");
    if (words.empty()) words = state_.broken("the state");
    for (const Mirror& m : mirrors_) {
      if (words.empty()) words = m.buffer.broken("a tensor");
    }
    return words;
  }

  [[nodiscard]] bool inputs_changed() const override {
    return std::any_of(mirrors_.begin(), mirrors_.end(),
                       [](const Mirror& m) { return m.host_out == nullptr && m.differs(); });
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
                        Fenced(problem_.batch * heads * tokens * dim * element)});
    return {mirrors_.back().buffer.data(), heads * tokens * dim, tokens * dim, dim};
  }

  Backend backend_;
  Problem problem_;
  Io io_;
  std::int64_t scratch_bytes_;
  Fenced state_;
  std::vector<Mirror> mirrors_;
  Timer timer_;
  const Nvml& clocks_;
};

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::unique_ptr<DevicePoint> make_device_point(const Backend& backend, const Problem& problem,
                                               const Io& host_io, const void* host_state) {
  if (problem.scope != Scope::core) {
    throw std::logic_error("a layer around a device core is not supported");
  }
  return std::make_unique<CudaPoint>(backend, problem, host_io, host_state);
}

std::optional<DeviceInfo> device_info() {
  int device = 0, driver = 0, runtime = 0, clock_khz = 0, memory_clock_khz = 0;
  cudaDeviceProp properties;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess ||
      cudaDriverGetVersion(&driver) != cudaSuccess ||
      cudaRuntimeGetVersion(&runtime) != cudaSuccess ||
      cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&memory_clock_khz, cudaDevAttrMemoryClockRate, device) !=
          cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return std::nullopt;
  }
  return DeviceInfo{.name = properties.name,
                    .compute_capability =
                        std::to_string(properties.major) + "." + std::to_string(properties.minor),
                    .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
                    .l2_bytes = properties.l2CacheSize,
                    .multiprocessors = properties.multiProcessorCount,
                    .clock_mhz = clock_khz / 1000,
                    .memory_clock_mhz = memory_clock_khz / 1000,
                    .driver = version_text(driver),
                    .runtime = version_text(runtime),
                    .no_clocks = nvml().missing()};
}

std::int64_t device_free_bytes() {
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess) return static_cast<std::int64_t>(free);
  static_cast<void>(cudaGetLastError());
  return 0;
}

// A copy whose halves are four times the cache each cannot live in it.
std::int64_t device_traffic_bytes() { return 8 * l2_bytes(); }

double measure_device_roof(Roof::Kind kind, double seconds) {
  const Timer timer;
  char* const buffer = shared().traffic_buffer();
  if (kind == Roof::Kind::copy) {
    const auto half = static_cast<std::size_t>(device_traffic_bytes() / 2);
    return best_rate(timer, seconds,
                     [&](std::int64_t repeats) {
                       for (std::int64_t i = 0; i < repeats; ++i) {
                         ATTN_CUDA_CHECK(cudaMemcpyAsync(buffer + half, buffer, half,
                                                         cudaMemcpyDeviceToDevice, timer.stream()));
                       }
                       return 2.0 * static_cast<double>(half) * static_cast<double>(repeats);
                     }) /
           1e9;
  }
  if (kind != Roof::Kind::fma) throw std::logic_error("a device has no such roof");
  int device = 0;
  cudaDeviceProp properties;
  ATTN_CUDA_CHECK(cudaGetDevice(&device));
  ATTN_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  const std::int64_t blocks = std::int64_t{properties.multiProcessorCount} *
                              std::max(1, properties.maxThreadsPerMultiProcessor / fma_threads);
  return best_rate(timer, seconds,
                   [&](std::int64_t steps) {
                     launch(fma_kernel, blocks, fma_threads, 0, timer.stream(), 0.5F, steps,
                            reinterpret_cast<float*>(buffer));
                     return static_cast<double>(blocks * fma_threads * flops_per_step) *
                            static_cast<double>(steps);
                   }) /
         1e9;
}

}  // namespace attn
