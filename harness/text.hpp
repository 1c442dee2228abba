// SPDX-License-Identifier: MIT
// Words as a user types and reads them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attn {

// The text on one line: control characters and bytes that are no UTF-8 as \n, \t or \x1b.
std::string printable(std::string_view text);

// The candidate with the least edit distance, upper and lower case being alike; the first of equals.
// There must be one.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// One word of a shell's command line, on one line: in quotes where it needs them.
std::string shell_word(std::string_view text);

std::vector<std::string> split(std::string_view text, char separator);  // "" is one empty part

}  // namespace attn
