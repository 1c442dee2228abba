// SPDX-License-Identifier: MIT
// The words of a GPU that C++ has none for, each one small wrapper: all inline PTX of the project
// stands in this file, so that a machine without a device can bring a twin of it. Lane layouts are
// those of the PTX ISA, whose sections are named.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

// Inside a kernel: `name` is this block's dynamic shared memory as an array of `type`, aligned to
// 128 bytes. It is the only shared memory that kernels take, and its size is the launch's.
#define ATTN_DYNAMIC_SHARED(type, name)                               \
  extern __shared__ __align__(128) unsigned char attn_shared_bytes[]; \
  type* const name = reinterpret_cast<type*>(attn_shared_bytes)

namespace attn {

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Starts the copy of 16 bytes from global to shared memory, both aligned to 16; zeros arrive where
// not `inside`, and `from` is not read. Before Ampere the copy is complete at once. ("cp.async")
__device__ inline void cp_async(void* to, const void* from, bool inside = true) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(inside ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(to) = inside ? *static_cast<const uint4*>(from) : make_uint4(0U, 0U, 0U, 0U);
#endif
}

// Makes a group of the thread's copies since the last one. ("cp.async.commit_group")
__device__ inline void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

// Waits until at most the newest `pending` groups of the calling thread are under way; what other
// threads copied is there after a barrier. ("cp.async.wait_group")
template <int pending>
__device__ inline void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
#endif
}

// Loads matrices of 8 x 8 16-bit elements from shared memory: lanes 8 m ... 8 m + 7 give the
// addresses of the rows of matrix m, aligned to 16 bytes, and lane l gets of each matrix row l / 4,
// columns 2 (l % 4) and the next; transposed: column l / 4, rows 2 (l % 4) and the next. Of two
// matrices the addresses of lanes 16 ... 31 do not matter. ("ldmatrix")
__device__ inline void ldmatrix(unsigned (&matrices)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(matrices[0]), "=r"(matrices[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void ldmatrix(unsigned (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void ldmatrix_transposed(unsigned (&matrices)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(matrices[0]), "=r"(matrices[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void ldmatrix_transposed(unsigned (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(shared_address(row))
               : "memory");
}

// sums [16, 8] += a [16, 16] b [16, 8], elements T (__half or __nv_bfloat16) in pairs, the first in
// the lower half of its word. With g = lane / 4 and t = lane % 4 a lane holds
//   a: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), each with the next column,
//   b: (2t, g), (2t + 8, g), each with the next row,
//   sums: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// Needs Ampere; before it the kernel traps. ("Matrix Fragments for mma.m16n8k16")
template <class T>
__device__ inline void mma_m16n8k16(float (&sums)[4], const unsigned (&a)[4],
                                    const unsigned (&b)[2]) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>,
                "products of __half or __nv_bfloat16 only");
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  static_cast<void>(sums), static_cast<void>(a), static_cast<void>(b);
  __trap();
#endif
}

}  // namespace attn
