// SPDX-License-Identifier: MIT
// .npy files: a tensor that the bytes really hold, or one sentence that names the file; and the same
// tensor written in either order of bytes and of axes reads back as itself.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "harness/npy.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace attn {
namespace {

std::optional<Npy> read(std::string_view bytes) {
  return accepted({Exit::file, Exit::usage}, "q.npy", [&] { return parse_npy(bytes, "q.npy"); });
}

// Bit by bit: a NaN is itself.
bool same(const Npy& a, const Npy& b) {
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  return a.shape == b.shape && std::ranges::equal(a.values, b.values, {}, bits, bits);
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  ATTN_DEMAND(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// In Fortran order the first axis runs fastest.
std::string fortran_order(const Npy& array) {
  Npy turned{array.shape, array.values, {}};
  for (std::size_t e = 0; e < array.values.size(); ++e) {
    std::size_t rest = e, at = 0;
    for (std::size_t axis = array.shape.size(); axis-- > 0;) {
      const auto length = static_cast<std::size_t>(array.shape[axis]);
      std::size_t stride = 1;
      for (std::size_t a = 0; a < axis; ++a) stride *= static_cast<std::size_t>(array.shape[a]);
      at += rest % length * stride;
      rest /= length;
    }
    turned.values[at] = array.values[e];
  }
  return replaced(npy_bytes(turned.shape, turned.values), "False, ", "True,  ");
}

std::string big_endian(const Npy& array) {
  std::string bytes = replaced(npy_bytes(array.shape, array.values), "<f4", ">f4");
  const std::size_t begin = bytes.size() - array.values.size() * sizeof(float);
  for (std::size_t at = begin; at < bytes.size(); at += sizeof(float)) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + sizeof(float)));
  }
  return bytes;
}

}  // namespace
}  // namespace attn

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace attn;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto array = read(bytes);
  if (!array) return 0;

  ATTN_DEMAND(array->shape.size() >= 2 && array->shape.size() <= 4);
  std::size_t count = 1;
  for (const std::int64_t axis : array->shape) count *= static_cast<std::size_t>(axis);
  ATTN_DEMAND(array->values.size() == count);
  ATTN_DEMAND(2 * count < size);
  ATTN_DEMAND(array->stored.starts_with("float"));

  const std::string written = npy_bytes(array->shape, array->values);
  const auto again = read(written);
  ATTN_DEMAND(again && same(*again, *array) && again->stored == "float32");
  ATTN_DEMAND(!read(written + '\0'));
  ATTN_DEMAND(!read(std::string_view(written).substr(0, written.size() - 1)));

  const auto swapped = read(big_endian(*array));
  ATTN_DEMAND(swapped && same(*swapped, *array));
  const auto turned = read(fortran_order(*array));
  ATTN_DEMAND(turned && same(*turned, *array) && turned->stored == "float32, Fortran order");
  return 0;
}
