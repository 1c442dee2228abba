// SPDX-License-Identifier: MIT
// The words of a GPU that C++ has none for, each one small wrapper: all inline PTX of the project
// stands in this file, so that a machine without a device can bring a twin of it.
#pragma once

#include <cuda_runtime.h>

// Inside a kernel: `name` is this block's dynamic shared memory as an array of `type`, aligned to
// 128 bytes. It is the only shared memory that kernels take, and its size is the launch's.
#define ATTN_DYNAMIC_SHARED(type, name)                               \
  extern __shared__ __align__(128) unsigned char attn_shared_bytes[]; \
  type* const name = reinterpret_cast<type*>(attn_shared_bytes)
