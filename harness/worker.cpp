// SPDX-License-Identifier: MIT
#include "harness/worker.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>

#include "harness/csv.hpp"
#include "harness/error.hpp"
#include "harness/layer.hpp"
#include "harness/machine.hpp"
#include "harness/results.hpp"
#include "harness/runner.hpp"
#include "harness/work.hpp"

namespace attn {
namespace {

constexpr double roof_first_s = 0.1;    // a roof sample at the start
constexpr double roof_round_s = 0.015;  // and one in every round
constexpr double closing_counts_s = 1;  // a closing call as long as this is a sample
constexpr double closing_slower = 3;  // a closing call this much slower than any sample: mistrusted
// For cold caches and threads that sleep: this call alone is not warmed.
constexpr double closing_allowance_s = 0.005;
constexpr double over_the_roof = 1.05;  // of the FMA peak: faster is an error
constexpr int closing_attempts = 3;     // if it is so every time
constexpr double phase_limit_s = 1;     // longer calls are not repeated for their phases
constexpr std::uint64_t fresh_seed = 0x66726573682d696e;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Worker {
 public:
  Worker(const Sweep& sweep, RunState state, Journal& journal, Board& board, int process)
      : sweep_(sweep),
        state_(std::move(state)),
        journal_(journal),
        board_(board),
        process_(process),
        flusher_(2 * static_cast<std::size_t>(std::max<std::int64_t>(sweep.machine.llc_total_bytes,
                                                                     std::int64_t{32} << 20))) {
    for (const Point& point : sweep.points) states_.push_back(&state_.points[point.id]);
  }

  void work();

 private:
  void measure_roofs(double seconds, std::optional<int> round);
  void sample_roof(const Roof& roof, double seconds, int round);
  std::optional<std::string> faster_than_the_machine(std::size_t index);
  void warm_libraries();
  void map_arena();
  void first_pass();
  void rounds();
  void round(int number, const std::vector<std::size_t>& active);
  void closing();
  void phases();

  std::optional<std::pair<Status, std::string>> answer_without_measuring(std::size_t index);
  [[nodiscard]] std::int64_t added_bytes(const Point& point) const;
  void admit(const Point& point);
  void verify_point(std::size_t index, std::optional<int> round);
  void sample_point(benchmark::State& bench, std::size_t index, int number);
  void close_point(std::size_t index, int number);
  void finish(std::size_t index, Status status, const std::string& reason, const std::string& stop);
  [[noreturn]] void offend(std::size_t index, std::optional<int> round, const std::string& kind,
                           const std::string& reason);
  template <class Call>
  auto watched(std::size_t index, std::optional<int> round, double calls, const Call& call);
  void plan_progress(Stage stage, std::int64_t steps);
  void step_done(double seconds_left);

  PointState& state_of(std::size_t index) { return *states_[index]; }
  Runner& runner(std::size_t index);
  [[nodiscard]] double seconds_of(std::size_t index) {
    return state_of(index).call_seconds().value_or(0);
  }
  [[nodiscard]] double seconds_ahead();
  [[nodiscard]] std::vector<std::size_t> unfinished();

  const Sweep& sweep_;
  RunState state_;
  std::vector<PointState*>
      states_;  // by index of the point: a look-up by id is slow once the caches are cold
  Journal& journal_;
  Board& board_;
  const int process_;
  CacheFlusher flusher_;
  std::map<std::string, std::unique_ptr<Shape>> shapes_;
  std::map<std::size_t, std::unique_ptr<Runner>> runners_;
  std::optional<Arena> arena_;
  std::int64_t admitted_bytes_ = 0;  // held at once by all points admitted so far
  std::set<std::string> admitted_shapes_;
  // From one sample to its report, inside Google Benchmark.
  std::string sampled_cache_;
  std::optional<std::string> guard_finding_;

  friend class SampleReporter;
};

// Google Benchmark hands every sample over here; the journal is the only record.
class SampleReporter : public benchmark::BenchmarkReporter {
 public:
  SampleReporter(Worker& worker, int number, const std::vector<std::size_t>& order)
      : worker_(worker), number_(number), order_(order) {}

  bool ReportContext(const Context& /*context*/) override { return true; }

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const std::size_t index = order_[static_cast<std::size_t>(position_)];
      if (run.error_occurred) {  // decided by its check, nothing was timed
        ++position_;
        continue;
      }
      if (worker_.guard_finding_)
        worker_.offend(index, number_, "mismatch", *worker_.guard_finding_);
      Event event{.point_id = worker_.sweep_.points[index].id,
                  .kind = Event::Kind::sample,
                  .process = worker_.process_,
                  .round = number_,
                  .position = position_,
                  .time_s = run.real_accumulated_time};
      event.detail = {{"cache", worker_.sampled_cache_}};
      worker_.journal_.append(event);
      worker_.state_of(index).add_sample(
          {worker_.process_, number_, run.real_accumulated_time, worker_.sampled_cache_});
      worker_.step_done(worker_.seconds_of(index));
      ++position_;
    }
  }

 private:
  Worker& worker_;
  int number_;
  int position_ = 0;
  const std::vector<std::size_t>& order_;
};

void Worker::work() {
  const auto left = unfinished();
  map_arena();
  warm_libraries();
  if (state_.roof_samples.empty()) measure_roofs(roof_first_s, std::nullopt);
  if (std::any_of(left.begin(), left.end(),
                  [&](std::size_t i) { return state_of(i).checks.empty(); })) {
    first_pass();
  }
  rounds();
  // Another worker takes the next share when rounds of fitted curves remain.
  const auto still = unfinished();
  if (std::any_of(still.begin(), still.end(), [&](std::size_t i) {
        return !stop_reason(sweep_.points[i], state_of(i), sweep_.options);
      })) {
    return;
  }
  closing();
  if (sweep_.options.phases) phases();
}

std::vector<std::size_t> Worker::unfinished() {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < sweep_.points.size(); ++i) {
    if (!state_of(i).finished()) indices.push_back(i);
  }
  return indices;
}

void Worker::plan_progress(Stage stage, std::int64_t steps) {
  board_.stage = static_cast<int>(stage);
  board_.steps_done = 0;
  board_.steps_planned = steps;
}

void Worker::step_done(double seconds_left) {
  ++board_.steps_done;
  board_.seconds_left = std::max(0.0, board_.seconds_left - seconds_left);
}

// Runs `call` with the point and its deadline on the board, and turns exceptions into offences.
template <class Call>
auto Worker::watched(std::size_t index, std::optional<int> round, double calls, const Call& call) {
  double expected = seconds_of(index);
  if (expected == 0) {
    const auto prediction = predict(sweep_.points, index, state_);
    expected = prediction ? prediction->seconds : 0;
  }
  const double limit = std::min(std::max(sweep_.options.timeout_s, 5 * expected) * calls, 1e9);
  board_.deadline_ns = now_ns() + static_cast<std::int64_t>(limit * 1e9);
  board_.round = round.value_or(-1);
  board_.point = static_cast<std::int64_t>(index);
  try {
    auto result = call();
    board_.deadline_ns = 0;  // the point stays on the board: a late crash is its, too
    return result;
  } catch (const CommandError&) {
    throw;
  } catch (const std::bad_alloc&) {
    offend(index, round, "oom", "an allocation failed");
  } catch (const std::exception& failure) {
    offend(index, round, "failure", failure.what());
  }
}

void Worker::offend(std::size_t index, std::optional<int> round, const std::string& kind,
                    const std::string& reason) {
  record_offence(journal_, state_, sweep_.points[index], process_, round, kind, reason);
  journal_.sync();
  // Not exit(): a thread that is still writing must not be waited for.
  std::_Exit(static_cast<int>(WorkerExit::offence));
}

void Worker::finish(std::size_t index, Status status, const std::string& reason,
                    const std::string& stop) {
  Event event{
      .point_id = sweep_.points[index].id, .kind = Event::Kind::finish, .process = process_};
  event.detail = {{"status", name_of(status)}, {"reason", reason}, {"stop", stop}};
  journal_.append(event);
  state_of(index).finish = event;
}

void Worker::measure_roofs(double seconds, std::optional<int> round) {
  board_.stage = static_cast<int>(round ? Stage::rounds : Stage::roofs);
  board_.point = -1;  // what happens now is no backend's doing
  for (const Roof& roof : roofs_of(sweep_)) sample_roof(roof, seconds, round.value_or(0));
}

void Worker::sample_roof(const Roof& roof, double seconds, int round) {
  Event event{.point_id = roof_id(roof),
              .kind = Event::Kind::sample,
              .process = process_,
              .round = round,
              .time_s = seconds};
  event.detail = {{"rate", measure_roof(roof, seconds)}, {"unit", unit(roof.kind)}};
  journal_.append(event);
  state_.roof_samples[event.point_id].push_back(event.detail["rate"].get<double>());
}

// BLAS takes its buffers and OpenMP its threads before the first verifying call, whose memory is
// measured.
void Worker::warm_libraries() {
  for (const Roof& roof : roofs_of(sweep_)) {
    if (roof.kind == Roof::Kind::gemm) warm_gemm(roof.threads);
  }
}

// The arena is mapped once, before any state, at the largest size that may be asked for.
void Worker::map_arena() {
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < sweep_.points.size(); ++i) {
    const Point& point = sweep_.points[i];
    if (!point.entry->built() || point.problem.memory == Memory::device) continue;
    if (state_of(i).finished() && state_of(i).status() != Status::ok) continue;
    const std::int64_t scratch = cost(point.entry->backend, point.problem).scratch_bytes;
    if (scratch <= sweep_.options.mem_limit_bytes) largest = std::max(largest, scratch);
  }
  arena_.emplace(static_cast<std::size_t>(largest) + 4096);
  admitted_bytes_ = roof_buffer_bytes() + largest;
}

std::optional<std::pair<Status, std::string>> Worker::answer_without_measuring(std::size_t index) {
  const Point& point = sweep_.points[index];
  if (!point.entry->built()) return {{Status::unavailable, std::string(point.entry->missing)}};
  if (const auto refusal = refuses(point.entry->backend, point.problem)) {
    const bool unavailable = refusal->kind == Refusal::Kind::unavailable;
    return {{unavailable ? Status::unavailable : Status::unsupported, refusal->sentence}};
  }
  if (point.problem.memory == Memory::device && point.cache == CacheMode::cold) {
    return {{Status::unsupported, "a device is timed warm only, so far"}};
  }
  const std::int64_t limit = sweep_.options.mem_limit_bytes;
  const std::int64_t scratch = cost(point.entry->backend, point.problem).scratch_bytes;
  const std::int64_t more = added_bytes(point);
  if (scratch > limit || admitted_bytes_ + more > limit) {
    return {{Status::oom_predicted,
             fmt::format("needs {} bytes with what is there already, --mem-limit is {}",
                         admitted_bytes_ + more + (scratch > limit ? scratch : 0), limit)}};
  }
  const auto prediction = predict(sweep_.points, index, state_);
  if (prediction && prediction->seconds > point.cutoff_s) {
    const Problem& from = sweep_.points[prediction->from].problem;
    return {
        {Status::cutoff,
         fmt::format("a call would take {:.1f} s, scaled by flops from n = {}; the cut-off is {} s",
                     prediction->seconds, std::max(from.n_q, from.n_kv), point.cutoff_s)}};
  }
  return std::nullopt;
}

// What the point adds to the memory that the worker holds: a shape's inputs count once.
std::int64_t Worker::added_bytes(const Point& point) const {
  const bool known = admitted_shapes_.contains(shape_key(point));
  return own_bytes(point) + (known ? 0 : shape_bytes(point));
}

void Worker::admit(const Point& point) {
  admitted_bytes_ += added_bytes(point);
  admitted_shapes_.insert(shape_key(point));
}

Runner& Worker::runner(std::size_t index) {
  std::unique_ptr<Runner>& mine = runners_[index];
  if (!mine) {
    const Point& point = sweep_.points[index];
    std::unique_ptr<Shape>& shape = shapes_[shape_key(point)];
    if (!shape)
      shape = std::make_unique<Shape>(point.problem, point.family(), point.seed, point.dist);
    mine = std::make_unique<Runner>(point, *shape, *arena_, flusher_);
  }
  return *mine;
}

void Worker::verify_point(std::size_t index, std::optional<int> round) {
  const Point& point = sweep_.points[index];
  // The reference is the harness's own work: it has no deadline, and what it cannot check is not the
  // backend's offence.
  board_.point = static_cast<std::int64_t>(index);
  board_.round = round.value_or(-1);
  try {
    runner(index).shape().truth();
  } catch (const std::bad_alloc&) {
    finish(index, Status::oom, "there was no memory for the inputs and the reference", "");
    return;
  } catch (const std::exception& reason) {
    finish(index, Status::unsupported, fmt::format("cannot be checked: {}", reason.what()), "");
    return;
  }
  const CheckOutcome outcome = watched(index, round, 1, [&] { return runner(index).check(); });
  Event event{.point_id = point.id,
              .kind = Event::Kind::check,
              .process = process_,
              .round = round,
              .time_s = outcome.seconds};
  event.detail = {
      {"status", name_of(outcome.status)},          {"mode", outcome.check.mode},
      {"rows_checked", outcome.check.rows_checked}, {"err_max_abs", outcome.check.err_max_abs},
      {"err_scaled", outcome.check.err_scaled},     {"err_bound", outcome.check.err_bound}};
  if (!outcome.reason.empty()) event.detail["reason"] = outcome.reason;
  if (outcome.peak_bytes >= 0) event.detail["peak_bytes"] = outcome.peak_bytes;
  if (const auto prediction = predict(sweep_.points, index, state_)) {
    event.detail["predicted_s"] = prediction->seconds;
  }
  if (point.entry->backend.resolved_impl != nullptr) {
    event.detail["resolved_impl"] = point.entry->backend.resolved_impl(point.problem);
  }
  if (point.problem.memory == Memory::device) event.detail["device_name"] = device_name();
  journal_.append(event);
  state_of(index).checks.insert_or_assign(process_, event);
  switch (outcome.status) {
    case Status::ok:
      return;
    case Status::mismatch:
      offend(index, round, "mismatch", outcome.reason);
    default:
      finish(index, outcome.status, outcome.reason, "");
  }
}

void Worker::first_pass() {
  std::vector<std::size_t> todo = unfinished();
  // Upwards through n, so that every prediction rests on a smaller n; shapes together.
  std::stable_sort(todo.begin(), todo.end(), [&](std::size_t a, std::size_t b) {
    const auto size = [&](std::size_t i) {
      const Problem& p = sweep_.points[i].problem;
      return std::max(p.n_q, p.n_kv);
    };
    if (size(a) != size(b)) return size(a) < size(b);
    return shape_key(sweep_.points[a]) < shape_key(sweep_.points[b]);
  });
  plan_progress(Stage::first_pass, static_cast<std::int64_t>(todo.size()));
  for (const std::size_t index : todo) {
    if (!state_of(index).checks.empty()) {
      admit(sweep_.points[index]);
    } else if (const auto answer = answer_without_measuring(index)) {
      finish(index, answer->first, answer->second, "");
    } else {
      admit(sweep_.points[index]);
      verify_point(index, std::nullopt);
    }
    step_done(0);
  }
  journal_.sync();
  write_results(sweep_, state_);
}

// Seconds of calls still to come, closing calls included. A point that stops on precision is taken
// to need the six samples of an interval.
double Worker::seconds_ahead() {
  double seconds = 0;
  for (const std::size_t i : unfinished()) {
    const int wanted = sweep_.points[i].fitted ? sweep_.options.rounds : 6;
    const int missing = std::max(0, wanted - static_cast<int>(state_of(i).samples.size()));
    seconds += seconds_of(i) * (missing + 1);
  }
  return seconds;
}

void Worker::rounds() {
  const MeasureOptions& options = sweep_.options;
  std::optional<int> share_end;
  while (true) {
    std::vector<std::size_t> open;
    int number = std::numeric_limits<int>::max();
    for (const std::size_t i : unfinished()) {
      if (stop_reason(sweep_.points[i], state_of(i), options)) continue;
      open.push_back(i);
      number = std::min(number, next_round(state_of(i)));
    }
    if (open.empty()) return;
    if (!share_end) {
      const int share = std::max(1, options.rounds / options.processes);
      share_end = (number / share + 1) * share;
    }
    if (number >= *share_end && *share_end < options.rounds) return;
    std::vector<std::size_t> active;
    for (const std::size_t i : open) {
      if (next_round(state_of(i)) == number) active.push_back(i);
    }
    plan_progress(Stage::rounds, static_cast<std::int64_t>(active.size()));
    board_.seconds_left = seconds_ahead();
    round(number, active);
    measure_roofs(roof_round_s, number);
    journal_.sync();
    write_results(sweep_, state_);
  }
}

void Worker::round(int number, const std::vector<std::size_t>& active) {
  std::vector<std::size_t> order = active;
  if (sweep_.options.order == Order::random) {
    // Fisher-Yates with counter-based bits: the order of a round depends on the seed alone.
    for (std::size_t i = order.size(); i > 1; --i) {
      const auto bits = random_bits(sweep_.seed, hash_text(fmt::format("order {} {}", number, i)));
      std::swap(order[i - 1], order[bits % i]);
    }
  }
  board_.round = number;
  benchmark::ClearRegisteredBenchmarks();
  for (const std::size_t index : order) {
    benchmark::RegisterBenchmark(
        sweep_.points[index].label().c_str(),
        [this, index, number](benchmark::State& bench) { sample_point(bench, index, number); })
        ->UseManualTime()
        ->Iterations(1);
  }
  SampleReporter reporter(*this, number, order);
  const std::int64_t start = now_ns();
  benchmark::RunSpecifiedBenchmarks(&reporter, ".");
  board_.seconds_in_rounds =
      board_.seconds_in_rounds + static_cast<double>(now_ns() - start) * 1e-9;
}

void Worker::sample_point(benchmark::State& bench, std::size_t index, int number) {
  guard_finding_.reset();
  if (!state_of(index).checks.contains(process_)) {
    verify_point(index, number);
    // Finished here means mistrusted or in error: the row is decided and nothing is timed.
    if (state_of(index).finished()) {
      bench.SkipWithError("decided by its check");
      return;
    }
  }
  const std::uint64_t lot = random_bits(
      sweep_.seed, hash_text(sweep_.points[index].id) + static_cast<std::uint64_t>(number));
  for (auto unused : bench) {
    static_cast<void>(unused);
    const int calls = runner(index).warm_calls(lot, seconds_of(index)) + 1;
    const Runner::Timed timed =
        watched(index, number, calls, [&] { return runner(index).sample(lot, seconds_of(index)); });
    bench.SetIterationTime(timed.seconds);
    sampled_cache_ = timed.cache;
    ++board_.samples;
    board_.seconds_in_calls = board_.seconds_in_calls + timed.seconds + timed.warm_seconds;
  }
  guard_finding_ = runner(index).guard_verdict();
}

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
    runner(members.front()).shape().refill(sweep_.points[members.front()].seed ^ fresh_seed);
    for (const std::size_t index : members) {
      if (!state_of(index).finished()) close_point(index, number);
    }
  }
  journal_.sync();
  write_results(sweep_, state_);
}

void Worker::close_point(std::size_t index, int number) {
  const std::vector<double> times = state_of(index).times();
  const double slowest = *std::max_element(times.begin(), times.end());
  Runner::Closed closed{};
  const auto closing_is_slow = [&] {
    return closed.seconds > closing_slower * slowest + closing_allowance_s;
  };
  for (int attempt = 0; attempt < closing_attempts; ++attempt) {
    if (attempt > 0) runner(index).shape().refill(fresh_seed + static_cast<std::uint64_t>(attempt));
    closed = watched(index, number, 1, [&] { return runner(index).closing_call(); });
    // Another program makes a short call slow once; fresh inputs would make it so each time.
    if (closed.check.verdict != Check::Verdict::ok || !closing_is_slow()) break;
  }
  PointState& state = state_of(index);
  if (closed.check.verdict == Check::Verdict::mismatch) {
    offend(index, number, "mismatch",
           "on fresh inputs after the last round: " + closed.check.reason);
  }
  const std::string stop =
      stop_reason(sweep_.points[index], state, sweep_.options).value_or("rounds");
  if (closed.check.verdict == Check::Verdict::mistrusted) {
    finish(index, Status::mistrusted, closed.check.reason, stop);
  } else if (closing_is_slow()) {
    finish(index, Status::mistrusted,
           fmt::format(
               "a call on fresh inputs took {:.3g} s, {} times over; the slowest sample {:.3g} s",
               closed.seconds, closing_attempts, slowest),
           stop);
  } else if (const auto impossible = faster_than_the_machine(index)) {
    finish(index, Status::error, *impossible, stop);
  } else {
    if (closed.seconds >= closing_counts_s && sweep_.points[index].cache == CacheMode::warm) {
      Event event{.point_id = sweep_.points[index].id,
                  .kind = Event::Kind::sample,
                  .process = process_,
                  .round = number,
                  .time_s = closed.seconds};
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
std::optional<std::string> Worker::faster_than_the_machine(std::size_t index) {
  const Point& point = sweep_.points[index];
  const Problem& p = point.problem;
  if (p.memory == Memory::device) return std::nullopt;
  const Roof roof{Roof::Kind::fma, p.dtype, p.threads};
  const double rate = static_cast<double>(flops_model(p, point.family())) / seconds_of(index) / 1e9;
  const auto peak = [&] { return roof_value(state_, roof.kind, roof.dtype, roof.threads); };
  if (!peak() || rate <= over_the_roof * *peak()) return std::nullopt;
  sample_roof(roof, roof_first_s, 0);
  if (rate <= over_the_roof * *peak()) return std::nullopt;
  return fmt::format("{:.1f} gflops are more than 105 % of the FMA peak, {:.1f} measured again",
                     rate, *peak());
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
      const auto phases = watched(index, std::nullopt, 1, [&] { return runner(index).phases(); });
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

}  // namespace

std::string_view stage_name(Stage stage) {
  switch (stage) {
    case Stage::roofs:
      return "roofs";
    case Stage::first_pass:
      return "first pass";
    case Stage::rounds:
      return "rounds";
    case Stage::closing:
      return "closing calls";
    case Stage::phases:
      return "phases";
  }
  return "?";
}

WorkerExit work(const Sweep& sweep, RunState state, Journal& journal, Board& board, int process) {
  const auto fail = [&](std::string_view sentence) {
    sentence.copy(board.failure.data(), board.failure.size() - 1);
    return WorkerExit::failed;
  };
  try {
    Worker(sweep, std::move(state), journal, board, process).work();
    return WorkerExit::share_done;
  } catch (const CommandError& error) {
    return fail(error.what());
  } catch (const std::exception& error) {
    return fail(fmt::format("the worker failed outside any backend: {}", error.what()));
  }
}

}  // namespace attn
