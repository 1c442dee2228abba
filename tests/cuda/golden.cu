// SPDX-License-Identifier: MIT
// What a device makes of the words that the emulator imitates. One text, built twice: by nvcc it runs
// on a device and writes what came out, as C++ on the emulated device it compares with that.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "impls/support/cuda.cuh"
#include "tests/cuda_emulator/kernels/kernels.hpp"

namespace attn {
namespace {

constexpr int exit_wrong = 1, exit_usage = 2, exit_no_device = 4, exit_nothing_to_compare = 77;

// ---- the kernels: inputs are computed from indices, exactly, so that they need no file --------------

__global__ void built_in_variables_kernel(unsigned* out) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned* const words = out + 4 * thread;
  words[0] = threadIdx.x;
  words[1] = blockIdx.x;
  words[2] = blockDim.x;
  words[3] = gridDim.x;
}

// Each thread leaves a word and takes that of its mirror image, twice, so that a barrier also stands
// between a read and the next write.
__global__ void dynamic_shared_kernel(unsigned* out) {
  ATTN_DYNAMIC_SHARED(unsigned, words);
  const unsigned t = threadIdx.x, mirror = blockDim.x - 1 - t;
  words[t] = 3 * t + blockIdx.x;
  __syncthreads();
  const unsigned first = words[mirror];
  __syncthreads();
  words[t] = 5 * first;
  __syncthreads();
  unsigned* const mine = out + 3 * (blockIdx.x * blockDim.x + t);
  mine[0] = first;
  mine[1] = words[mirror];
  mine[2] = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(words) % 128);
}

__global__ void shuffles_kernel(unsigned* out) {
  const unsigned all = 0xFFFFFFFFU, lane = threadIdx.x, value = 100 + lane;
  unsigned* word = out + lane;
  const auto put = [&](unsigned result) {
    *word = result;
    word += 32;
  };
  for (int width = 4; width <= 32; width *= 2) {
    put(__shfl_sync(all, value, 3, width));
    put(__shfl_sync(all, value, static_cast<int>(lane + 5), width));
    for (int by = 1; by <= 16; by *= 2) {
      put(__shfl_xor_sync(all, value, by, width));
      put(__shfl_up_sync(all, value, static_cast<unsigned>(by), width));
      put(__shfl_down_sync(all, value, static_cast<unsigned>(by), width));
    }
  }
  put(__ballot_sync(all, lane % 3 == 0));
  put(static_cast<unsigned>(__any_sync(all, lane == 31) != 0));
  put(static_cast<unsigned>(__all_sync(all, lane != 31) != 0));
  if (lane % 2 == 1) put(__shfl_xor_sync(0xAAAAAAAAU, value, 2));
}

__global__ void arithmetic_kernel(float* out) {
  const float x = (static_cast<float>(threadIdx.x) - 127.0F) / 16.0F, y = 0.3F * x;
  float* const words = out + 8 * threadIdx.x;
  words[0] = fmaf(x, y, 1.0F / 3.0F);
  words[1] = fmaxf(x, y);
  words[2] = fminf(x, y);
  words[3] = fmaxf(x, NAN);
  words[4] = fmaxf(-INFINITY, x);
  words[5] = x / (x - 7.0F);
  words[6] = sqrtf(fabsf(x));
  words[7] = INFINITY - INFINITY;
}

__global__ void exponentials_kernel(float* out) {
  const float x = static_cast<float>(threadIdx.x) * -0.25F;
  float* const words = out + 4 * threadIdx.x;
  words[0] = expf(x);
  words[1] = exp2f(x);
  words[2] = logf(1.0F - x);
  words[3] = expf(-INFINITY);
}

// All bits of a float, rounded to both formats of 16 bits.
__global__ void conversions_kernel(const float* values, unsigned* out) {
  const float value = values[threadIdx.x];
  out[threadIdx.x] = __half_as_ushort(__float2half(value)) |
                     unsigned{__bfloat16_as_ushort(__float2bfloat16(value))} << 16;
}

// ---- inputs, the same numbers on every machine ------------------------------------------------------

std::uint32_t hash(std::uint32_t i) {
  i = (i ^ i >> 16) * 0x7FEB352DU;
  i = (i ^ i >> 15) * 0x846CA68BU;
  return i ^ i >> 16;
}

// Multiples of 1/128 from -1 to 1, which every format here holds.
float number(std::uint32_t i) { return static_cast<float>(hash(i) % 257) / 128.0F - 1.0F; }
void store(float value, float& to) { to = value; }
void store(float value, __half& to) { to = __float2half(value); }
void store(float value, __nv_bfloat16& to) { to = __float2bfloat16(value); }

template <class T>
std::vector<T> numbers(std::size_t count, std::uint32_t first, float factor = 1.0F) {
  std::vector<T> all(count);
  for (std::size_t e = 0; e < count; ++e) {
    store(factor * number(first + static_cast<std::uint32_t>(e)), all[e]);
  }
  return all;
}

// ---- running them -----------------------------------------------------------------------------------

template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : bytes_(values.size() * sizeof(T)) {
    ATTN_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data), bytes_));
    ATTN_CUDA_CHECK(cudaMemcpy(data, values.data(), bytes_, cudaMemcpyHostToDevice));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data); }
  void download(void* to) const {
    ATTN_CUDA_CHECK(cudaDeviceSynchronize());
    ATTN_CUDA_CHECK(cudaMemcpy(to, data, bytes_, cudaMemcpyDeviceToHost));
  }
  T* data = nullptr;

 private:
  std::size_t bytes_;
};

// How far a float may be from the device's, absolute and relative; without, all bits are the same.
struct Tolerance {
  double absolute = 0.0, relative = 0.0;
};

struct Golden {
  std::string name;
  Tolerance tolerance;
  bool floats;
  std::vector<std::uint32_t> words;
};

// What `run` leaves in `count` words, which it finds poisoned.
template <class T>
Golden golden(std::string name, std::size_t count, const std::function<void(T* out)>& run,
              Tolerance tolerance = {}) {
  static_assert(sizeof(T) == sizeof(std::uint32_t));
  Golden result{std::move(name), tolerance, std::is_same_v<T, float>,
                std::vector<std::uint32_t>(count, 0xC7C7C7C7U)};
  const OnDevice<std::uint32_t> out(result.words);
  run(reinterpret_cast<T*>(out.data));
  out.download(result.words.data());
  return result;
}

template <class T>
Golden of_kernel(std::string name, void (*kernel)(T*), int blocks, int threads,
                 std::size_t words_of_a_thread, std::size_t shared_bytes = 0,
                 Tolerance tolerance = {}) {
  const std::size_t count = words_of_a_thread * static_cast<std::size_t>(blocks * threads);
  return golden<T>(
      std::move(name), count,
      [&](T* out) { launch(kernel, blocks, threads, shared_bytes, nullptr, out); }, tolerance);
}

Golden conversions() {
  constexpr unsigned count = 1024;
  std::vector<float> values(count);
  for (unsigned e = 0; e < count; ++e) {
    const std::uint32_t bits = hash(e);
    std::memcpy(&values[e], &bits, sizeof bits);
  }
  const OnDevice<float> input(values);
  return golden<unsigned>("conversions", count, [&](unsigned* out) {
    launch(conversions_kernel, 1, count, 0, nullptr, input.data, out);
  });
}

// cp.async and ldmatrix: each element its own number.
Golden matrices(int count, bool transposed) {
  std::vector<std::uint16_t> elements(static_cast<std::size_t>(count) * 64);
  for (std::size_t e = 0; e < elements.size(); ++e) elements[e] = static_cast<std::uint16_t>(e);
  const OnDevice<std::uint16_t> input(elements);
  return golden<unsigned>("ldmatrix_" + std::to_string(count) + (transposed ? "_transposed" : ""),
                          static_cast<std::size_t>(count) * 32, [&](unsigned* out) {
                            test::load_matrices(input.data, out, count, transposed);
                          });
}

// mma.sync: whole numbers, whose sums are exact; and fractions, whose sums a device rounds its own way.
template <class T>
Golden product(std::string name, float factor, Tolerance tolerance) {
  const OnDevice<T> a(numbers<T>(16 * 16, 0, factor)), b(numbers<T>(16 * 8, 1000, factor));
  return golden<float>(
      std::move(name), 16 * 8,
      [&](float* out) { test::multiply(a.data, b.data, out, std::is_same_v<T, __nv_bfloat16>); },
      tolerance);
}

template <class T>
Golden attention(std::string name, void (*run)(const test::Attention&), double tolerance) {
  constexpr int n = 72;
  constexpr std::size_t count = std::size_t{n} * test::kernel_dim;
  const OnDevice<T> q(numbers<T>(count, 0)), k(numbers<T>(count, 10'000)),
      v(numbers<T>(count, 20'000));
  return golden<float>(std::move(name), count,
                       [&](float* out) {
                         const test::Attention causal{q.data, k.data, v.data, out, 1, n, true};
                         run(causal);
                       },
                       {.absolute = tolerance});
}

std::vector<Golden> run_all() {
  // CUDA states errors of up to 2 units in the last place for its exponentials.
  constexpr Tolerance few_units{.relative = 4.0 / (1 << 23)};
  constexpr Tolerance sixteen_sums{.absolute = 16.0 / (1 << 22)};
  std::vector<Golden> all = {
      of_kernel("built_in_variables", built_in_variables_kernel, 3, 40, 4),
      of_kernel("dynamic_shared", dynamic_shared_kernel, 2, 96, 3, 96 * sizeof(unsigned)),
      of_kernel("shuffles", shuffles_kernel, 1, 32, 4 * (2 + 3 * 5) + 4),
      of_kernel("arithmetic", arithmetic_kernel, 1, 256, 8),
      of_kernel("exponentials", exponentials_kernel, 1, 256, 4, 0, few_units),
      conversions(),
      product<__half>("mma_f16_whole", 128.0F, {}),
      product<__half>("mma_f16", 1.0F, sixteen_sums),
      product<__nv_bfloat16>("mma_bf16_whole", 128.0F, {}),
      product<__nv_bfloat16>("mma_bf16", 1.0F, sixteen_sums),
      // Weights are rounded to the format in between: by one unit more or less.
      attention<float>("block_softmax", test::block_softmax, 5e-6),
      attention<float>("warp_softmax", test::warp_softmax, 5e-6),
      attention<__half>("wmma_flash", test::wmma_flash, 1e-3),
      attention<__half>("mma_flash_f16", test::mma_flash_half, 1e-3),
      attention<__nv_bfloat16>("mma_flash_bf16", test::mma_flash_bfloat, 8e-3),
  };
  for (const int count : {2, 4}) {
    for (const bool transposed : {false, true}) all.push_back(matrices(count, transposed));
  }
  return all;
}

// ---- the files: DIR/<name>.txt, a word of 32 bits in hexadecimal a line; DIR/device.txt, whose -------

std::string path_of(const std::string& dir, std::string_view name) {
  return dir + "/" + std::string(name) + ".txt";
}

int write(const std::string& dir, const std::vector<Golden>& all) {
  cudaDeviceProp device{};
  ATTN_CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
  std::ofstream(path_of(dir, "device")) << device.name << '\n';
  for (const Golden& golden : all) {
    std::ofstream file(path_of(dir, golden.name));
    for (const std::uint32_t word : golden.words) {
      char line[10];
      std::snprintf(line, sizeof line, "%08x\n", word);
      file << line;
    }
    if (!file.flush()) throw std::runtime_error("cannot write " + path_of(dir, golden.name));
  }
  return 0;
}

float as_float(std::uint32_t word) {
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// One NaN is as good as another; poison is none.
bool agree(std::uint32_t here, std::uint32_t there, const Golden& golden) {
  if (here == there) return true;
  const double a = as_float(here), b = as_float(there);
  if (golden.floats && std::isnan(a) && std::isnan(b)) return true;
  return std::abs(a - b) < golden.tolerance.absolute + golden.tolerance.relative * std::abs(b);
}

std::string spelt(std::uint32_t word, const Golden& golden) {
  char text[32];
  if (golden.floats) {
    std::snprintf(text, sizeof text, "%.9g", as_float(word));
  } else {
    std::snprintf(text, sizeof text, "%08x", word);
  }
  return text;
}

// Prints the first word that differs of each output.
int compare(const std::string& dir, const std::vector<Golden>& all) {
  std::string device;
  if (!std::getline(std::ifstream(path_of(dir, "device")), device)) {
    std::printf("golden: no golden outputs yet: no device has run scripts/device_check.sh\n");
    return exit_nothing_to_compare;
  }
  int wrong = 0;
  for (const Golden& golden : all) {
    std::ifstream file(path_of(dir, golden.name));
    if (!file) {
      std::printf("golden: %s: %s has not run it yet\n", golden.name.c_str(), device.c_str());
      continue;
    }
    std::vector<std::uint32_t> theirs;
    for (std::uint32_t word = 0; file >> std::hex >> word;) theirs.push_back(word);
    const std::size_t words = golden.words.size();
    std::size_t at = 0;
    while (at < words && at < theirs.size() && agree(golden.words[at], theirs[at], golden)) ++at;
    if (at == words && at == theirs.size()) continue;
    ++wrong;
    if (at == words || at == theirs.size()) {
      std::printf("golden: %s: %zu words here, %zu of %s\n", golden.name.c_str(), words,
                  theirs.size(), device.c_str());
    } else {
      std::printf("golden: %s: word %zu is %s here, %s of %s\n", golden.name.c_str(), at,
                  spelt(golden.words[at], golden).c_str(), spelt(theirs[at], golden).c_str(),
                  device.c_str());
    }
  }
  std::printf("golden: %d of %zu outputs differ from those of %s\n", wrong, all.size(),
              device.c_str());
  return wrong == 0 ? 0 : exit_wrong;
}

int golden_main(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2 || (arguments[0] != "write" && arguments[0] != "compare")) {
    std::fprintf(stderr, "usage: golden write|compare DIR\n");
    return exit_usage;
  }
  if (const auto refusal = refuse_without_device()) {
    std::fprintf(stderr, "golden: %s\n", refusal->sentence.c_str());
    return exit_no_device;
  }
  const std::vector<Golden> all = run_all();
  return arguments[0] == "write" ? write(arguments[1], all) : compare(arguments[1], all);
}

}  // namespace
}  // namespace attn

int main(int count, char** words) {
  try {
    return attn::golden_main({words + 1, words + count});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "golden: %s\n", error.what());
    return attn::exit_wrong;
  }
}
