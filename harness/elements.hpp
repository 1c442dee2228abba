// SPDX-License-Identifier: MIT
// Tensors of any dtype, row by row, as f32: the one place of the harness that knows element types.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "impls/attention.hpp"
#include "impls/support/half.hpp"

namespace attn {

// The address of a row of a view: View gives void*, ConstView const void*.
template <class Void>
Void* row_at(DType dtype, const BasicView<Void>& view, std::int64_t b, std::int64_t h,
             std::int64_t t) {
  return with_element(
      dtype, [&]<class Element>(Element) -> Void* { return view.template row<Element>(b, h, t); });
}

inline void read_row(DType dtype, const void* row, std::int64_t width, float* values) {
  with_element(dtype, [&]<class Element>(Element) {
    std::copy_n(static_cast<const Element*>(row), width, values);
  });
}

// Rounds `values` [width] to the dtype and writes them. What read_row gave comes back bit for bit,
// but for a NaN that signals.
inline void write_row(DType dtype, const float* values, std::int64_t width, void* row) {
  with_element(dtype, [&]<class Element>(Element) {
    std::transform(values, values + width, static_cast<Element*>(row),
                   [](float value) { return Element(value); });
  });
}

inline void fill_with_nan(DType dtype, std::int64_t count, void* row) {
  with_element(dtype, [&]<class Element>(Element) {
    std::fill_n(static_cast<Element*>(row), count,
                Element(std::numeric_limits<float>::quiet_NaN()));
  });
}

// What is left of an f32 that is stored in the dtype.
inline float rounded(DType dtype, float value) {
  return with_element(dtype, [&]<class Element>(Element) -> float { return Element(value); });
}

// The error that any implementation is allowed, of the RMS of the output: 2e-6, about 17 units of
// f32, or 2 epsilon of a 16-bit dtype, in which the output is rounded.
inline double error_floor(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 2 * 0x1p-7;
    case DType::f16:
      return 2 * 0x1p-10;
    case DType::f32:
      break;
  }
  return 2e-6;
}

}  // namespace attn
