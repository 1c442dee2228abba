// SPDX-License-Identifier: MIT
// NumPy's .npy files, format versions 1 to 3, as far as tensors of floating-point numbers need them:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attn {

struct Npy {
  std::vector<std::int64_t> shape;  // 2 to 4 axes, any of them may be 0
  std::vector<float> values;        // in C order, whatever the file has
  std::string stored;               // as found: "float32", "float64, Fortran order, big-endian"
};

// Reads a whole file: float16, float32 or float64, C or Fortran order, either byte order. `name` is
// what messages call it. Throws CommandError: `file` where it is no .npy file, or is cut short or
// longer than its shape says, found before anything of its size is allocated; `usage` where it is
// one, but of another type or rank, or with a finite float64 that no float32 holds.
Npy parse_npy(std::string_view bytes, const std::string& name);

// The whole .npy file of float32 `values` in C order; their number is the product of `shape`.
std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const float> values);

// "(2, 3)", and "(2,)" of one axis, as NumPy writes a shape.
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace attn
