// SPDX-License-Identifier: MIT
// Errors that end a command: one sentence and the exit code that goes with it.
#pragma once

#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

namespace attn {

// The exit codes of every command.
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

// The code a command ends with when all of this has happened: bad usage wins over a file, that over
// an interruption, then a wrong result, a regression, nothing measured, noise. Nothing: good.
Exit exit_of(const std::set<Exit>& happened);

// "attnbench: SENTENCE" on one line of stderr. A stderr that is closed or full ends nothing.
void warn(std::string_view sentence);

class CommandError : public std::runtime_error {
 public:
  // The sentence may quote what was typed: control characters in it are escaped.
  CommandError(Exit code, std::string_view sentence);
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

}  // namespace attn
