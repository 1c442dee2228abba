// SPDX-License-Identifier: MIT
// The one product of the loop backends, so that a counting scalar sees every multiplication.
#pragma once

namespace attn {

template <class T>
inline T madd(T accumulator, T a, T b) {
  return accumulator + a * b;
}

}  // namespace attn
