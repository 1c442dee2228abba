// SPDX-License-Identifier: MIT
#include "harness/runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <thread>

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

// What other threads may use of the processor in a call of a one-thread point: the two clocks are not
// read in one instant, and an interrupt may come between.
constexpr double other_threads_s = 1e-4;

double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct OtherThreads {
  double seconds = 0;  // of processor time so far
  bool at_rest = false;
};

// All threads but this one, once they have come to rest: a running thread's time is known late (a
// team that spins gained 4 ms at once, and honest backends were convicted), and an OpenMP team that
// has just been left spins for a while (for ever, if the user wants it so).
OtherThreads other_threads() {
  const auto used = [] {
    return cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  };
  double before = used();
  for (int tries = 0; tries < 100; ++tries) {
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    const double now = used();
    if (now - before < 2e-5 && other_threads_run() == false) return {used(), true};
    before = now;
  }
  return {before, false};
}

// Nothing can be said of threads that were at work before the calls.
std::optional<Finding> other_threads_worked(const OtherThreads& before, double seconds) {
  if (!before.at_rest) return std::nullopt;
  const double worked = other_threads().seconds - before.seconds;
  if (worked <= other_threads_s) return std::nullopt;
  return Finding{
      Safeguard::other_threads,
      fmt::format("{:.3g} ms of work were done on other threads in or after {:.3g} ms of "
                  "calls, but the point has one thread",
                  1e3 * worked, 1e3 * seconds)};
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void CacheFlusher::flush() {
  buffer_.resize(bytes_);
  for (std::size_t i = 0; i < buffer_.size(); i += 64) ++buffer_[i];
}

Runner::Runner(const Point& point, Shape& shape, Arena& arena, CacheFlusher& flusher,
               const Safeguards& rules)
    : point_(point),
      shape_(shape),
      arena_(arena),
      flusher_(flusher),
      rules_(rules),
      cost_(cost(point.entry->backend, point.problem)),
      output_(point.problem, point.family(), rules),
      state_(static_cast<std::size_t>(cost_.state_bytes), rules.has(Safeguard::protected_pages)),
      io_(shape.io()) {
  output_.attach(io_);
  io_.seconds = &own_seconds_;
  prepare(point.entry->backend, point.problem, shape.parameters(), state_.data());
  if (point.problem.memory == Memory::device) {
    device_ = make_device_point(point.entry->backend, point.problem, io_, state_.data());
  } else {
    scratch_ = arena_.region(static_cast<std::size_t>(cost_.scratch_bytes));
  }
}

Runner::~Runner() = default;

DeviceTiming Runner::call(const Io& io) {
  if (device_) return device_->timed_run();
  own_seconds_ = 0;
  const auto start = std::chrono::steady_clock::now();
  run(point_.entry->backend, point_.problem, io, state_.data(), scratch_);
  const double seconds = seconds_since(start);
  if (!point_.entry->backend.own_clock) return {seconds, {}};
  if (!(own_seconds_ > 0 && own_seconds_ <= seconds)) {
    throw std::runtime_error(
        fmt::format("its own clock says that the call took {:.3g} s, but the host saw {:.3g} s",
                    own_seconds_, seconds));
  }
  return {own_seconds_, {}};
}

std::optional<Finding> Runner::trespass(std::uint64_t inputs) const {
  if (rules_.has(Safeguard::input_hash)) {
    if (shape_.hash() != inputs) return {{Safeguard::input_hash, "changed its inputs"}};
    if (device_ && device_->inputs_changed()) {
      return {{Safeguard::input_hash, "changed its inputs on the device"}};
    }
  }
  if (rules_.has(Safeguard::fences)) {
    if (!output_.intact() || !shape_.intact() || !state_.intact()) {
      return {{Safeguard::fences, "wrote before the start of a tensor"}};
    }
    if (const std::string broken = device_ ? device_->broken_fence() : ""; !broken.empty()) {
      return {{Safeguard::fences, broken}};
    }
  }
  return std::nullopt;
}

bool Runner::threads_are_watched() const {
  return !device_ && point_.problem.threads == 1 && rules_.has(Safeguard::other_threads);
}

CheckOutcome Runner::check() {
  set_threads(point_.problem.threads);
  shape_.truth();
  output_.poison();
  if (device_) {
    device_->upload();
    device_->poison_scratch();
  }
  arena_.give_back();
  const std::uint64_t before = shape_.hash();
  const OtherThreads others = threads_are_watched() ? other_threads() : OtherThreads{};

  CheckOutcome outcome;
  // What another process takes is not known here.
  const bool peak_known = reset_peak_rss() && !device_ && !point_.entry->backend.own_clock;
  const std::int64_t resident = current_rss_bytes();
  outcome.seconds = call(io_).seconds;
  const std::uint64_t answer = output_.hash();  // at once: nobody may write any more
  if (peak_known) outcome.peak_bytes = std::max<std::int64_t>(0, peak_rss_bytes() - resident);

  const auto error = [&](Safeguard rule, std::string reason) {
    outcome.status = Status::error;
    outcome.finding = {rule, std::move(reason)};
    return outcome;
  };
  if (threads_are_watched()) {
    if (const auto finding = other_threads_worked(others, outcome.seconds)) {
      return error(finding->rule, finding->reason);
    }
  }
  if (device_) device_->download();
  if (const auto finding = trespass(before)) return error(finding->rule, finding->reason);
  const std::int64_t slack = peak_slack_bytes * point_.problem.threads;
  if (rules_.has(Safeguard::memory_peak) && !point_.entry->peer &&  // a library's memory is its own
      outcome.peak_bytes > cost_.scratch_bytes + cost_.scratch_bytes / 50 + slack) {
    return error(Safeguard::memory_peak,
                 fmt::format("took {} bytes of memory in one call, but declares {} of scratch",
                             outcome.peak_bytes, cost_.scratch_bytes));
  }
  const std::int64_t model = flops_model(point_.problem, point_.family());
  const bool approximate = point_.family() == Family::sparse || point_.family() == Family::linear;
  if (rules_.has(Safeguard::declared_flops) && !approximate && cost_.flops < model) {
    return error(Safeguard::declared_flops,
                 fmt::format("declares {} flops where the problem needs {}", cost_.flops, model));
  }
  outcome.check = verify(shape_, output_, rules_);
  if (outcome.check.verdict == Check::Verdict::mismatch) outcome.status = Status::mismatch;
  if (outcome.check.verdict == Check::Verdict::mistrusted) outcome.status = Status::mistrusted;
  outcome.finding = outcome.check.finding;
  if (!device_ && rules_.has(Safeguard::other_threads) && output_.hash() != answer) {
    return error(Safeguard::other_threads, "wrote into its output after it had returned");
  }
  if (outcome.status == Status::ok) guard_ = std::make_unique<Guard>(shape_, output_, rules_);
  return outcome;
}

int Runner::warm_calls(std::uint64_t lot, double call_seconds) const {
  if (point_.cache == CacheMode::cold || call_seconds > slow_call_s) return 0;
  return rules_.has(Safeguard::warm_lot) ? 1 + static_cast<int>(lot & 1) : 1;
}

Runner::Timed Runner::sample(std::uint64_t lot, double call_seconds) {
  set_threads(point_.problem.threads);
  Timed timed;
  timed.cache = "warm";
  const int warm = warm_calls(lot, call_seconds);
  if (device_ && warm > 0) device_->upload();
  for (int i = 0; i < warm; ++i) timed.warm_seconds += call(io_).seconds;
  guard_->disturb(lot >> 1);
  if (device_) device_->upload();  // the changed row travels
  if (point_.cache == CacheMode::cold) {
    // Last, or the change would lie in the cache.
    timed.cache = "cold";
    if (device_) {
      device_->flush_cache();
    } else {
      flusher_.flush();
    }
  } else if (call_seconds > slow_call_s) {
    timed.cache = "mixed";
  }
  const DeviceTiming timing = call(io_);
  timed.seconds = timing.seconds;
  timed.clocks = timing.clocks;
  if (device_) device_->download();
  return timed;
}

std::optional<Finding> Runner::guard_verdict() { return guard_->check(); }

Runner::Closed Runner::closing_call() {
  guard_.reset();
  set_threads(point_.problem.threads);
  output_.poison();
  if (device_) {
    device_->upload();
    device_->poison_scratch();
  }
  const std::uint64_t before = shape_.hash();
  const DeviceTiming timing = call(io_);
  Closed closed{timing.seconds, timing.clocks, std::nullopt, {}};
  if (device_) device_->download();
  closed.trespass = trespass(before);
  if (!closed.trespass && rules_.has(Safeguard::closing_check)) {
    closed.check = verify(shape_, output_, rules_);
  }
  return closed;
}

Runner::FreshTimes Runner::fresh_times() {
  set_threads(point_.problem.threads);
  const OtherThreads others = threads_are_watched() ? other_threads() : OtherThreads{};
  std::vector<double> usual;
  std::vector<double> fresh;
  double all = 0;
  for (int pair = 0; pair < fresh_pairs; ++pair) {
    shape_.fill(shape_.seed());
    all += call(io_).seconds;  // after which these inputs are the usual ones
    shape_.fill(shape_.seed());
    usual.push_back(call(io_).seconds);
    shape_.fill(random_bits(shape_.seed(), static_cast<std::uint64_t>(pair)));
    fresh.push_back(call(io_).seconds);
    all += usual.back() + fresh.back();
  }
  shape_.fill(shape_.seed());
  FreshTimes times{*std::min_element(usual.begin(), usual.end()),
                   *std::min_element(fresh.begin(), fresh.end()), std::nullopt};
  if (threads_are_watched()) times.finding = other_threads_worked(others, all);
  return times;
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
