// SPDX-License-Identifier: MIT
// What a device makes of the words that the emulator imitates. One text, built twice: by nvcc it runs
// on a device and writes what came out, as C++ on the emulated device it compares with that.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "impls/support/cuda.cuh"

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

// ---- running them ---------------------------------------------------------------------------------

struct Golden {
  const char* name;
  double tolerance;  // of floats, relative; 0: the same bits
  bool floats;
  std::vector<std::uint32_t> words;
};

template <class T>
Golden run(const char* name, double tolerance, void (*kernel)(T*), int blocks, int threads,
           std::size_t words, std::size_t shared_bytes = 0) {
  static_assert(sizeof(T) == sizeof(std::uint32_t));
  Golden golden{name, tolerance, std::is_same_v<T, float>,
                std::vector<std::uint32_t>(words, 0xC7C7C7C7U)};
  const std::size_t bytes = words * sizeof(T);
  void* out = nullptr;
  ATTN_CUDA_CHECK(cudaMalloc(&out, bytes));
  ATTN_CUDA_CHECK(cudaMemcpy(out, golden.words.data(), bytes, cudaMemcpyHostToDevice));
  launch(kernel, blocks, threads, shared_bytes, nullptr, static_cast<T*>(out));
  ATTN_CUDA_CHECK(cudaDeviceSynchronize());
  ATTN_CUDA_CHECK(cudaMemcpy(golden.words.data(), out, bytes, cudaMemcpyDeviceToHost));
  ATTN_CUDA_CHECK(cudaFree(out));
  return golden;
}

// CUDA states errors of up to 2 units in the last place for its exponentials.
constexpr double few_units = 4.0 / (1 << 23);

std::vector<Golden> run_all() {
  return {
      run("built_in_variables", 0.0, built_in_variables_kernel, 3, 40, 3 * 40 * 4),
      run("dynamic_shared", 0.0, dynamic_shared_kernel, 2, 96, 2 * 96 * 3, 96 * sizeof(unsigned)),
      run("shuffles", 0.0, shuffles_kernel, 1, 32, (4 * (2 + 3 * 5) + 4) * 32),
      run("arithmetic", 0.0, arithmetic_kernel, 1, 256, 256 * 8),
      run("exponentials", few_units, exponentials_kernel, 1, 256, 256 * 4),
  };
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
  return std::abs(a - b) < golden.tolerance * std::abs(b);
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
      std::printf("golden: %s: %s has not run it yet\n", golden.name, device.c_str());
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
      std::printf("golden: %s: %zu words here, %zu of %s\n", golden.name, words, theirs.size(),
                  device.c_str());
    } else {
      std::printf("golden: %s: word %zu is %08x here (%.9g), %08x (%.9g) of %s\n", golden.name, at,
                  golden.words[at], as_float(golden.words[at]), theirs[at], as_float(theirs[at]),
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
