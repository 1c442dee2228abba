// SPDX-License-Identifier: MIT
// Errors that end a command: one sentence and the exit code that goes with it.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>

namespace attn {

// The exit codes of every command; of two that apply the earlier in `precedence` wins.
enum class Exit : int {
  good = 0,
  wrong = 1,       // a mismatch, mistrusted, error or timeout row
  usage = 2,       // unknown name, empty selection, bad value
  regression = 3,  // compare --fail-on
  nothing_measured = 4,
  noisy = 5,  // noisier than an explicit --max-ci
  file = 6,   // a file could not be read or written
  interrupted = 130,
  terminated = 143,
};

class CommandError : public std::runtime_error {
 public:
  CommandError(Exit code, const std::string& sentence)
      : std::runtime_error(sentence), code_(code) {}
  [[nodiscard]] Exit code() const { return code_; }

 private:
  Exit code_;
};

[[noreturn]] inline void usage_error(const std::string& sentence) {
  throw CommandError(Exit::usage, sentence);
}
[[noreturn]] inline void file_error(const std::string& sentence) {
  throw CommandError(Exit::file, sentence);
}

// One sentence on stderr for what is not the end of the command; a stderr that is gone is no reason to
// end it either.
inline void warn(const std::string& sentence) {
  std::fputs(("attnbench: " + sentence + "\n").c_str(), stderr);
}

}  // namespace attn
