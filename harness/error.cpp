// SPDX-License-Identifier: MIT
#include "harness/error.hpp"

#include <array>
#include <cstdio>

#include "harness/text.hpp"

namespace attn {

Exit exit_of(const std::set<Exit>& happened) {
  constexpr std::array precedence = {
      Exit::usage, Exit::file,       Exit::interrupted,      Exit::terminated,
      Exit::wrong, Exit::regression, Exit::nothing_measured, Exit::noisy};
  for (const Exit code : precedence) {
    if (happened.contains(code)) return code;
  }
  return Exit::good;
}

CommandError::CommandError(Exit code, std::string_view sentence)
    : std::runtime_error(printable(sentence)), code_(code) {}

void warn(std::string_view sentence) {
  std::fputs(("attnbench: " + printable(sentence) + "\n").c_str(), stderr);
}

}  // namespace attn
