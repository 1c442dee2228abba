// SPDX-License-Identifier: MIT
// From the words of `run` to a sweep in its folder, and what is said of it at the end.
#pragma once

#include "harness/cli.hpp"
#include "harness/command.hpp"
#include "harness/sweep.hpp"

namespace attn {

// Opens the run's folder: fresh, or with --resume the one that is there, whose arguments then
// count. Creates nothing yet. Throws CommandError (usage, file).
Sweep open_run(RunRequest& request, const Words& args);

void make_folder(const std::string& dir);  // throws CommandError (file)

// Counts by status, and every row that is neither ok nor refused with its reason.
void print_summary(const Sweep& sweep, const RunState& state);

std::string compact_utc();  // 20260131T235959Z

}  // namespace attn
