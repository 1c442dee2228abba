// SPDX-License-Identifier: MIT
// attnbench: which command a word means, and the exit code of whatever ends it.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>

#include "generated/identity.hpp"
#include "harness/command.hpp"
#include "harness/text.hpp"

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
    {"apply", "BACKEND --q F --k F --v F --out F [options]", "one backend on your own tensors",
     command_apply},
    {"calc", "params|cache|flops|crossover|example ...", "the lesson's numbers", command_calc},
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

Exit run_command(std::string_view name, const Words& rest) {
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (name == command.name) return command.run(rest);
    names.emplace_back(command.name);
  }
  usage_error(fmt::format("\"{}\" is no command; the nearest is {}, all are {}", name,
                          nearest(name, names), command_names()));
}

Exit dispatch(const Words& words) {
  if (words.empty()) {
    usage_error(fmt::format("say what to do: {}; `attnbench --help` explains", command_names()));
  }
  const Words rest(words.begin() + 1, words.end());
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    if (!rest.empty()) return run_command(rest[0], {"--help"});
    fmt::print("{}", usage());
    return Exit::good;
  }
  if (words[0] == "--version") {
    fmt::print("attnbench build {} of commit {}{}\n", ATTN_BUILD_ID, ATTN_GIT_SHA,
               ATTN_GIT_DIRTY ? " with changes" : "");
    return Exit::good;
  }
  return run_command(words[0], rest);
}

// A file opened while 0, 1 or 2 is free would get that number, and what is printed would land in it.
void occupy_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // Printing still fails, as on a closed one.
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

Exit answer(const Words& words) {
  try {
    return dispatch(words);
  } catch (const HelpShown&) {
    return Exit::good;
  }
}

}  // namespace
}  // namespace attn

int main(int argc, char** argv) {
  attn::occupy_standard_descriptors();
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow (ulimit -f) is said like a full disk
  try {
    const auto code = static_cast<int>(attn::answer({argv + 1, argv + argc}));
    if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category(), "stdout");
    return code;
  } catch (const attn::CommandError& error) {
    attn::warn(error.what());
    return static_cast<int>(error.code());
  } catch (const std::system_error& error) {  // a folder that cannot be looked at, a full stdout
    attn::warn(error.what());
    return static_cast<int>(attn::Exit::file);
  } catch (const std::exception& error) {
    attn::warn(error.what());
    return static_cast<int>(attn::Exit::wrong);
  }
}
