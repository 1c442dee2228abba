// SPDX-License-Identifier: MIT
#include "harness/compare.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "harness/run.hpp"
#include "harness/stats.hpp"
#include "harness/supervisor.hpp"

namespace attn {

Comparison compare_rounds(const std::vector<Sample>& a, const std::vector<Sample>& b,
                          double threshold) {
  std::map<int, double> times_b;
  for (const Sample& sample : b) times_b[sample.round] = sample.time_s;
  std::vector<double> logs;
  std::vector<double> seconds_a;
  std::vector<double> seconds_b;
  for (const Sample& sample : a) {
    const auto partner = times_b.find(sample.round);
    if (partner == times_b.end()) continue;
    logs.push_back(std::log(sample.time_s / partner->second));
    seconds_a.push_back(sample.time_s);
    seconds_b.push_back(partner->second);
  }
  Comparison result;
  result.rounds = static_cast<int>(logs.size());
  result.verdict = "undecided";
  if (logs.empty()) return result;
  result.seconds_a = median(seconds_a);
  result.seconds_b = median(seconds_b);
  result.ratio = std::exp(median(logs));
  const auto interval = median_interval(logs);
  if (!interval) return result;
  result.ratio_lo = std::exp(interval->first);
  result.ratio_hi = std::exp(interval->second);
  if (result.ratio_hi < 1 && result.ratio < 1 / (1 + threshold)) result.verdict = "faster";
  if (result.ratio_lo > 1 && result.ratio > 1 + threshold) result.verdict = "slower";
  return result;
}

std::vector<Comparison> compare_points(const Sweep& sweep, const RunState& state,
                                       double threshold) {
  std::vector<Comparison> all;
  const Entry* first = sweep.points.front().entry;
  // Without the backend's name and threads the label is the problem.
  const auto problem = [](const Point& point) {
    const std::string label = point.label().substr(point.entry->name.size() + 1);
    return label.substr(0, label.rfind("/threads:"));
  };
  const auto ok_samples = [&](const Point& point) -> const std::vector<Sample>* {
    const auto found = state.points.find(point.id);
    if (found == state.points.end() || !found->second.finished()) return nullptr;
    return found->second.status() == Status::ok ? &found->second.samples : nullptr;
  };
  for (const Point& a : sweep.points) {
    if (a.entry != first) continue;
    for (const Point& b : sweep.points) {
      if (b.entry == first || problem(a) != problem(b)) continue;
      const bool both_threaded = a.entry->backend.threaded && b.entry->backend.threaded;
      if (both_threaded && a.problem.threads != b.problem.threads) continue;
      const auto* samples_a = ok_samples(a);
      const auto* samples_b = ok_samples(b);
      if (samples_a == nullptr || samples_b == nullptr) continue;
      all.push_back(compare_rounds(*samples_a, *samples_b, threshold));
      all.back().label = problem(a);
    }
  }
  return all;
}

Exit command_compare(const Words& args) {
  RunRequest request;
  std::string a;
  std::string b;
  std::string threshold_text = "2%";
  std::string fail_on;
  CLI::App app{
      "Times two backends on the same problems in the same rounds and pairs them:\n"
      "the ratio is time of A over time of B, its interval comes from the rounds' ratios.",
      "attnbench compare"};
  app.add_option("A", a, "backend")->required();
  app.add_option("B", b, "backend it is held against")->required();
  add_run_options(app, request);
  app.add_option("--threshold", threshold_text, "differences below this are undecided (2%)")
      ->type_name("SHARE");
  app.add_option("--fail-on", fail_on, "slower: exit with 3 when A is slower anywhere")
      ->check(CLI::IsMember({"slower"}))
      ->type_name("WORD");
  parse(app, args);
  if (!request.plan.selection.only.empty() || !request.plan.selection.skip.empty()) {
    usage_error("compare takes its two backends by name; leave out --only and --skip");
  }
  const int processes = request.measure.processes;
  if (!request.rounds) request.rounds = (20 + processes - 1) / processes * processes;
  if (request.resume || request.dry_run)
    usage_error("compare takes neither --resume nor --dry-run");
  for (const std::string& name : {a, b}) entry_called("compare", name);
  if (a == b) usage_error(fmt::format("compare: A and B are both {}; name two backends", a));
  const double threshold = parse_share("--threshold", threshold_text);
  if (request.plan.axes.empty() && request.plan.presets.empty())
    request.plan.axes["n"] = "128,512,2048";
  const bool keep = request.out.has_value();
  if (!keep) request.out = fmt::format("out/compare-{}-{}", compact_utc(), getpid());

  // A first: compare_points takes the first point's backend for A.
  request.plan.selection.only = {a};
  Sweep sweep = open_run(request, args);
  request.plan.selection.only = {b};
  std::vector<Point> others = make_plan(request.plan);
  sweep.points.insert(sweep.points.end(), others.begin(), others.end());
  for (Point& point : sweep.points) point.fitted = true;  // every round, so that rounds pair up
  sweep.options.phases = false;
  make_folder(sweep.dir);
  const SweepResult result = run_sweep(sweep, request.resume);

  const auto comparisons = compare_points(sweep, result.state, threshold);
  fmt::print("{:<52} {:>11} {:>11} {:>9} {:>18}  {}\n", "problem", "A, s", "B, s", "A/B",
             "95 % interval", "A is");
  bool slower = false;
  for (const Comparison& c : comparisons) {
    fmt::print("{:<52} {:>11.4g} {:>11.4g} {:>9.3f} {:>18}  {}\n", c.label, c.seconds_a,
               c.seconds_b, c.ratio,
               c.ratio_lo > 0 ? fmt::format("[{:.3f}, {:.3f}]", c.ratio_lo, c.ratio_hi) : "none",
               c.verdict);
    slower = slower || c.verdict == "slower";
  }
  const auto threads_of = [&](const std::string& name) {
    std::set<int> counts;
    for (const Point& point : sweep.points) {
      if (point.entry->name == name) counts.insert(point.problem.threads);
    }
    return fmt::format("{} on {} thread(s)", name, fmt::join(counts, ", "));
  };
  fmt::print("A = {}, B = {}; {} rounds, threshold {:.1f} %\n", threads_of(a), threads_of(b),
             sweep.options.rounds, 100 * threshold);
  if (comparisons.empty() || result.code != Exit::good) print_summary(sweep, result.state);
  if (!keep && result.code == Exit::good && !comparisons.empty()) {
    std::filesystem::remove_all(sweep.dir);
  }
  std::set<Exit> happened = {result.code};
  if (slower && fail_on == "slower") happened.insert(Exit::regression);
  if (comparisons.empty()) happened.insert(Exit::nothing_measured);
  return exit_of(happened);
}

}  // namespace attn
