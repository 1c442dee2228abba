// SPDX-License-Identifier: MIT
#include "harness/ranges.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string>

#include "harness/error.hpp"
#include "harness/text.hpp"

namespace attn {
namespace {

constexpr std::int64_t largest_count = (std::int64_t{1} << 31) - 1;

struct Grammar {
  std::string_view option;
  std::string_view text;
  std::int64_t least;
  std::int64_t most;
  std::string works;  // what would

  [[noreturn]] void refuse(std::string_view what) const {
    usage_error(fmt::format("{}: \"{}\" {}; use {}", option, text, what, works));
  }

  [[nodiscard]] std::int64_t number(std::string_view word) const {
    std::int64_t factor = 1;
    std::string_view digits = word;
    if (digits.ends_with('k')) {
      factor = 1024;
      digits.remove_suffix(1);
    }
    std::int64_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 10);
    if (error == std::errc::result_out_of_range) refuse("is too large");
    if (error != std::errc{} || end != digits.data() + digits.size()) {
      refuse(fmt::format("holds \"{}\", which is not a whole number", word));
    }
    if (value > most / factor) refuse("is too large");
    if (value * factor < least) refuse(fmt::format("holds {}, which is too small", word));
    return value * factor;
  }
};

}  // namespace

std::vector<std::int64_t> parse_range(std::string_view option, std::string_view text,
                                      std::int64_t least) {
  const Grammar grammar{
      option, text, least, largest_count,
      fmt::format("numbers from {} up, like 128, 1k, 128,256 or 128:8192[:x2|:xsqrt2]", least)};
  std::vector<std::int64_t> values;
  for (const std::string& item : split(text, ',')) {
    const std::vector<std::string> parts = split(item, ':');
    if (parts.size() > 3) grammar.refuse("has too many colons");
    const std::int64_t first = grammar.number(parts[0]);
    if (parts.size() == 1) {
      values.push_back(first);
      continue;
    }
    const std::int64_t last = grammar.number(parts[1]);
    if (last < first) grammar.refuse("runs backwards");
    if (first == 0) grammar.refuse("starts at 0, which cannot be multiplied");
    double step = 2;
    if (parts.size() == 3) {
      if (parts[2] == "xsqrt2") {
        step = std::numbers::sqrt2;
      } else if (parts[2] != "x2") {
        grammar.refuse(fmt::format("has the step \"{}\"", parts[2]));
      }
    }
    // Steps are counted from the first value, so that rounding never accumulates.
    for (int i = 0;; ++i) {
      const std::int64_t value = std::llround(static_cast<double>(first) * std::pow(step, i));
      if (value > last) break;
      values.push_back(value);
    }
  }
  std::vector<std::int64_t> unique;
  for (const std::int64_t value : values) {
    if (std::find(unique.begin(), unique.end(), value) == unique.end()) unique.push_back(value);
  }
  return unique;
}

std::int64_t parse_whole(std::string_view option, std::string_view text, std::int64_t least,
                         std::int64_t most) {
  return Grammar{option, text, least, most,
                 fmt::format("a whole number from {} to {}", least, most)}
      .number(text);
}

}  // namespace attn
