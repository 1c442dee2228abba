// SPDX-License-Identifier: MIT
// One race in each kind of memory, by name; the thread sanitizer must report it. With `ordered` the
// same threads meet where a device would order them, and it must not.
#include <cstdio>
#include <cstring>

#include "impls/support/cuda.cuh"
#include "tests/cuda_emulator/emulator.hpp"

namespace {

float global[2];

// The first threads of two blocks: they have no order, whatever barriers each block has.
void between_blocks() {
  __syncthreads();
  if (threadIdx.x == 0) global[0] += 1.0F;
}

void between_warps() {
  ATTN_DYNAMIC_SHARED(float, shared);
  shared[threadIdx.x] = 1.0F;
  __syncwarp();  // orders the lanes of a warp and no more
  if (threadIdx.x == 0) global[blockIdx.x] = shared[32];
}

// Lane 1 writes what lane 0 reads; the shuffle between them orders no memory.
void between_lanes() {
  ATTN_DYNAMIC_SHARED(float, shared);
  if (threadIdx.x == 1) shared[0] = 1.0F;
  __shfl_xor_sync(0xFFFFFFFFU, 1.0F, 1);
  if (threadIdx.x == 0) global[blockIdx.x] = shared[0];
}

void ordered() {
  ATTN_DYNAMIC_SHARED(float, shared);
  if (threadIdx.x == 1) shared[0] = 1.0F;
  __syncwarp();
  if (threadIdx.x == 0) shared[1] = shared[0];
  __syncthreads();
  if (threadIdx.x == 63) global[blockIdx.x] = shared[1];
}

}  // namespace

int main(int argc, char** argv) {
  const struct {
    const char* name;
    void (*kernel)();
  } all[] = {{"blocks", between_blocks},
             {"warps", between_warps},
             {"lanes", between_lanes},
             {"ordered", ordered}};
  for (const auto& one : all) {
    if (argc != 2 || std::strcmp(argv[1], one.name) != 0) continue;
    // Twice: the second launch comes after the first in every thread.
    for (int launch = 0; launch < 2; ++launch) {
      cuda_emulator::launch({2, 1, 1}, {64, 1, 1}, 64 * sizeof(float), one.kernel);
    }
    std::printf("%g\n", static_cast<double>(global[0]));
    return 0;
  }
  std::fprintf(stderr, "usage: planted_race blocks|warps|lanes|ordered\n");
  return 2;
}
