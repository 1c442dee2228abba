// SPDX-License-Identifier: MIT
// The commands of attnbench: each takes the words after its name and answers with the exit code;
// errors that end it are thrown as CommandError.
#pragma once

#include <string>
#include <vector>

#include "harness/error.hpp"

namespace CLI {
class App;
}

namespace attn {

using Words = std::vector<std::string>;

Exit command_list(const Words& args);
Exit command_run(const Words& args);
Exit command_compare(const Words& args);
Exit command_calc(const Words& args);
Exit command_apply(const Words& args);
Exit command_selftest(const Words& args);

// Parses a command's words. Throws CommandError (usage), and HelpShown after --help, which prints.
struct HelpShown {};
void parse(CLI::App& app, Words args);

}  // namespace attn
