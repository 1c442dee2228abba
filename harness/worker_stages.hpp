// SPDX-License-Identifier: MIT
// The worker's own class: its stages lie in worker.cpp (first pass), rounds.cpp and closing.cpp.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/error.hpp"
#include "harness/runner.hpp"
#include "harness/worker.hpp"

namespace benchmark {
class State;
}

namespace attn {

inline constexpr double roof_first_s = 0.1;    // a roof sample at the start
inline constexpr double roof_round_s = 0.015;  // and one in every round

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
  double measure(const Roof& roof, double seconds);  // 0 where there is none
  std::optional<Finding> faster_than_the_machine(std::size_t index);
  std::optional<Finding> slower_on_fresh_inputs(std::size_t index, int number,
                                                Runner::Closed& closed);
  void warm_libraries();
  void map_arena();
  void first_pass();
  void rounds();
  void round(int number, const std::vector<std::size_t>& active);
  void closing();
  void phases();

  std::optional<std::pair<Status, std::string>> answer_without_measuring(std::size_t index);
  [[nodiscard]] std::int64_t added_bytes(const Point& point) const;
  void look_at_device();
  void admit(const Point& point);
  void verify_point(std::size_t index, std::optional<int> round);
  void sample_point(benchmark::State& bench, std::size_t index, int number);
  void close_point(std::size_t index, int number);
  void finish(std::size_t index, Status status, const std::string& reason, const std::string& stop,
              std::optional<Safeguard> rule = std::nullopt);
  [[noreturn]] void offend(std::size_t index, std::optional<int> round, const std::string& kind,
                           const std::string& reason, std::optional<Safeguard> rule = std::nullopt);
  // Runs `call`, which makes `calls` calls of `expected_s` each, with the point and its deadline on
  // the board, and turns exceptions into offences.
  template <class Call>
  auto watched(std::size_t index, std::optional<int> round, double calls, double expected_s,
               const Call& call);
  [[nodiscard]] double expected_seconds(std::size_t index);
  void plan_progress(Stage stage, std::int64_t steps);
  void step_done(double seconds_left);

  PointState& state_of(std::size_t index) { return *states_[index]; }
  Shape& shape(std::size_t index);
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
  // Of the device: what may be used, what all points admitted so far hold, their largest scratch.
  std::int64_t device_limit_bytes_ = 0;
  std::int64_t device_bytes_ = 0;
  std::int64_t device_scratch_bytes_ = 0;
  // From one sample to its report, inside Google Benchmark.
  std::string sampled_cache_;
  DeviceClocks sampled_clocks_;
  std::optional<Finding> guard_finding_;
  double seconds_before_ = 0;  // of a call, as known before the sample

  friend class SampleReporter;
};

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

template <class Call>
auto Worker::watched(std::size_t index, std::optional<int> round, double calls, double expected_s,
                     const Call& call) {
  const double limit = std::min(std::max(sweep_.options.timeout_s, 5 * expected_s) * calls, 1e9);
  board_.deadline_ns = now_ns() + static_cast<std::int64_t>(limit * 1e9);
  board_.round = round.value_or(-1);
  board_.point = static_cast<std::int64_t>(index);
  try {
    auto result = call();
    board_.deadline_ns = 0;  // the point stays on the board: a late crash is its, too
    return result;
  } catch (const CommandError&) {
    throw;
  } catch (const DeviceOutOfMemory& failure) {
    offend(index, round, "oom", failure.what());
  } catch (const std::bad_alloc&) {
    offend(index, round, "oom", "an allocation failed");
  } catch (const std::exception& failure) {
    offend(index, round, "failure", failure.what());
  }
}

}  // namespace attn
