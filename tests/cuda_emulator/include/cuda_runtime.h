// SPDX-License-Identifier: MIT
// The words of CUDA C++ as the emulator speaks them: what a .cu file of this project includes instead
// of the toolkit's header. A word that is not here is not emulated, and a kernel that uses it does
// not compile.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tests/cuda_emulator/emulator.hpp"

// Static shared memory would be one array for all threads and all blocks, neither poisoned nor of a
// size that anything checks.
#define __shared__ shared_memory_is_taken_through_ATTN_DYNAMIC_SHARED_only
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// Where the caller stands: the default arguments of a word.
#define CUDA_EMULATOR_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CUDA_EMULATOR_SITE) {
  cuda_emulator::block_barrier({"__syncthreads", file, line});
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFU, CUDA_EMULATOR_SITE) {
  const cuda_emulator::Site site{"__syncwarp", file, line};
  if (cuda_emulator::removed(site)) return;
  cuda_emulator::warp_operation(mask, site, nullptr, nullptr, nullptr, true);
}

namespace cuda_emulator {

// All lanes of the mask exchange a value: lane l gets that of lane source(l), or of itself where
// there is none in its segment of `width` lanes. From outside the mask comes what is undefined on a
// device: all bits set, NaN.
template <class T, class Source>
T shuffle(unsigned mask, T value, int width, const Site& site, const Source& source) {
  static_assert(std::is_arithmetic_v<T>, "a shuffle moves numbers");
  if (width <= 0 || width > warpSize || (width & (width - 1)) != 0) {
    fail(site, "the width of a shuffle is a power of two up to 32");
  }
  struct Operand {
    T given, taken;
    int source;
  };
  const int mine = static_cast<int>(lane());
  const int segment = mine / width * width;
  const int wanted = source(mine - segment);
  Operand operand{value, value, wanted < 0 || wanted >= width ? mine : segment + wanted};
  warp_operation(mask, site, &operand, [](Operands& operands) {
    for (void* one : operands) {
      if (one == nullptr) continue;
      auto& to = *static_cast<Operand*>(one);
      const auto* from = static_cast<const Operand*>(operands[to.source]);
      if (from != nullptr) {
        to.taken = from->given;
      } else {
        std::memset(&to.taken, 0xFF, sizeof(T));
      }
    }
  });
  return operand.taken;
}

inline unsigned vote(unsigned mask, bool mine, const Site& site) {
  struct Operand {
    bool mine;
    unsigned all;
  } operand{mine, 0};
  warp_operation(mask, site, &operand, [](Operands& operands) {
    unsigned all = 0;
    for (unsigned l = 0; l < 32; ++l) {
      if (operands[l] != nullptr && static_cast<Operand*>(operands[l])->mine) all |= 1U << l;
    }
    for (void* one : operands) {
      if (one != nullptr) static_cast<Operand*>(one)->all = all;
    }
  });
  return operand.all;
}

}  // namespace cuda_emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize, CUDA_EMULATOR_SITE) {
  return cuda_emulator::shuffle(mask, value, width, {"__shfl_sync", file, line},
                                [&](int) { return lane & (width - 1); });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize, CUDA_EMULATOR_SITE) {
  return cuda_emulator::shuffle(mask, value, width, {"__shfl_xor_sync", file, line},
                                [&](int mine) { return mine ^ lanes; });
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = warpSize, CUDA_EMULATOR_SITE) {
  return cuda_emulator::shuffle(mask, value, width, {"__shfl_up_sync", file, line},
                                [&](int mine) { return mine - static_cast<int>(by); });
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = warpSize, CUDA_EMULATOR_SITE) {
  return cuda_emulator::shuffle(mask, value, width, {"__shfl_down_sync", file, line},
                                [&](int mine) { return mine + static_cast<int>(by); });
}
inline unsigned __ballot_sync(unsigned mask, int predicate, CUDA_EMULATOR_SITE) {
  return cuda_emulator::vote(mask, predicate != 0, {"__ballot_sync", file, line});
}
inline int __any_sync(unsigned mask, int predicate, CUDA_EMULATOR_SITE) {
  return cuda_emulator::vote(mask, predicate != 0, {"__any_sync", file, line}) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate, CUDA_EMULATOR_SITE) {
  return cuda_emulator::vote(mask, predicate != 0, {"__all_sync", file, line}) == mask ? 1 : 0;
}

template <class T>
T __ldg(const T* address) {
  return *address;
}

#ifdef CUDA_EMULATOR_COUNTS
namespace cuda_emulator {
float counted_fmaf(float a, float b, float c);
float counted_expf(float x);
float counted_exp2f(float x);
}  // namespace cuda_emulator
#define fmaf ::cuda_emulator::counted_fmaf
#define expf ::cuda_emulator::counted_expf
#define exp2f ::cuda_emulator::counted_exp2f
#endif

#include "tests/cuda_emulator/include/cuda_runtime_api.h"
