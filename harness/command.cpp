// SPDX-License-Identifier: MIT
#include "harness/command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace attn {

void parse(CLI::App& app, Words args) {
  std::reverse(args.begin(), args.end());
  try {
    app.parse(std::move(args));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    throw HelpShown{};
  } catch (const CLI::ParseError& error) {
    std::string sentence = error.what();
    std::replace(sentence.begin(), sentence.end(), '\n', ' ');
    usage_error(fmt::format("{}; `{} --help` lists the options", sentence, app.get_name()));
  }
}

}  // namespace attn
