// SPDX-License-Identifier: MIT
// What the harness itself costs, shown and not asserted: run it on a quiet machine.
//   inside   what the clock reports for a call that does nothing (batch 0)
//   outside  a round's time less the time in backends, warm calls included, over its samples:
//   Google
//            Benchmark, guard, journal and thread switching. Once a round, and not in it:
//            results.csv and the samples of the roofs.
#include <fmt/format.h>

#include <filesystem>

#include "harness/results.hpp"
#include "harness/stats.hpp"
#include "harness/supervisor.hpp"

namespace attn {
namespace {

Sweep sweep_over(const std::string& only, const Axes& axes, int rounds) {
  Sweep sweep;
  sweep.machine = read_machine();
  sweep.points =
      make_plan({.selection = {.only = {only}}, .axes = axes, .all_threads = 1, .most_threads = 1});
  for (Point& point : sweep.points) point.fitted = true;
  sweep.options.rounds = rounds;
  sweep.options.phases = false;
  sweep.options.mem_limit_bytes = default_mem_limit(0.5);
  sweep.dir = (std::filesystem::temp_directory_path() / "attnbench_harness_cost").string();
  sweep.run_id = "cost";
  sweep.started_utc = utc_now();
  sweep.quiet = true;
  std::filesystem::remove_all(sweep.dir);
  std::filesystem::create_directories(sweep.dir);
  return sweep;
}

void show(const std::string& title, const std::string& only, const Axes& axes, double limit_us) {
  const Sweep sweep = sweep_over(only, axes, 100);
  const SweepResult result = run_sweep(sweep, false);
  const double outside = (result.cost.seconds_in_rounds - result.cost.seconds_in_calls) /
                         static_cast<double>(result.cost.samples);
  fmt::print(
      "{:<44} {:8.1f} us a sample outside the clock ({} samples in rounds of {}; limit {} us)\n",
      title, 1e6 * outside, result.cost.samples, sweep.points.size(), limit_us);
  std::filesystem::remove_all(sweep.dir);
}

void show_inside() {
  const Sweep sweep =
      sweep_over("cpu.naive", {{"n", "100:51200"}, {"batch", "0"}, {"heads", "1"}}, 50);
  const SweepResult result = run_sweep(sweep, false);
  std::vector<double> times;
  for (const auto& [id, point] : result.state.points) {
    for (const Sample& sample : point.samples) times.push_back(sample.time_s);
  }
  fmt::print("{:<44} {:8.3f} us inside the clock, median; 95th percentile {:.3f} (limit 0.1 us)\n",
             "empty call, core", 1e6 * median(times), 1e6 * quantile(times, 0.95));
  std::filesystem::remove_all(sweep.dir);
}

}  // namespace
}  // namespace attn

int main() {
  const std::string ten = "60,70,80,90,100,110,120,130,140,150";
  attn::show_inside();
  attn::show("core: cpu.online, one head", "cpu.online", {{"n", ten}, {"heads", "1"}}, 20);
  attn::show("core: blas.three_step, one head", "blas.three_step", {{"n", ten}, {"heads", "1"}},
             20);
  attn::show("layer: blas.three_step, d_model 256", "blas.three_step",
             {{"n", ten}, {"scope", "layer"}}, 200);
  attn::show("layer: blas.lstm, d_model 256", "blas.lstm",
             {{"n", ten}, {"scope", "layer"}, {"d-model", "256"}}, 200);
  attn::show("core: cpu.online, rounds of one point", "cpu.online", {{"n", "100"}, {"heads", "1"}},
             200);
  return 0;
}
