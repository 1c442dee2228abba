// SPDX-License-Identifier: MIT
// The worker's rounds: one sample of every point that is still open, each inside Google Benchmark.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "harness/results.hpp"
#include "harness/worker_stages.hpp"

namespace attn {

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
      if (const auto& wrong = worker_.guard_finding_) {
        worker_.offend(index, number_, "mismatch", wrong->reason, wrong->rule);
      }
      Event event{.point_id = worker_.sweep_.points[index].id,
                  .kind = Event::Kind::sample,
                  .process = worker_.process_,
                  .round = number_,
                  .position = position_,
                  .time_s = run.real_accumulated_time,
                  .clock_mhz = worker_.sampled_clocks_.sm_mhz,
                  .throttled = worker_.sampled_clocks_.throttled};
      event.detail["cache"] = worker_.sampled_cache_;
      worker_.journal_.append(event);
      worker_.state_of(index).add_sample(
          {worker_.process_, number_, run.real_accumulated_time, worker_.sampled_cache_});
      worker_.step_done(worker_.seconds_before_);
      ++position_;
    }
  }

 private:
  Worker& worker_;
  int number_;
  int position_ = 0;
  const std::vector<std::size_t>& order_;
};

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
  const double seconds = seconds_before_ = seconds_of(index);
  Runner& mine = runner(index);
  for (auto unused : bench) {
    static_cast<void>(unused);
    const int calls = mine.warm_calls(lot, seconds) + 1;
    const Runner::Timed timed =
        watched(index, number, calls, seconds, [&] { return mine.sample(lot, seconds); });
    bench.SetIterationTime(timed.seconds);
    sampled_cache_ = timed.cache;
    sampled_clocks_ = timed.clocks;
    ++board_.samples;
    board_.seconds_in_calls = board_.seconds_in_calls + timed.seconds + timed.warm_seconds;
  }
  guard_finding_ = mine.guard_verdict();
}

}  // namespace attn
