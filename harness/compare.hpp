// SPDX-License-Identifier: MIT
// Two backends against each other: paired log ratios of interleaved rounds.
#pragma once

#include <string>
#include <vector>

#include "harness/journal.hpp"
#include "harness/sweep.hpp"

namespace attn {

struct Comparison {
  std::string label;  // the problem that both solved
  double seconds_a = 0;
  double seconds_b = 0;
  double ratio = 0;  // time of A over time of B: the median of the rounds' ratios
  double ratio_lo = 0;
  double ratio_hi = 0;  // 95 % interval from order statistics of the paired ratios
  int rounds = 0;
  std::string verdict;  // of A: "faster", "slower" or "undecided"
};

// The verdict needs the whole interval on one side of 1 and the ratio farther from 1 than
// `threshold`.
Comparison compare_rounds(const std::vector<Sample>& a, const std::vector<Sample>& b,
                          double threshold);

// Every problem that both backends solved; sweep.points holds both.
std::vector<Comparison> compare_points(const Sweep& sweep, const RunState& state, double threshold);

}  // namespace attn
