// SPDX-License-Identifier: MIT
// attnbench: which command a word means, and the exit code of whatever ends it.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>

#include "generated/identity.hpp"
#include "harness/command.hpp"

namespace attn {
namespace {

struct Command {
  std::string_view name;
  std::string_view arguments;
  std::string_view about;
  Exit (*run)(const Words&);
};
constexpr Command commands[] = {
    {"list", "[backends|presets|columns|statuses] [--json]", "what exists, what is built, why not",
     command_list},
    {"run", "[options]", "a sweep; `run --help` teaches it", command_run},
    {"compare", "A B [options]", "faster, slower or undecided", command_compare},
    {"selftest", "[options]", "dishonest backends, and which rule catches each", command_selftest},
};

std::string usage() {
  std::string text =
      "attnbench measures implementations of attention: checked first, then timed.\n\n";
  for (const Command& command : commands) {
    const std::string call = fmt::format("attnbench {} {}", command.name, command.arguments);
    text += fmt::format("  {:<62}{}\n", call, command.about);
  }
  return text +
         "  attnbench --version\n\n"
         "Exit codes: 0 good, 1 wrong result, 2 usage, 3 regression, 4 nothing measured, 5 too "
         "noisy,\n"
         "6 file trouble, 130 and 143 interrupted (what was measured is kept).\n"
         "attnplot reads what run writes.\n";
}

std::string command_names() {
  std::string names;
  for (const Command& command : commands) {
    names += fmt::format("{}{}",
                         names.empty()                        ? ""
                         : &command == std::end(commands) - 1 ? " or "
                                                              : ", ",
                         command.name);
  }
  return names;
}

Exit dispatch(const Words& words) {
  if (words.empty()) {
    usage_error(fmt::format("say what to do: {}; `attnbench --help` explains", command_names()));
  }
  const Words rest(words.begin() + 1, words.end());
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    fmt::print("{}", usage());
    return Exit::good;
  }
  if (words[0] == "--version") {
    fmt::print("attnbench build {} of commit {}{}\n", ATTN_BUILD_ID, ATTN_GIT_SHA,
               ATTN_GIT_DIRTY ? " with changes" : "");
    return Exit::good;
  }
  for (const Command& command : commands) {
    if (words[0] == command.name) return command.run(rest);
  }
  usage_error(fmt::format("\"{}\" is no command; use {}", words[0], command_names()));
}

}  // namespace
}  // namespace attn

int main(int argc, char** argv) {
  try {
    const auto code = static_cast<int>(attn::dispatch({argv + 1, argv + argc}));
    if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category(), "stdout");
    return code;
  } catch (const attn::HelpShown&) {
    return static_cast<int>(attn::Exit::good);
  } catch (const attn::CommandError& error) {
    fmt::print(stderr, "attnbench: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::system_error& error) {  // a folder that cannot be looked at, a full stdout
    fmt::print(stderr, "attnbench: {}\n", error.what());
    return static_cast<int>(attn::Exit::file);
  } catch (const std::exception& error) {
    fmt::print(stderr, "attnbench: {}\n", error.what());
    return static_cast<int>(attn::Exit::wrong);
  }
}
