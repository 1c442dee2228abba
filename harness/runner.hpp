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
  std::string reason;
  Check check;
  double seconds = 0;            // of the verifying call: page faults included, never a sample
  std::int64_t peak_bytes = -1;  // resident memory the call added; -1: not measurable here
};

class Runner {
 public:
  Runner(const Point& point, Shape& shape, Arena& arena, CacheFlusher& flusher);
  ~Runner();
  Runner(const Runner&) = delete;

  [[nodiscard]] Shape& shape() { return shape_; }

  // The verifying call: everything is checked around it, then the output against the reference.
  CheckOutcome check();

  // Untimed calls before a timed one: one or two, by lot, since a backend that skips every second
  // call cannot know then which one is timed; none when cold, or when a call is slow.
  [[nodiscard]] int warm_calls(std::uint64_t lot, double call_seconds) const;

  // One sample, after a check that was ok: untimed warm calls (or a flushed cache), the guard's change, the timed call. `lot`
  // decides the number of warm calls and the guard's choice. `call_seconds` is what a call takes.
  struct Timed {
    double seconds = 0;
    double warm_seconds = 0;  // of the untimed calls before
    std::string cache;        // warm, mixed (too slow to be warmed) or cold
  };
  Timed sample(std::uint64_t lot, double call_seconds);

  // The guard's verdict on the last sample; puts the inputs back.
  std::optional<std::string> guard_verdict();

  // One timed call on whatever the shape holds now, without warm calls or guard; every sampled row
  // is checked afterwards.
  struct Closed {
    double seconds;
    Check check;
  };
  Closed closing_call();

  // Seconds of each phase of one instrumented call, in order; empty for uninstrumented backends.
  std::vector<std::pair<std::string, double>> phases();

 private:
  double call(const Io& io);  // one call in seconds, on host or device

  const Point& point_;
  Shape& shape_;
  Arena& arena_;
  CacheFlusher& flusher_;
  Cost cost_;
  Output output_;
  FencedBuffer state_;
  void* scratch_ = nullptr;
  Io io_;
  std::unique_ptr<DevicePoint> device_;
  std::unique_ptr<Guard> guard_;
};

}  // namespace attn
