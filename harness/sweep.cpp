// SPDX-License-Identifier: MIT
#include "harness/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "harness/device.hpp"
#include "harness/layer.hpp"
#include "harness/stats.hpp"
#include "harness/work.hpp"

namespace attn {

std::optional<std::string> stop_reason(const Point& point, const PointState& state,
                                       const MeasureOptions& options) {
  const std::vector<double> times = state.times();
  const int count = static_cast<int>(times.size());
  if (point.fitted) {
    if (next_round(state) >= options.rounds) return "rounds";
    return std::nullopt;
  }
  if (count < options.min_samples) return std::nullopt;
  if (const auto width = relative_half_width(times); width && *width <= options.max_ci) {
    return "precision";
  }
  if (count >= options.max_samples) return "samples";
  if (std::accumulate(times.begin(), times.end(), 0.0) >= options.sample_budget_s) return "budget";
  return std::nullopt;
}

int next_round(const PointState& state) {
  int round = 0;
  while (state.has_sample_of(round)) ++round;
  return round;
}

namespace {

std::int64_t length(const Problem& p) { return std::max(p.n_q, p.n_kv); }

bool same_curve(const Point& a, const Point& b) {
  const Problem& p = a.problem;
  const Problem& q = b.problem;
  return a.entry == b.entry && p.scope == q.scope && p.regime == q.regime &&
         p.threads == q.threads && p.batch == q.batch && p.heads == q.heads &&
         p.heads_kv == q.heads_kv && p.head_dim == q.head_dim && p.head_dim_v == q.head_dim_v &&
         p.d_model == q.d_model && p.output_projection == q.output_projection && p.mask == q.mask &&
         p.dtype == q.dtype && p.width == q.width && a.cache == b.cache;
}

}  // namespace

std::optional<Prediction> predict(const std::vector<Point>& points, std::size_t index,
                                  const RunState& state) {
  const Point& point = points[index];
  std::optional<Prediction> best;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!same_curve(points[i], point) || length(points[i].problem) >= length(point.problem))
      continue;
    if (best && length(points[best->from].problem) >= length(points[i].problem)) continue;
    const auto found = state.points.find(points[i].id);
    if (found == state.points.end()) continue;
    const auto seconds = found->second.call_seconds();
    const auto flops = cost(points[i].entry->backend, points[i].problem).flops;
    if (!seconds || flops <= 0) continue;
    const auto more = cost(point.entry->backend, point.problem).flops;
    best = Prediction{*seconds * static_cast<double>(more) / static_cast<double>(flops), i};
  }
  return best;
}

std::string shape_key(const Point& point) {
  const Problem& p = point.problem;
  const std::string kind =
      has_heads(point.family()) ? "attention" : std::string(name_of(point.family()));
  return fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", kind,
                     name_of(p.scope), p.batch, p.heads, p.heads_kv, p.n_q, p.n_kv, p.head_dim,
                     p.head_dim_v, p.d_model, p.output_projection, p.mask == Mask::causal,
                     p.effective_scale(), p.width, fmt::join(p.key_lengths, ","), name_of(p.dtype),
                     point.seed, name_of(point.dist));
}

std::int64_t shape_bytes(const Point& point) {
  return tensor_elements(point.problem, point.family()).inputs() *
         bytes_per_element(point.problem.dtype);
}

std::int64_t own_bytes(const Point& point) {
  return tensor_elements(point.problem, point.family()).outputs() *
             bytes_per_element(point.problem.dtype) +
         cost(point.entry->backend, point.problem).state_bytes;
}

std::int64_t device_bytes(const Point& point) {
  constexpr std::int64_t buffers = 6;  // q, k, v, out, state and the scratch that all share
  return shape_bytes(point) + own_bytes(point) + 2 * buffers * device_fence_bytes;
}

std::vector<Roof> roofs_of(const Sweep& sweep) {
  std::map<int, std::set<DType>> dtypes;  // in use on so many threads
  bool device = false;
  for (const Point& point : sweep.points) {
    if (point.problem.memory == Memory::host) {
      dtypes[point.problem.threads].insert(point.problem.dtype);
    } else {
      device = true;
    }
  }
  std::vector<Roof> roofs;
  const auto add = [&](const Roof& roof) {
    if (roof_available(roof)) roofs.push_back(roof);
  };
  for (const auto& [threads, used] : dtypes) {
    for (const Roof::Kind kind :
         {Roof::Kind::fma, Roof::Kind::gemm, Roof::Kind::read, Roof::Kind::triad}) {
      add({kind, DType::f32, threads});
    }
    for (const DType dtype : used) {
      if (dtype != DType::f32) add({Roof::Kind::fma, dtype, threads});
    }
  }
  if (device) {
    roofs.push_back({Roof::Kind::fma, DType::f32, 1, Memory::device});
    roofs.push_back({Roof::Kind::copy, DType::f32, 1, Memory::device});
  }
  return roofs;
}

Roof peak_of(const Problem& problem) {
  return {Roof::Kind::fma, problem.dtype, problem.threads, problem.memory};
}

Roof bandwidth_of(const Problem& problem) {
  const auto kind = problem.memory == Memory::device ? Roof::Kind::copy : Roof::Kind::read;
  return {kind, DType::f32, problem.threads, problem.memory};
}

std::string roof_id(const Roof& roof) {
  return fmt::format("roof:{}:{}:{}", name(roof.kind), name_of(roof.dtype),
                     roof.memory == Memory::device ? "device" : std::to_string(roof.threads));
}

void record_offence(Journal& journal, RunState& state, const Point& point, int process,
                    std::optional<int> round, const std::string& kind, const std::string& reason,
                    std::optional<Safeguard> rule) {
  Event event{
      .point_id = point.id, .kind = Event::Kind::offence, .process = process, .round = round};
  event.detail = {{"kind", kind}, {"reason", reason}};
  if (rule) event.detail["rule"] = name_of(*rule);
  journal.append(event);
  PointState& mine = state.points[point.id];
  mine.add_offence(event);
  if (mine.finished() || !mine.convicted()) return;
  const Status status = kind == "mismatch" ? Status::mismatch
                        : kind == "hang"   ? Status::timeout
                        : kind == "oom"    ? Status::oom
                                           : Status::error;
  event.kind = Event::Kind::finish;
  event.detail = {{"status", name_of(status)}, {"reason", reason}, {"stop", ""}};
  if (rule) event.detail["rule"] = name_of(*rule);
  journal.append(event);
  mine.finish = event;
}

}  // namespace attn
