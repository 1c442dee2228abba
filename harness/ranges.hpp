// SPDX-License-Identifier: MIT
// The grammar of axes: `128:8192` (doubling), `128:8192:x2`, `1024:8192:xsqrt2`, `1,2,300`, `1k`,
// and comma-separated mixes of these.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace attn {

// Values in the order given, duplicates removed. Throws CommandError (usage) that names `option`,
// what is wrong and what would work. Every value lies in [least, 2^31).
std::vector<std::int64_t> parse_range(std::string_view option, std::string_view text,
                                      std::int64_t least);

// One whole number in [least, most], in decimal digits, `k` for 1024 allowed. Throws CommandError
// (usage).
std::int64_t parse_whole(std::string_view option, std::string_view text, std::int64_t least,
                         std::int64_t most);

}  // namespace attn
