// SPDX-License-Identifier: MIT
#include "harness/command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "harness/text.hpp"

namespace attn {
namespace {

bool is_option(const std::string& word) {
  if (word.starts_with("--")) return word.size() > 2;
  return word.size() > 1 && word[0] == '-' &&
         std::isalpha(static_cast<unsigned char>(word[1])) != 0;
}

// CLI11 takes any next word for a value and does not know which option was meant.
void check_options(const CLI::App& app, const Words& args) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  std::set<const CLI::Option*> given;
  for (std::size_t i = 0; i < args.size() && args[i] != "--"; ++i) {
    if (!is_option(args[i])) continue;
    const std::size_t equals = args[i].find('=');
    const std::string name = args[i].substr(0, equals);
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) {
      usage_error(fmt::format("{} is no option of `{}`; the nearest is {}, `{} --help` lists all",
                              name, app.get_name(), nearest(name, names), app.get_name()));
    }
    if (option->get_expected_max() == 0) {
      if (equals == std::string::npos) continue;
      usage_error(fmt::format("{} takes no value; leave out \"{}\"", name, args[i].substr(equals)));
    }
    const bool repeatable = option->get_expected_max() > 1;
    if (!given.insert(option).second && !repeatable) {
      usage_error(fmt::format("{} is given twice; give it once", name));
    }
    if (equals == std::string::npos ? ++i == args.size() || args[i].starts_with("--")
                                    : equals + 1 == args[i].size()) {
      usage_error(
          fmt::format("{}: a value is missing; write {} {}", name, name, option->get_type_name()));
    }
  }
}

}  // namespace

void parse(CLI::App& app, Words args) {
  check_options(app, args);
  std::reverse(args.begin(), args.end());
  try {
    app.parse(std::move(args));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    throw HelpShown{};
  } catch (const CLI::ExtrasError&) {
    Words words = app.remaining();
    std::erase(words, "--");
    usage_error(
        fmt::format("\"{}\" belongs to no option; items of a list are separated by commas alone, "
                    "`{} --help` lists the options",
                    fmt::join(words, " "), app.get_name()));
  } catch (const CLI::ParseError& error) {
    std::string sentence = error.what();
    std::replace(sentence.begin(), sentence.end(), '\n', ' ');
    usage_error(fmt::format("{}; `{} --help` lists the options", sentence, app.get_name()));
  }
}

}  // namespace attn
