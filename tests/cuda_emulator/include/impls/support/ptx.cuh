// SPDX-License-Identifier: MIT
// The emulated twin of impls/support/ptx.cuh.
#pragma once

#include <cuda_runtime.h>

// NOLINTBEGIN(bugprone-macro-parentheses): a type and a name
#define ATTN_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::cuda_emulator::dynamic_shared())
// NOLINTEND(bugprone-macro-parentheses)
