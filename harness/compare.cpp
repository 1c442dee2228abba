// SPDX-License-Identifier: MIT
#include "harness/compare.hpp"

#include <cmath>
#include <map>

#include "harness/stats.hpp"

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

}  // namespace attn
