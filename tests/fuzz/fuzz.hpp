// SPDX-License-Identifier: MIT
// What the fuzz targets share: a property that must hold, and what a refused input must say.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "harness/error.hpp"

// Ends the run with the broken property; libFuzzer then keeps the input and prints the stack.
#define ATTN_DEMAND(condition)                                                            \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

namespace attn {

// What `parse()` returned; nothing when it refused with one of `codes` and one line that names
// `subject`. Any other exception ends the run.
template <class Parse>
auto accepted(std::initializer_list<Exit> codes, std::string_view subject, const Parse& parse)
    -> std::optional<decltype(parse())> {
  try {
    return parse();
  } catch (const CommandError& error) {
    const std::string_view sentence = error.what();
    ATTN_DEMAND(std::find(codes.begin(), codes.end(), error.code()) != codes.end());
    ATTN_DEMAND(sentence.find(subject) != std::string_view::npos);
    ATTN_DEMAND(sentence.find_first_of("\n\r") == std::string_view::npos);
    return std::nullopt;
  }
}

}  // namespace attn
