// SPDX-License-Identifier: MIT
#include "harness/npy.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "harness/error.hpp"

namespace attn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float infinity = std::numeric_limits<float>::infinity();

std::string dictionary(const std::string& type, bool fortran, const std::string& shape) {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}", type,
                     fortran ? "True" : "False", shape);
}

// A file of format version `major` around a header, which ends with a newline.
std::string file(const std::string& header, const std::string& data, int major = 1) {
  const std::string text = header + "\n";
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) {
    bytes += static_cast<char>(text.size() >> (8 * i) & 0xFFU);
  }
  return bytes + text + data;
}

// Elements as the file has them: least significant byte first, or last.
template <class Bits>
std::string elements(const std::vector<Bits>& values, bool big = false) {
  std::string bytes;
  for (const Bits value : values) {
    for (std::size_t i = 0; i < sizeof(Bits); ++i) {
      const std::size_t at = big ? sizeof(Bits) - 1 - i : i;
      bytes += static_cast<char>(value >> (8 * at) & 0xFFU);
    }
  }
  return bytes;
}

std::string doubles(const std::vector<double>& values, bool big = false) {
  std::vector<std::uint64_t> bits;
  bits.reserve(values.size());
  for (const double value : values) bits.push_back(std::bit_cast<std::uint64_t>(value));
  return elements(bits, big);
}

std::string singles(const std::vector<float>& values, bool big = false) {
  std::vector<std::uint32_t> bits;
  bits.reserve(values.size());
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return elements(bits, big);
}

// The sentence that refuses `bytes`, whose exit code must be `code`.
std::string refusal(const std::string& bytes, Exit code) {
  try {
    parse_npy(bytes, "in.npy");
  } catch (const CommandError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("in.npy"));
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return {};
}

TEST(Npy, ReadsEveryVersion) {
  for (const int major : {1, 2, 3}) {
    const Npy array =
        parse_npy(file(dictionary("<f4", false, "(2, 3)"), singles({1, 2, 3, 4, 5, 6}), major), "");
    EXPECT_THAT(array.shape, ElementsAre(2, 3));
    EXPECT_THAT(array.values, ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_EQ(array.stored, "float32");
  }
}

TEST(Npy, ReadsFortranOrder) {
  const Npy array =
      parse_npy(file(dictionary("<f8", true, "(2, 3)"), doubles({1, 4, 2, 5, 3, 6})), "");
  EXPECT_THAT(array.values, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(array.stored, "float64, Fortran order");
}

TEST(Npy, ReadsFortranOrderOfFourAxes) {
  std::vector<float> stored;
  for (int d = 0; d < 5; ++d) {
    for (int c = 0; c < 4; ++c) {
      for (int b = 0; b < 3; ++b) {
        for (int a = 0; a < 2; ++a) {
          stored.push_back(static_cast<float>(1000 * a + 100 * b + 10 * c + d));
        }
      }
    }
  }
  const Npy array = parse_npy(file(dictionary("<f4", true, "(2, 3, 4, 5)"), singles(stored)), "");
  std::size_t at = 0;
  for (int a = 0; a < 2; ++a) {
    for (int b = 0; b < 3; ++b) {
      for (int c = 0; c < 4; ++c) {
        for (int d = 0; d < 5; ++d) {
          EXPECT_EQ(array.values[at++], static_cast<float>(1000 * a + 100 * b + 10 * c + d));
        }
      }
    }
  }
  EXPECT_EQ(array.stored, "float32, Fortran order");
}

TEST(Npy, ReadsTheOtherByteOrder) {
  const Npy wide = parse_npy(file(dictionary(">f8", false, "(1, 2)"), doubles({1, -2}, true)), "");
  EXPECT_THAT(wide.values, ElementsAre(1, -2));
  EXPECT_EQ(wide.stored, "float64, big-endian");
  const Npy single =
      parse_npy(file(dictionary(">f4", false, "(1, 2)"), singles({0.5F, -2}, true)), "");
  EXPECT_THAT(single.values, ElementsAre(0.5F, -2));
}

TEST(Npy, ReadsHalfPrecisionExactly) {
  const std::vector<std::uint16_t> bits = {0x3C00, 0xC000, 0x0001, 0x8001, 0x03FF, 0x0400,
                                           0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x8000, 0x3555};
  const std::vector<float> truth = {1.0F,
                                    -2.0F,
                                    std::ldexp(1.0F, -24),
                                    -std::ldexp(1.0F, -24),
                                    std::ldexp(1023.0F, -24),
                                    std::ldexp(1.0F, -14),
                                    65504.0F,
                                    infinity,
                                    -infinity,
                                    std::numeric_limits<float>::quiet_NaN(),
                                    -0.0F,
                                    0.333251953125F};
  for (const bool big : {false, true}) {
    const Npy array =
        parse_npy(file(dictionary(big ? ">f2" : "<f2", false, "(1, 12)"), elements(bits, big)), "");
    ASSERT_EQ(array.values.size(), truth.size());
    for (std::size_t e = 0; e < truth.size(); ++e) {
      if (std::isnan(truth[e])) {
        EXPECT_TRUE(std::isnan(array.values[e]));
      } else {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(array.values[e]),
                  std::bit_cast<std::uint32_t>(truth[e]))
            << e;
      }
    }
  }
}

TEST(Npy, ReadsWhatItWrites) {
  const std::vector<float> values = {1, -0.0F, infinity, 1e-45F, 3, 4};
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{2, 3}, {1, 2, 3}, {1, 1, 6, 1}}) {
    const std::string bytes = npy_bytes(shape, values);
    const Npy array = parse_npy(bytes, "");
    EXPECT_EQ(array.shape, shape);
    EXPECT_EQ(singles(array.values), singles(values)) << "bit by bit: -0 is not 0";
    EXPECT_EQ((bytes.size() - sizeof(float) * 6) % 64, 0U) << "data are not aligned";
    EXPECT_EQ(bytes[bytes.size() - sizeof(float) * 6 - 1], '\n');
  }
}

TEST(Npy, ReadsEmptyAxes) {
  const Npy array = parse_npy(file(dictionary("<f8", true, "(0, 2, 3, 8)"), ""), "");
  EXPECT_THAT(array.shape, ElementsAre(0, 2, 3, 8));
  EXPECT_TRUE(array.values.empty());
}

TEST(Npy, ReadsAnyOrderOfKeysAndEitherQuote) {
  const Npy array = parse_npy(
      file(R"({ "shape" : (1,2) , "descr":"<f4","fortran_order" :False})", singles({1, 2})), "");
  EXPECT_THAT(array.values, ElementsAre(1, 2));
}

TEST(Npy, RefusesWhatIsNoNpyFile) {
  EXPECT_THAT(refusal("", Exit::file), HasSubstr("NUMPY"));
  EXPECT_THAT(refusal("PK\x03\x04 an .npz file", Exit::file), HasSubstr("NUMPY"));
  const std::string good = file(dictionary("<f4", false, "(1, 2)"), singles({1, 2}));
  for (std::size_t length = 0; length < good.size(); ++length) {
    refusal(good.substr(0, length), Exit::file);
  }
  EXPECT_THAT(refusal(file(dictionary("<f4", false, "(1, 2)"), singles({1, 2}), 4), Exit::file),
              HasSubstr("4.0"));
}

TEST(Npy, RefusesHeadersThatAreNone) {
  const std::string data = singles({1, 2});
  for (const std::string header :
       {"", "{", "{'descr': '<f4'", "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), 'more': 1}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)} more",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1, 2]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1.0, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 2)}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (1, 2)}",
        "{descr: '<f4', 'fortran_order': False, 'shape': (1, 2)}"}) {
    SCOPED_TRACE(header);
    refusal(file(header, data), Exit::file);
  }
}

TEST(Npy, RefusesALengthThatIsNotItsShape) {
  const auto with = [](const std::string& shape, const std::string& data) {
    return file(dictionary("<f4", false, shape), data);
  };
  EXPECT_THAT(refusal(with("(1, 3)", singles({1, 2})), Exit::file), HasSubstr("(1, 3)"));
  EXPECT_THAT(refusal(with("(1, 1)", singles({1, 2})), Exit::file), HasSubstr("4 bytes follow"));
  EXPECT_THAT(refusal(with("(0, 2)", singles({1})), Exit::file), HasSubstr("4 bytes follow"));
  EXPECT_THAT(refusal(with("(1, 2)", singles({1, 2}) + "\n"), Exit::file), HasSubstr("1 bytes"));
}

// Allocating before looking at the file's length would end this test, not only fail it.
TEST(Npy, RefusesShapesPastMemoryBeforeAllocating) {
  for (const std::string shape :
       {"(1000000000, 1000000)", "(4611686018427387904, 4)", "(9223372036854775807, 2)",
        "(4294967296, 4294967296, 4294967296)", "(0, 4611686018427387904, 4)"}) {
    SCOPED_TRACE(shape);
    EXPECT_THAT(refusal(file(dictionary("<f4", false, shape), singles({1, 2})), Exit::file),
                HasSubstr("shape"));
  }
}

TEST(Npy, RefusesOtherTypesByName) {
  const std::vector<std::pair<std::string, std::string>> types = {
      {"<i8", "int64"},   {"|u1", "uint8"},     {"<c8", "complex64"},   {"|b1", "bool"},
      {"|O", "object"},   {"|S5", "bytes"},     {"<U3", "unicode"},     {"<M8[ns]", "datetime64"},
      {"|V8", "void"},    {"<f16", "float128"}, {"float32", "float32"}, {"", "''"},
      {"<f3", "float24"}, {"|f4", "float32"}};
  for (const auto& [type, name] : types) {
    SCOPED_TRACE(type);
    EXPECT_THAT(refusal(file(dictionary(type, false, "(1, 2)"), singles({1, 2})), Exit::usage),
                HasSubstr(name));
  }
  const std::string structured =
      "{'descr': [('a', '<f4'), ('b', '<f4')], 'fortran_order': False, 'shape': (1, 1)}";
  EXPECT_THAT(refusal(file(structured, singles({1, 2})), Exit::usage), HasSubstr("structured"));
}

TEST(Npy, RefusesOtherRanks) {
  for (const std::string shape : {"()", "(2,)", "(1, 1, 1, 1, 2)"}) {
    EXPECT_THAT(refusal(file(dictionary("<f4", false, shape), singles({1, 2})), Exit::usage),
                HasSubstr("axes"));
  }
}

TEST(Npy, RefusesFiniteNumbersThatFloat32CannotHold) {
  const std::string text =
      refusal(file(dictionary("<f8", true, "(2, 2)"), doubles({1, 2, -1e39, 4})), Exit::usage);
  EXPECT_THAT(text, HasSubstr("[0, 1]"));
  EXPECT_THAT(text, HasSubstr("-1e+39"));
  const Npy array = parse_npy(
      file(dictionary("<f8", false, "(1, 4)"), doubles({1e-60, -INFINITY, NAN, 3.4e38})), "");
  EXPECT_EQ(array.values[0], 0.0F);
  EXPECT_EQ(array.values[1], -infinity);
  EXPECT_TRUE(std::isnan(array.values[2]));
  EXPECT_EQ(array.values[3], 3.4e38F);
}

}  // namespace
}  // namespace attn
