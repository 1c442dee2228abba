// SPDX-License-Identifier: MIT
// The emulator's own load: small attention kernels that use the words which backends use, or will.
// They compile with nvcc too, and tests/cuda/golden.cu runs them on a device: tests, not backends.
#pragma once

namespace attn::test {

constexpr int kernel_dim = 64;

// out = softmax(q k^T / 8) v; q, k, v and out [heads, n, 64] in device memory.
struct Attention {
  const void *q, *k, *v;
  float* out;
  int heads, n;
  bool causal;
};

void block_softmax(const Attention& a);   // a block per query; q, k and v in f32, as in the next
void warp_softmax(const Attention& a);    // a warp per query
void wmma_flash(const Attention& a);      // tensor cores through wmma, P through shared memory; f16
void mma_flash_half(const Attention& a);  // the same through mma.sync, P in registers; f16
void mma_flash_bfloat(const Attention& a);

// One warp: b = `count` matrices of 8 x 8 from a [8 count, 8], as ldmatrix hands them to the lanes
// (b [32, count] words), count 2 or 4.
void load_matrices(const void* a, unsigned* b, int count, bool transposed);
// One warp: c [16, 8] = a [16, 16] b [16, 8] in f16 or bf16, through mma.sync.
void multiply(const void* a, const void* b, float* c, bool bfloat);

}  // namespace attn::test
