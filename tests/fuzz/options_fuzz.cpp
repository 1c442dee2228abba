// SPDX-License-Identifier: MIT
// The words of the command line: axes, shares, times and sizes. Either a value inside its bounds or
// one sentence that names the option.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>

#include "harness/cli.hpp"
#include "harness/ranges.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace attn {
namespace {

constexpr const char* option = "--option";

void axis(std::string_view text, std::int64_t least) {
  const auto parse = [&](std::string_view words) {
    return accepted({Exit::usage}, option, [&] { return parse_range(option, words, least); });
  };
  const auto values = parse(text);
  if (!values) return;
  ATTN_DEMAND(!values->empty());
  for (const std::int64_t value : *values) {
    ATTN_DEMAND(value >= least);
    ATTN_DEMAND(value < std::int64_t{1} << 31);
  }
  ATTN_DEMAND(std::set<std::int64_t>(values->begin(), values->end()).size() == values->size());
  ATTN_DEMAND(parse(fmt::format("{}", fmt::join(*values, ","))) == values);
}

}  // namespace
}  // namespace attn

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace attn;
  const std::string text(reinterpret_cast<const char*>(data), size);
  axis(text, 0);
  axis(text, 1);

  const auto share = accepted({Exit::usage}, option, [&] { return parse_share(option, text); });
  if (share) ATTN_DEMAND(*share > 0 && *share <= 1);

  const auto seconds = accepted({Exit::usage}, option, [&] { return parse_seconds(option, text); });
  if (seconds) ATTN_DEMAND(*seconds > 0 && std::isfinite(*seconds));

  constexpr std::int64_t available = std::int64_t{24} << 30;
  const auto bytes =
      accepted({Exit::usage}, option, [&] { return parse_bytes(option, text, available); });
  if (bytes) {
    ATTN_DEMAND(text.ends_with('%') ? *bytes >= 0 && *bytes <= available : *bytes >= 1);
  }
  return 0;
}
