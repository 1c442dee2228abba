// SPDX-License-Identifier: MIT
// The product of two small matrices, for the twins of the tensor cores' words.
#pragma once

#include <cuda_runtime.h>

namespace cuda_emulator {

// sums [m, n] += a [m, k] b [k, n], in the order of k. A device sums in an order and with a rounding
// of its own.
template <int m, int n, int k>
void multiply_add(const float* a, const float* b, float* sums) {
  for (int i = 0; i < m; ++i) {
    for (int e = 0; e < k; ++e) {
      for (int j = 0; j < n; ++j) {
        sums[i * n + j] = fmaf(a[i * k + e], b[e * n + j], sums[i * n + j]);
      }
    }
  }
}

}  // namespace cuda_emulator
