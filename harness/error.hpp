// SPDX-License-Identifier: MIT
// Errors that end a command: one sentence and the exit code that goes with it.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

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

// `text` without control characters: a sentence that quotes what was typed stays one line.
inline std::string on_one_line(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      line += c;
    } else {
      line += {'\\', 'x', digits[byte / 16], digits[byte % 16]};
    }
  }
  return line;
}

class CommandError : public std::runtime_error {
 public:
  CommandError(Exit code, std::string_view sentence)
      : std::runtime_error(on_one_line(sentence)), code_(code) {}
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
