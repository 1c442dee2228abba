// SPDX-License-Identifier: MIT
// A sweep: its points, how they are measured, and what remains to be done in a given state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/journal.hpp"
#include "harness/machine.hpp"
#include "harness/plan.hpp"
#include "harness/roofs.hpp"
#include "harness/safeguards.hpp"

namespace attn {

struct MeasureOptions {
  int min_samples = 3;
  int max_samples = 30;
  double max_ci = 0.02;        // stop at this half-width of the median's interval, as a share of it
  bool max_ci_given = false;   // then a noisier row is exit code 5
  double sample_budget_s = 2;  // stop after this many seconds of samples on one point
  double timeout_s = 60;       // a call is hung after this, or after 5 x its prediction
  std::int64_t mem_limit_bytes = 0;                // of the host
  double device_mem_share = default_memory_share;  // of what is free on a device
  int rounds = 6;     // of fitted curves: exactly; the least that carries a 95 % interval
  int processes = 1;  // the rounds of fitted curves are spread over this many workers
  Order order = Order::random;
  bool phases = true;  // instrumented calls at the end
  Safeguards rules;    // all in force, unless selftest takes one away
};

struct Sweep {
  std::vector<Point> points;
  MeasureOptions options;
  std::uint64_t seed = 1;
  std::string dir;  // the run's folder
  std::string run_id;
  std::string tags;
  std::vector<std::string> argv;  // what decides the points: without --out, --resume and --quiet
  std::string started_utc;
  Machine machine;
  bool quiet = false;
};

// What ended the sampling of a point ("rounds", "precision", "samples", "budget"), if anything did.
std::optional<std::string> stop_reason(const Point& point, const PointState& state,
                                       const MeasureOptions& options);

// The first round of which the point has no sample.
int next_round(const PointState& state);

// Seconds one call of points[index] will take, scaled by cost().flops from the largest measured
// smaller n of the same curve; nothing when no smaller n was measured. `from` is that n's index.
struct Prediction {
  double seconds;
  std::size_t from;
};
std::optional<Prediction> predict(const std::vector<Point>& points, std::size_t index,
                                  const RunState& state);

// Points of one shape share inputs and reference: the problem without threads, and what computes
// it.
std::string shape_key(const Point& point);

// Bytes of inputs of the shape, and of output and state of the point; scratch is the arena's.
std::int64_t shape_bytes(const Point& point);
std::int64_t own_bytes(const Point& point);
// Of a device's memory, where a point has its own inputs, too, and zones around every buffer.
std::int64_t device_bytes(const Point& point);

// Every roof that the points of the sweep are held against, whether the machine has the device or not.
std::vector<Roof> roofs_of(const Sweep& sweep);
Roof peak_of(const Problem& problem);       // the multiply-adds
Roof bandwidth_of(const Problem& problem);  // what memory delivers at best
std::string roof_id(const Roof& roof);      // "roof:fma:f32:1", "roof:copy:f32:device"

// Records an offence; the second of a point finishes it. `kind` is mismatch, crash, hang, kill, oom
// or failure.
void record_offence(Journal& journal, RunState& state, const Point& point, int process,
                    std::optional<int> round, const std::string& kind, const std::string& reason,
                    std::optional<Safeguard> rule = std::nullopt);

}  // namespace attn
