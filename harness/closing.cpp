// SPDX-License-Identifier: MIT
// What the worker does after the rounds: calls on fresh inputs, which decide a row, and phases.
#include <fmt/format.h>

#include <algorithm>

#include "harness/results.hpp"
#include "harness/work.hpp"
#include "harness/worker_stages.hpp"

namespace attn {
namespace {

constexpr double closing_counts_s = 1;  // a closing call as long as this is a sample
constexpr int closing_attempts = 3;     // slower on fresh inputs counts if it is so every time
constexpr int pairs_attempts = 5;       // and among pairs of short calls, which are cheap
// Than the slowest sample, or the fastest of the calls beside. Not nearer to 1: on inputs that come
// again a predictor knows the branches inside tanh, which made an honest recurrence 1.7 times as
// fast (n = 96, d = 32, AMD EPYC).
constexpr double closing_slower = 3;
// For cold caches and threads that sleep: this call alone is not warmed.
constexpr double closing_allowance_s = 0.005;
constexpr double pairs_allowance_s = 2e-6;
constexpr double pairs_limit_s = 0.01;  // longer calls, or inputs larger than this, would take long
constexpr std::int64_t pairs_limit_bytes = std::int64_t{32} << 20;
constexpr double over_the_roof = 1.05;  // of the FMA peak: faster is an error
constexpr double phase_limit_s = 1;     // longer calls are not repeated for their phases

}  // namespace

void Worker::closing() {
  const std::vector<std::size_t> todo = unfinished();
  std::map<std::string, std::vector<std::size_t>> by_shape;
  int number = 0;  // the round after the last
  for (const std::size_t i : todo) by_shape[shape_key(sweep_.points[i])].push_back(i);
  for (const auto& [id, point] : state_.points) {
    for (const Sample& sample : point.samples) number = std::max(number, sample.round + 1);
  }
  plan_progress(Stage::closing, static_cast<std::int64_t>(todo.size()));
  board_.seconds_left = seconds_ahead();
  for (const auto& [key, members] : by_shape) {
    for (const std::size_t index : members) {
      if (!state_of(index).checks.contains(process_)) verify_point(index, number);
    }
    shape(members.front()).refill(fresh_seed(sweep_.points[members.front()].seed, 0));
    for (const std::size_t index : members) {
      if (!state_of(index).finished()) close_point(index, number);
    }
  }
  journal_.sync();
  write_results(sweep_, state_);
}

// Which rule a backend breaks that is slower on fresh inputs than on those of its samples. Short
// calls are compared by turns, so that neither cold caches nor another program can make the
// difference; a long one with the slowest sample, on three fresh inputs in a row.
std::optional<Finding> Worker::slower_on_fresh_inputs(std::size_t index, int number,
                                                      Runner::Closed& closed) {
  const Point& point = sweep_.points[index];
  const double seconds = seconds_of(index);
  const bool short_call = seconds <= pairs_limit_s && shape_bytes(point) <= pairs_limit_bytes &&
                          point.problem.memory == Memory::host;
  Runner& mine = runner(index);
  if (short_call) {
    for (int attempt = 0; attempt < pairs_attempts; ++attempt) {
      const auto times = watched(index, number, 3 * Runner::fresh_pairs, closed.seconds,
                                 [&] { return mine.fresh_times(); });
      if (times.finding)
        offend(index, number, "failure", times.finding->reason, times.finding->rule);
      if (times.fresh <= closing_slower * times.usual + pairs_allowance_s) return std::nullopt;
      if (attempt + 1 < pairs_attempts) continue;
      return Finding{Safeguard::fresh_time,
                     fmt::format("the fastest of {} calls on fresh inputs took {:.3g} s, on the "
                                 "inputs of before, by turns with them, {:.3g} s; {} times over",
                                 Runner::fresh_pairs, times.fresh, times.usual, pairs_attempts)};
    }
  }
  const std::vector<double> times = state_of(index).times();
  const double slowest = *std::max_element(times.begin(), times.end());
  // Another program makes a call slow once; fresh inputs would make it so each time.
  for (int attempt = 1; closed.seconds > closing_slower * slowest + closing_allowance_s;
       ++attempt) {
    if (attempt == closing_attempts) {
      return Finding{Safeguard::fresh_time,
                     fmt::format("a call on fresh inputs took {:.3g} s, {} times over; the slowest "
                                 "sample {:.3g} s",
                                 closed.seconds, closing_attempts, slowest)};
    }
    mine.shape().refill(fresh_seed(point.seed, attempt));
    closed = watched(index, number, 1, closed.seconds, [&] { return mine.closing_call(); });
    if (closed.trespass || closed.check.verdict != Check::Verdict::ok) return std::nullopt;
  }
  return std::nullopt;
}

void Worker::close_point(std::size_t index, int number) {
  const Safeguards& rules = sweep_.options.rules;
  Runner::Closed closed =
      watched(index, number, 1, seconds_of(index), [&] { return runner(index).closing_call(); });
  std::optional<Finding> slower;
  if (!closed.trespass && closed.check.verdict == Check::Verdict::ok &&
      rules.has(Safeguard::fresh_time)) {
    slower = slower_on_fresh_inputs(index, number, closed);
  }
  PointState& state = state_of(index);
  if (closed.check.verdict == Check::Verdict::mismatch) {
    offend(index, number, "mismatch",
           "on fresh inputs after the last round: " + closed.check.finding->reason,
           Safeguard::closing_check);
  }
  const std::string stop =
      stop_reason(sweep_.points[index], state, sweep_.options).value_or("rounds");
  if (closed.trespass) {
    finish(index, Status::error, "on fresh inputs after the last round: " + closed.trespass->reason,
           stop, closed.trespass->rule);
  } else if (closed.check.verdict == Check::Verdict::mistrusted) {
    finish(index, Status::mistrusted, closed.check.finding->reason, stop,
           closed.check.finding->rule);
  } else if (slower) {
    finish(index, Status::mistrusted, slower->reason, stop, slower->rule);
  } else if (const auto impossible = faster_than_the_machine(index)) {
    finish(index, Status::error, impossible->reason, stop, impossible->rule);
  } else {
    if (closed.seconds >= closing_counts_s && sweep_.points[index].cache == CacheMode::warm) {
      Event event{.point_id = sweep_.points[index].id,
                  .kind = Event::Kind::sample,
                  .process = process_,
                  .round = number,
                  .time_s = closed.seconds,
                  .clock_mhz = closed.clocks.sm_mhz,
                  .throttled = closed.clocks.throttled};
      event.detail = {{"cache", "mixed"}, {"closing", true}};
      journal_.append(event);
      state.add_sample({process_, number, closed.seconds, "mixed"});
    }
    finish(index, Status::ok, "", stop);
  }
  step_done(closed.seconds);
}

// A rate above 105 % of the FMA peak means that the peak was disturbed, or that the work was not
// done.
std::optional<Finding> Worker::faster_than_the_machine(std::size_t index) {
  const Point& point = sweep_.points[index];
  const Problem& p = point.problem;
  if (!sweep_.options.rules.has(Safeguard::roof)) return std::nullopt;
  const Roof roof = peak_of(p);
  const double rate = static_cast<double>(flops_model(p, point.family())) / seconds_of(index) / 1e9;
  const auto peak = [&] { return roof_value(state_, roof); };
  if (!peak() || rate <= over_the_roof * *peak()) return std::nullopt;
  sample_roof(roof, roof_first_s, 0);
  if (rate <= over_the_roof * *peak()) return std::nullopt;
  return Finding{Safeguard::roof,
                 fmt::format("{:.1f} gflops are more than 105 % of the FMA peak, {:.1f} measured "
                             "again",
                             rate, *peak())};
}

void Worker::phases() {
  std::vector<std::size_t> todo;
  for (std::size_t i = 0; i < sweep_.points.size(); ++i) {
    const PointState& state = state_of(i);
    const bool ok = state.finished() && state.status() == Status::ok;
    // One that ended a worker in its phases goes without them.
    if (ok && state.offences + state.kills == 0 && seconds_of(i) <= phase_limit_s) {
      todo.push_back(i);
    }
  }
  plan_progress(Stage::phases, static_cast<std::int64_t>(todo.size()));
  board_.seconds_left = 0;
  std::vector<PhaseRow> rows;
  for (const std::size_t index : todo) {
    const int calls = seconds_of(index) < 0.01 ? 5 : 1;
    std::map<std::string, std::vector<double>> times;
    std::vector<std::string> order;
    for (int call = 0; call <= calls; ++call) {
      const auto phases = watched(index, std::nullopt, 1, seconds_of(index),
                                  [&] { return runner(index).phases(); });
      if (phases.empty()) break;
      for (const auto& [phase, seconds] : phases) {
        if (call == 0) {
          order.push_back(phase);  // the first call warms
        } else {
          times[phase].push_back(seconds);
        }
      }
    }
    for (const std::string& phase : order) {
      rows.push_back({sweep_.points[index].id, phase, times[phase]});
    }
    step_done(0);
  }
  write_phases(sweep_, rows);
}

}  // namespace attn
