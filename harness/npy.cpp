// SPDX-License-Identifier: MIT
#include "harness/npy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "harness/error.hpp"
#include "harness/text.hpp"

namespace attn {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr char native_order = std::endian::native == std::endian::little ? '<' : '>';

struct Header {
  std::string type;  // NumPy's descr: byte order, kind, size
  bool fortran = false;
  std::vector<std::int64_t> shape;
};

// The header is the literal of a Python dictionary with the keys descr, fortran_order and shape.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Header read() {
    Header header;
    bool type = false, order = false, shape = false;
    expect('{');
    while (!next_is('}')) {
      const std::string key = string();
      expect(':');
      bool* const seen = key == "descr"           ? &type
                         : key == "fortran_order" ? &order
                         : key == "shape"         ? &shape
                                                  : nullptr;
      if (seen == nullptr) refuse(fmt::format("its header has the key '{}'", excerpt(key)));
      if (*seen) refuse(fmt::format("its header has '{}' twice", key));
      *seen = true;
      if (seen == &type) {
        header.type = type_text();
      } else if (seen == &order) {
        header.fortran = boolean();
      } else {
        header.shape = tuple();
      }
      if (!next_is('}')) expect(',');
    }
    expect('}');
    skip_space();
    if (at_ != text_.size()) refuse("something follows the dictionary of its header");
    if (!type || !order || !shape) refuse("its header lacks descr, fortran_order or shape");
    return header;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    file_error(fmt::format("{} is no readable .npy file: {}", name_, what));
  }

  static std::string excerpt(std::string_view text) {
    return printable(text.substr(0, 40)) + (text.size() > 40 ? "..." : "");
  }

  void skip_space() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr && text_[at_] != 0) {
      ++at_;
    }
  }

  bool next_is(char c) {
    skip_space();
    return at_ < text_.size() && text_[at_] == c;
  }

  void expect(char c) {
    if (!next_is(c)) {
      refuse(at_ == text_.size() ? "its header does not end"
                                 : fmt::format("its header lacks a '{}' at byte {}", c, at_));
    }
    ++at_;
  }

  std::string string() {
    const char quote = next_is('"') ? '"' : '\'';
    expect(quote);
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) refuse("its header does not end");
    const std::string_view value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return std::string(value);
  }

  std::string type_text() {
    if (next_is('[') || next_is('(') || next_is('{')) {
      usage_error(fmt::format(
          "{} has a structured type; save one float16, float32 or float64 field of it", name_));
    }
    return excerpt(string());
  }

  bool boolean() {
    for (const auto& [word, value] : {std::pair{"True", true}, std::pair{"False", false}}) {
      skip_space();
      if (text_.substr(at_).starts_with(word)) {
        at_ += std::strlen(word);
        return value;
      }
    }
    refuse("its fortran_order is neither True nor False");
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!next_is(')')) {
      std::int64_t value = 0;
      const auto [end, error] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
      if (error == std::errc::result_out_of_range) refuse("its shape has an axis past 64 bits");
      if (error != std::errc{}) refuse("its shape is no tuple of whole numbers");
      if (value < 0) refuse(fmt::format("its shape has an axis of {}", value));
      values.push_back(value);
      at_ = static_cast<std::size_t>(end - text_.data());
      if (next_is(')') && values.size() > 1) break;
      expect(',');  // "(3)" is no tuple in Python
    }
    expect(')');
    return values;
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
};

// What NumPy calls the type, for messages: "int64", "complex64".
std::string type_name(const std::string& type) {
  constexpr std::array<std::pair<char, std::string_view>, 6> numbers = {{{'f', "float"},
                                                                         {'i', "int"},
                                                                         {'u', "uint"},
                                                                         {'c', "complex"},
                                                                         {'m', "timedelta"},
                                                                         {'M', "datetime"}}};
  constexpr std::array<std::pair<char, std::string_view>, 6> others = {{{'b', "bool"},
                                                                        {'O', "object"},
                                                                        {'S', "bytes"},
                                                                        {'a', "bytes"},
                                                                        {'U', "unicode"},
                                                                        {'V', "void"}}};
  const std::size_t at = type.find_first_not_of("<>=|");
  if (at != std::string::npos) {
    for (const auto& [kind, word] : others) {
      if (type[at] == kind) return fmt::format("{} ('{}')", word, type);
    }
    int bytes = 0;
    const char* const first = type.data() + at + 1;
    std::from_chars(first, type.data() + type.size(), bytes);
    for (const auto& [kind, word] : numbers) {
      if (type[at] == kind && bytes > 0 && bytes <= 64) {
        return fmt::format("{}{} ('{}')", word, 8 * bytes, type);
      }
    }
  }
  return fmt::format("'{}'", type);
}

// The bytes of an element of a type that is read: 2, 4 or 8; empty for all others.
std::optional<std::size_t> element_size(const std::string& type) {
  if (type.size() != 3 || (type[0] != '<' && type[0] != '>' && type[0] != '=') || type[1] != 'f') {
    return std::nullopt;
  }
  if (type[2] != '2' && type[2] != '4' && type[2] != '8') return std::nullopt;
  return static_cast<std::size_t>(type[2] - '0');
}

template <class Bits>
Bits load(const char* from, bool swapped) {
  std::array<char, sizeof(Bits)> bytes;
  std::memcpy(bytes.data(), from, sizeof(Bits));
  if (swapped) std::reverse(bytes.begin(), bytes.end());
  return std::bit_cast<Bits>(bytes);
}

// float16 has 5 bits of exponent (bias 15) and 10 of fraction; every value fits float32.
float from_half(std::uint16_t half) {
  const std::uint32_t sign = half & 0x8000U, exponent = half >> 10U & 0x1FU,
                      fraction = half & 0x3FFU;
  if (exponent == 0) {
    const float size = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -size : size;
  }
  const std::uint32_t wide = exponent == 0x1FU ? 0xFFU : exponent + (127 - 15);
  return std::bit_cast<float>(sign << 16U | wide << 23U | fraction << 13U);
}

// The product of the axes, those of 0 left out; empty when it overflows. An array with an empty axis
// has to have room for its other axes too, or sizes computed from them would overflow later.
std::optional<std::int64_t> room(const std::vector<std::int64_t>& shape, std::size_t size) {
  auto bytes = static_cast<std::int64_t>(size);
  for (const std::int64_t axis : shape) {
    if (axis != 0 && __builtin_mul_overflow(bytes, axis, &bytes)) return std::nullopt;
  }
  return bytes;
}

// Calls visit(where it lies in the file, its index) for every element in C order.
template <class Visit>
void for_each_element(const Header& header, Visit&& visit) {
  const std::vector<std::int64_t>& shape = header.shape;
  std::vector<std::int64_t> strides(shape.size()), index(shape.size(), 0);
  std::int64_t count = 1;
  for (std::size_t a = 0; a < shape.size(); ++a) {
    const std::size_t axis = header.fortran ? a : shape.size() - 1 - a;
    strides[axis] = count;
    count *= shape[axis];
  }
  std::int64_t at = 0;
  for (std::int64_t e = 0; e < count; ++e) {
    visit(at, index);
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      at += strides[axis];
      if (++index[axis] < shape[axis]) break;
      at -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

std::string describe(const Header& header, std::size_t size) {
  std::string text = fmt::format("float{}", 8 * size);
  if (header.fortran) text += ", Fortran order";
  if (header.type[0] != '=' && header.type[0] != native_order) {
    text += header.type[0] == '>' ? ", big-endian" : ", little-endian";
  }
  return text;
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

Npy parse_npy(std::string_view bytes, const std::string& name) {
  const auto refuse = [&](const std::string& what) {
    file_error(fmt::format("{} is no readable .npy file: {}", name, what));
  };
  if (!bytes.starts_with(magic)) refuse("it does not start with \\x93NUMPY");
  if (bytes.size() < magic.size() + 2) refuse("it ends within its first bytes");
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(bytes[at]); };
  const int major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) {
    refuse(
        fmt::format("it has format version {}.{}, and 1.0, 2.0 and 3.0 are known", major, minor));
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t header_begin = magic.size() + 2 + length_bytes;
  if (bytes.size() < header_begin) refuse("it ends within its first bytes");
  std::size_t header_length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) {
    header_length |= static_cast<std::size_t>(byte(magic.size() + 2 + i)) << (8 * i);
  }
  if (header_length > bytes.size() - header_begin) refuse("its header does not end");
  const Header header = HeaderReader(bytes.substr(header_begin, header_length), name).read();

  const auto size = element_size(header.type);
  if (!size) {
    usage_error(
        fmt::format("{} holds {}; float16, float32 and float64 are read, as "
                    "array.astype('float32') makes them",
                    name, type_name(header.type)));
  }
  if (header.shape.size() < 2 || header.shape.size() > 4) {
    usage_error(
        fmt::format("{} has {} axes; [tokens, dim], [heads, tokens, dim] and [batch, heads, "
                    "tokens, dim] are read",
                    name, header.shape.size()));
  }
  const auto space = room(header.shape, *size);
  const bool empty = std::count(header.shape.begin(), header.shape.end(), 0) > 0;
  const std::string_view data = bytes.substr(header_begin + header_length);
  if (!space || (empty ? 0 : *space) > static_cast<std::int64_t>(data.size())) {
    refuse(fmt::format("its shape {} takes more than the {} bytes of data there are",
                       shape_text(header.shape), data.size()));
  }
  if (const std::int64_t wanted = empty ? 0 : *space;
      wanted < static_cast<std::int64_t>(data.size())) {
    refuse(fmt::format("{} bytes follow the {} that its shape {} takes",
                       static_cast<std::int64_t>(data.size()) - wanted, wanted,
                       shape_text(header.shape)));
  }

  Npy array{header.shape, std::vector<float>(data.size() / *size), describe(header, *size)};
  if (array.stored == "float32") {
    std::copy_n(data.data(), data.size(), reinterpret_cast<char*>(array.values.data()));
    return array;
  }
  const bool swapped = header.type[0] != '=' && header.type[0] != native_order;
  std::size_t next = 0;
  for_each_element(header, [&](std::int64_t at, const std::vector<std::int64_t>& index) {
    const char* const from = data.data() + at * static_cast<std::int64_t>(*size);
    float& value = array.values[next++];
    if (*size == 2) {
      value = from_half(load<std::uint16_t>(from, swapped));
    } else if (*size == 4) {
      value = std::bit_cast<float>(load<std::uint32_t>(from, swapped));
    } else {
      const auto wide = std::bit_cast<double>(load<std::uint64_t>(from, swapped));
      value = static_cast<float>(wide);
      if (std::isfinite(wide) && !std::isfinite(value)) {
        usage_error(fmt::format("{} holds {} at [{}], which float32 cannot hold", name, wide,
                                fmt::join(index, ", ")));
      }
    }
  });
  return array;
}

std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const float> values) {
  std::string header = fmt::format("{{'descr': '{}f4', 'fortran_order': False, 'shape': {}, }}",
                                   native_order, shape_text(shape));
  // The data begin at a multiple of 64, and the header ends with a newline.
  const std::size_t begin = magic.size() + 4;
  header.resize((begin + header.size() + 1 + 63) / 64 * 64 - begin, ' ');
  header.back() = '\n';
  std::string bytes(magic);
  bytes += {1, 0, static_cast<char>(header.size() & 0xFFU), static_cast<char>(header.size() >> 8U)};
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return bytes;
}

}  // namespace attn
