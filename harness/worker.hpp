// SPDX-License-Identifier: MIT
// The process that measures. It goes on from the state of the journal, ends with the first offence,
// and can be killed at any moment.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "harness/journal.hpp"
#include "harness/sweep.hpp"

namespace attn {

enum class Stage : int { roofs, first_pass, rounds, closing, phases };
std::string_view stage_name(Stage stage);

// What a worker is doing right now, in memory that its supervisor polls: a pipe would wake the core
// that the measurement uses.
struct Board {
  std::atomic<std::int64_t> point{-1};       // index of the point under way; -1: none
  std::atomic<std::int64_t> deadline_ns{0};  // steady clock; 0: none
  std::atomic<int> round{-1};                // -1: first pass
  std::atomic<int> stage{0};                 // a Stage
  std::atomic<double> seconds_left{0};       // of the work that is planned
  std::atomic<std::int64_t> steps_done{0};   // points of the first pass, samples, closing calls
  std::atomic<std::int64_t> steps_planned{0};
  std::atomic<bool> past_the_end{false};  // a fault in a page that protects a tensor's end
  // The harness's own cost: what of a round's time was spent in backends.
  std::atomic<std::int64_t> samples{0};
  std::atomic<double> seconds_in_rounds{0};
  std::atomic<double> seconds_in_calls{0};
  std::atomic<bool> stopped{false};  // it ended because it had been stopped
  std::array<char, 1024> failure{};  // why it ended with WorkerExit::failed
};

enum class WorkerExit : int {
  share_done = 0,  // its share of the rounds, or everything
  offence = 10,    // it wrote an offence into the journal
  failed = 11,     // a file could not be written, say: the sentence is on the board
};

// Does its share of the sweep. Called in a forked child; does not return before the share is done.
WorkerExit work(const Sweep& sweep, RunState state, Journal& journal, Board& board, int process);

}  // namespace attn
