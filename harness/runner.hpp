// SPDX-License-Identifier: MIT
// One point inside a worker: its output, state and guard, and the calls that check and time it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/buffers.hpp"
#include "harness/device.hpp"
#include "harness/names.hpp"
#include "harness/plan.hpp"
#include "harness/verify.hpp"

namespace attn {

// A buffer larger than the last-level cache, written between cold calls.
class CacheFlusher {
 public:
  explicit CacheFlusher(std::size_t bytes) : bytes_(bytes) {}
  void flush();

 private:
  std::size_t bytes_;
  std::vector<char> buffer_;
};

struct CheckOutcome {
  Status status = Status::ok;
  std::optional<Finding> finding;  // unless ok
  Check check;
  double seconds = 0;            // of the verifying call: page faults included, never a sample
  std::int64_t peak_bytes = -1;  // resident memory the call added; -1: not measurable here
};

class Runner {
 public:
  Runner(const Point& point, Shape& shape, Arena& arena, CacheFlusher& flusher,
         const Safeguards& rules);
  ~Runner();
  Runner(const Runner&) = delete;

  [[nodiscard]] Shape& shape() { return shape_; }

  // The verifying call: everything is checked around it, then the output against the reference.
  CheckOutcome check();

  // Untimed calls before a timed one: one or two, by lot, since a backend that skips every second
  // call cannot know then which one is timed; none when cold, or when a call is slow.
  [[nodiscard]] int warm_calls(std::uint64_t lot, double call_seconds) const;

  // One sample, after a check that was ok: untimed warm calls, the guard's change, the flush of a
  // cold cache, the timed call. `lot` decides the number of warm calls and the guard's choice.
  // `call_seconds` is what a call takes.
  struct Timed {
    double seconds = 0;
    double warm_seconds = 0;  // of the untimed calls before
    DeviceClocks clocks;
    std::string cache;  // warm, mixed (too slow to be warmed) or cold
  };
  Timed sample(std::uint64_t lot, double call_seconds);

  // The guard's verdict on the last sample; puts the inputs back.
  std::optional<Finding> guard_verdict();

  // One timed call on whatever the shape holds now, without warm calls or guard; every sampled row
  // is checked afterwards.
  struct Closed {
    double seconds = 0;
    DeviceClocks clocks;
    std::optional<Finding> trespass;  // then it was not checked
    Check check;
  };
  Closed closing_call();

  // Calls by turns on the inputs of before, written again, and on fresh ones: seconds of the
  // fastest of each. Whoever keeps what it made of the inputs is slower on fresh
  // ones, whatever else the machine does. The answers are not checked, the threads at work are.
  struct FreshTimes {
    double usual = 0;
    double fresh = 0;
    std::optional<Finding> finding;
  };
  FreshTimes fresh_times();
  static constexpr int fresh_pairs = 5;

  // Seconds of each phase of one instrumented call, in order; empty for uninstrumented backends.
  std::vector<std::pair<std::string, double>> phases();

 private:
  DeviceTiming call(const Io& io);  // one call, on host or device
  // What the last call may not have done to memory; `inputs` is the shape's hash before it.
  [[nodiscard]] std::optional<Finding> trespass(std::uint64_t inputs) const;
  [[nodiscard]] bool threads_are_watched() const;

  const Point& point_;
  Shape& shape_;
  Arena& arena_;
  CacheFlusher& flusher_;
  const Safeguards rules_;
  Cost cost_;
  Output output_;
  FencedBuffer state_;
  double own_seconds_ = 0;  // what a backend with its own clock says
  void* scratch_ = nullptr;
  Io io_;
  std::unique_ptr<DevicePoint> device_;
  std::unique_ptr<Guard> guard_;
};

}  // namespace attn
