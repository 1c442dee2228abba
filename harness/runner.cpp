// SPDX-License-Identifier: MIT
#include "harness/runner.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstring>

#include "harness/layer.hpp"
#include "harness/machine.hpp"
#include "harness/work.hpp"

namespace attn {
namespace {

// Calls slower than this are not warmed: they pass through the caches many times themselves.
constexpr double slow_call_s = 0.05;

// Resident pages a call may add beyond its scratch, per thread: library buffers were touched before,
// so this is the kernel's own imprecision (it counts pages in batches) and parts of those buffers
// that only other shapes reach.
constexpr std::int64_t peak_slack_bytes = std::int64_t{4} << 20;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void CacheFlusher::flush() {
  buffer_.resize(bytes_);
  for (std::size_t i = 0; i < buffer_.size(); i += 64) ++buffer_[i];
}

Runner::Runner(const Point& point, Shape& shape, Arena& arena, CacheFlusher& flusher)
    : point_(point),
      shape_(shape),
      arena_(arena),
      flusher_(flusher),
      cost_(cost(point.entry->backend, point.problem)),
      output_(point.problem, point.family()),
      state_(static_cast<std::size_t>(cost_.state_bytes)),
      io_(shape.io()) {
  output_.attach(io_);
  prepare(point.entry->backend, point.problem, shape.parameters(), state_.data());
  if (point.problem.memory == Memory::device) {
    device_ = make_device_point(point.entry->backend, point.problem, io_, state_.data());
  } else {
    scratch_ = arena_.region(static_cast<std::size_t>(cost_.scratch_bytes));
  }
}

Runner::~Runner() = default;

double Runner::call(const Io& io) {
  if (device_) return device_->timed_run();
  const auto start = std::chrono::steady_clock::now();
  run(point_.entry->backend, point_.problem, io, state_.data(), scratch_);
  return seconds_since(start);
}

CheckOutcome Runner::check() {
  set_threads(point_.problem.threads);
  shape_.truth();
  output_.poison();
  if (device_) device_->upload();
  arena_.give_back();
  const std::uint64_t before = shape_.hash();

  CheckOutcome outcome;
  const bool peak_known = reset_peak_rss() && !device_;
  const std::int64_t resident = current_rss_bytes();
  outcome.seconds = call(io_);
  if (peak_known) outcome.peak_bytes = std::max<std::int64_t>(0, peak_rss_bytes() - resident);
  if (device_) device_->download();

  const auto error = [&](std::string reason) {
    outcome.status = Status::error;
    outcome.reason = std::move(reason);
    return outcome;
  };
  if (shape_.hash() != before) return error("changed its inputs");
  if (!output_.intact() || !shape_.intact() || !state_.intact())
    return error("wrote outside its output");
  const std::int64_t slack = peak_slack_bytes * point_.problem.threads;
  if (outcome.peak_bytes > cost_.scratch_bytes + cost_.scratch_bytes / 50 + slack) {
    return error(fmt::format("took {} bytes of memory in one call, but declares {} of scratch",
                             outcome.peak_bytes, cost_.scratch_bytes));
  }
  const std::int64_t model = flops_model(point_.problem, point_.family());
  const bool approximate = point_.family() == Family::sparse || point_.family() == Family::linear;
  if (!approximate && cost_.flops < model) {
    return error(fmt::format("declares {} flops where the problem needs {}", cost_.flops, model));
  }
  outcome.check = verify(shape_, output_);
  if (outcome.check.verdict == Check::Verdict::mismatch) outcome.status = Status::mismatch;
  if (outcome.check.verdict == Check::Verdict::mistrusted) outcome.status = Status::mistrusted;
  outcome.reason = outcome.check.reason;
  if (outcome.status == Status::ok) guard_ = std::make_unique<Guard>(shape_, output_);
  return outcome;
}

int Runner::warm_calls(std::uint64_t lot, double call_seconds) const {
  if (point_.cache == CacheMode::cold || call_seconds > slow_call_s) return 0;
  return 1 + static_cast<int>(lot & 1);
}

Runner::Timed Runner::sample(std::uint64_t lot, double call_seconds) {
  set_threads(point_.problem.threads);
  Timed timed;
  timed.cache = "warm";
  if (device_) device_->upload();
  if (point_.cache == CacheMode::cold) {
    timed.cache = "cold";
    if (device_) {
      device_->flush_cache();
    } else {
      flusher_.flush();
    }
  } else if (call_seconds > slow_call_s) {
    timed.cache = "mixed";
  }
  for (int i = warm_calls(lot, call_seconds); i > 0; --i) timed.warm_seconds += call(io_);
  guard_->disturb(lot >> 1);
  if (device_) device_->upload();  // the changed row travels; on a device this follows the flush
  timed.seconds = call(io_);
  if (device_) device_->download();
  return timed;
}

std::optional<std::string> Runner::guard_verdict() { return guard_->check(); }

Runner::Closed Runner::closing_call() {
  guard_.reset();
  set_threads(point_.problem.threads);
  output_.poison();
  if (device_) device_->upload();
  const double seconds = call(io_);
  if (device_) device_->download();
  return {seconds, verify(shape_, output_)};
}

std::vector<std::pair<std::string, double>> Runner::phases() {
  using Clock = std::chrono::steady_clock;
  struct Listener {
    std::vector<std::pair<std::string, double>> phases;
    std::string current;
    Clock::time_point since;
    static void enter(void* self, std::string_view phase) {
      auto& me = *static_cast<Listener*>(self);
      const auto now = Clock::now();
      if (!me.current.empty()) {
        me.phases.emplace_back(me.current, std::chrono::duration<double>(now - me.since).count());
      }
      me.current = phase;
      me.since = Clock::now();
    }
  } listener;
  if (device_) return {};
  set_threads(point_.problem.threads);
  Io io = io_;
  io.phase = {Listener::enter, &listener};
  call(io);
  // A phase that comes back (once a head, say) is one phase.
  std::vector<std::pair<std::string, double>> sums;
  for (const auto& entry : listener.phases) {
    const auto found = std::find_if(sums.begin(), sums.end(),
                                    [&](const auto& sum) { return sum.first == entry.first; });
    if (found == sums.end()) {
      sums.push_back(entry);
    } else {
      found->second += entry.second;
    }
  }
  return sums;
}

}  // namespace attn
