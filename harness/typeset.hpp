// SPDX-License-Identifier: MIT
// Text for people to read in a terminal: numbers, tables, matrices side by side. The C locale's
// digits always; programs take --json instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attn {

std::string grouped(std::int64_t value);  // 98304 -> "98 304"
std::string prefixed(double value);       // four digits and a power of ten: 4.194e6 -> "4.194 M"
std::string memory_text(std::int64_t bytes);    // "4 096 B" below 10^4, then "0.295 MB", GB, TB
std::string grouped_real(double value);         // "4 096" when whole, else "1 039.27"
std::size_t display_width(const std::string&);  // code points: what a terminal shows of UTF-8

using Lines = std::vector<std::string>;
using Rows = std::vector<std::vector<std::string>>;

// Columns as wide as their widest cell, two spaces apart: the first `left` of them to the left, the
// others to the right. Every line is indented by two spaces; none has spaces at its end.
std::string table(const Rows& rows, std::size_t left = 1);

// Blocks of lines beside each other, three spaces apart, indented by two; short ones end early.
std::string beside(const std::vector<Lines>& blocks);

}  // namespace attn
