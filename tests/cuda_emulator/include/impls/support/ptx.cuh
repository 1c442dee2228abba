// SPDX-License-Identifier: MIT
// The emulated twin of impls/support/ptx.cuh.
#pragma once

#include <cuda_runtime.h>

#define ATTN_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::cuda_emulator::dynamic_shared())
