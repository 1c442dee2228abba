// SPDX-License-Identifier: MIT
// The process that measures. It goes on from the state of the journal, ends with the first offence,
// and can be killed at any moment.
#pragma once

#include "harness/journal.hpp"
#include "harness/runner.hpp"
#include "harness/sweep.hpp"

namespace attn {

enum class Stage : int { roofs, first_pass, rounds, closing, phases };
std::string_view stage_name(Stage stage);

enum class WorkerExit : int {
  share_done = 0,  // its share of the rounds, or everything
  offence = 10,    // it wrote an offence into the journal
  failed = 11,     // a file could not be written: the message went to stderr
};

// Does its share of the sweep. Called in a forked child; does not return before the share is done.
WorkerExit work(const Sweep& sweep, RunState state, Journal& journal, Board& board, int process);

}  // namespace attn
