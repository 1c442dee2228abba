// SPDX-License-Identifier: MIT
// Does not compile on the emulator, and the compiler's message says why.
#include <cuda_runtime.h>

__global__ void static_shared_kernel(float* out) {
  __shared__ float memory[32];
  memory[threadIdx.x] = 1.0F;
  __syncthreads();
  out[threadIdx.x] = memory[31 - threadIdx.x];
}
