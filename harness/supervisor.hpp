// SPDX-License-Identifier: MIT
// Runs a sweep in worker processes, one after the other, so that a crash, a kill, a hang and a
// sticky device error are one mechanism: the worker is gone, the journal is there, the next worker
// goes on.
#pragma once

#include "harness/error.hpp"
#include "harness/journal.hpp"
#include "harness/sweep.hpp"

namespace attn {

// The harness's own cost: a round's time outside the backends, over its samples.
struct HarnessCost {
  std::int64_t samples = 0;
  double seconds_in_rounds = 0;
  double seconds_in_calls = 0;  // warm calls included
};

struct SweepResult {
  RunState state;
  Exit code = Exit::good;
  HarnessCost cost;
};

// Measures what the journal in sweep.dir does not hold yet. On `resume`, points that ended in
// error, timeout or oom are tried again. Writes results.csv, phases.csv and run.json. SIGINT and
// SIGTERM end the run in order: what was measured is kept.
SweepResult run_sweep(const Sweep& sweep, bool resume);

}  // namespace attn
