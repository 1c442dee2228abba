// SPDX-License-Identifier: MIT
#include "harness/worker.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "harness/layer.hpp"
#include "harness/machine.hpp"
#include "harness/results.hpp"
#include "harness/worker_stages.hpp"

namespace attn {
namespace {

// A fault in a protected page is noted on the board; then the signal does what it always does.
Board* board_of_faults = nullptr;

void note_fault(int signal, siginfo_t* info, void* /*context*/) {
  if (info->si_code > 0 && in_protected_page(info->si_addr)) board_of_faults->past_the_end = true;
  raise(signal);
}

void note_faults(Board& board) {
  board_of_faults = &board;
  struct sigaction action {};
  action.sa_sigaction = note_fault;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND);
  sigaction(SIGSEGV, &action, nullptr);
}

// What run.json will say of the device.
nlohmann::json device_detail() {
  const auto info = device_info();
  if (!info) return nlohmann::json::object();
  return {{"device_name", info->name},
          {"device_compute_capability", info->compute_capability},
          {"device_memory_bytes", info->memory_bytes},
          {"device_l2_bytes", info->l2_bytes},
          {"device_multiprocessors", info->multiprocessors},
          {"device_clock_mhz", info->clock_mhz},
          {"device_memory_clock_mhz", info->memory_clock_mhz},
          {"device_driver", info->driver},
          {"device_runtime", info->runtime},
          {"device_no_sample_clocks", info->no_clocks}};
}

}  // namespace

void Worker::work() {
  const auto left = unfinished();
  map_arena();
  look_at_device();
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

double Worker::expected_seconds(std::size_t index) {
  if (const double known = seconds_of(index); known > 0) return known;
  const auto prediction = predict(sweep_.points, index, state_);
  return prediction ? prediction->seconds : 0;
}

void Worker::offend(std::size_t index, std::optional<int> round, const std::string& kind,
                    const std::string& reason, std::optional<Safeguard> rule) {
  record_offence(journal_, state_, sweep_.points[index], process_, round, kind, reason, rule);
  journal_.sync();
  // Not exit(): a thread that is still writing must not be waited for.
  std::_Exit(static_cast<int>(WorkerExit::offence));
}

void Worker::finish(std::size_t index, Status status, const std::string& reason,
                    const std::string& stop, std::optional<Safeguard> rule) {
  Event event{
      .point_id = sweep_.points[index].id, .kind = Event::Kind::finish, .process = process_};
  event.detail = {{"status", name_of(status)}, {"reason", reason}, {"stop", stop}};
  if (rule) event.detail["rule"] = name_of(*rule);
  journal_.append(event);
  state_of(index).finish = event;
}

void Worker::measure_roofs(double seconds, std::optional<int> round) {
  board_.stage = static_cast<int>(round ? Stage::rounds : Stage::roofs);
  board_.point = -1;  // what happens now is no backend's doing
  for (const Roof& roof : roofs_of(sweep_)) sample_roof(roof, seconds, round.value_or(0));
}

// A device that cannot be measured has no roof: its points will say why.
double Worker::measure(const Roof& roof, double seconds) {
  if (roof.memory == Memory::host) return measure_roof(roof, seconds);
  if (device_limit_bytes_ == 0) return 0;
  board_.deadline_ns = now_ns() + static_cast<std::int64_t>(sweep_.options.timeout_s * 1e9);
  double rate = 0;
  try {
    if (roof.dtype == DType::f32) rate = measure_device_roof(roof.kind, seconds);
  } catch (const std::exception&) {
  }
  board_.deadline_ns = 0;
  return rate;
}

void Worker::sample_roof(const Roof& roof, double seconds, int round) {
  const double rate = measure(roof, seconds);
  if (rate <= 0) return;
  Event event{.point_id = roof_id(roof),
              .kind = Event::Kind::sample,
              .process = process_,
              .round = round,
              .time_s = seconds};
  event.detail = {{"rate", rate}, {"unit", unit(roof.kind)}};
  journal_.append(event);
  state_.roof_samples[event.point_id].push_back(rate);
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

// Before anything is taken of its memory. Nothing is asked of a device that no point needs.
void Worker::look_at_device() {
  const auto needed = unfinished();
  if (std::none_of(needed.begin(), needed.end(), [&](std::size_t i) {
        return sweep_.points[i].problem.memory == Memory::device;
      })) {
    return;
  }
  const std::int64_t free = device_free_bytes();
  if (free == 0) return;
  device_limit_bytes_ =
      static_cast<std::int64_t>(sweep_.options.device_mem_share * static_cast<double>(free));
  device_bytes_ = device_traffic_bytes();
}

std::optional<std::pair<Status, std::string>> Worker::answer_without_measuring(std::size_t index) {
  const Point& point = sweep_.points[index];
  if (!point.entry->built()) return {{Status::unavailable, std::string(point.entry->missing)}};
  if (const auto refusal = refuses(point.entry->backend, point.problem)) {
    const bool unavailable = refusal->kind == Refusal::Kind::unavailable;
    return {{unavailable ? Status::unavailable : Status::unsupported, refusal->sentence}};
  }
  if (point.cache == CacheMode::cold && point.entry->backend.own_clock) {
    return {{Status::unsupported,
             "its inputs pass through the caches on their way to the process that makes the call"}};
  }
  const bool on_device = point.problem.memory == Memory::device;
  const std::int64_t all_scratch = cost(point.entry->backend, point.problem).scratch_bytes;
  if (on_device && device_limit_bytes_ > 0) {  // else the call itself will say what is wrong
    const std::int64_t needed =
        device_bytes_ + device_bytes(point) + std::max(device_scratch_bytes_, all_scratch);
    if (needed > device_limit_bytes_) {
      return {{Status::oom_predicted,
               fmt::format("needs {} bytes of the device with what is there already, {:.3g} % of "
                           "what is free there are {}",
                           needed, 100 * sweep_.options.device_mem_share, device_limit_bytes_)}};
    }
  }
  const std::int64_t limit = sweep_.options.mem_limit_bytes;
  const std::int64_t scratch = on_device ? 0 : all_scratch;
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
  if (point.problem.memory == Memory::host) return;
  device_bytes_ += device_bytes(point);
  device_scratch_bytes_ =
      std::max(device_scratch_bytes_, cost(point.entry->backend, point.problem).scratch_bytes);
}

Shape& Worker::shape(std::size_t index) {
  const Point& point = sweep_.points[index];
  std::unique_ptr<Shape>& shape = shapes_[shape_key(point)];
  if (!shape) {
    shape = std::make_unique<Shape>(point.problem, point.family(), point.seed, point.dist,
                                    sweep_.options.rules);
  }
  return *shape;
}

Runner& Worker::runner(std::size_t index) {
  std::unique_ptr<Runner>& mine = runners_[index];
  if (!mine) {
    mine = std::make_unique<Runner>(sweep_.points[index], shape(index), *arena_, flusher_,
                                    sweep_.options.rules);
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
    shape(index).truth();
  } catch (const std::bad_alloc&) {
    finish(index, Status::oom, "there was no memory for the inputs and the reference", "");
    return;
  } catch (const std::exception& reason) {
    finish(index, Status::unsupported, fmt::format("cannot be checked: {}", reason.what()), "");
    return;
  }
  const CheckOutcome outcome =
      watched(index, round, 1, expected_seconds(index), [&] { return runner(index).check(); });
  Event event{.point_id = point.id,
              .kind = Event::Kind::check,
              .process = process_,
              .round = round,
              .time_s = outcome.seconds};
  event.detail = {
      {"status", name_of(outcome.status)},          {"mode", outcome.check.mode},
      {"rows_checked", outcome.check.rows_checked}, {"err_max_abs", outcome.check.err_max_abs},
      {"err_scaled", outcome.check.err_scaled},     {"err_bound", outcome.check.err_bound}};
  if (outcome.finding) {
    event.detail["reason"] = outcome.finding->reason;
    event.detail["rule"] = name_of(outcome.finding->rule);
  }
  if (outcome.peak_bytes >= 0) event.detail["peak_bytes"] = outcome.peak_bytes;
  if (const auto prediction = predict(sweep_.points, index, state_)) {
    event.detail["predicted_s"] = prediction->seconds;
  }
  if (point.entry->backend.resolved_impl != nullptr) {
    event.detail["resolved_impl"] = point.entry->backend.resolved_impl(point.problem);
  }
  if (point.entry->peer) {
    event.detail["thread_runtimes"] = fmt::format("{}", fmt::join(thread_runtimes(), " "));
  }
  if (point.problem.memory == Memory::device) event.detail.update(device_detail());
  journal_.append(event);
  state_of(index).checks.insert_or_assign(process_, event);
  if (outcome.status == Status::ok) return;
  const auto& [rule, reason] = *outcome.finding;
  if (outcome.status == Status::mismatch) offend(index, round, "mismatch", reason, rule);
  // A thread that is still at work would write into what others are measured with.
  if (rule == Safeguard::other_threads) offend(index, round, "failure", reason, rule);
  finish(index, outcome.status, reason, "", rule);
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
  note_faults(board);
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
