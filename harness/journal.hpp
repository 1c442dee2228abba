// SPDX-License-Identifier: MIT
// samples.csv: the append-only journal of a run, from which everything else is derived.
//
// One `write` a line, so that a kill at any moment loses at most the line under way. Events:
//   check    the verifying call of a point in one process; detail: what it found
//   sample   one timed call; detail: its cache mode
//   finish   the end of a point; detail: status, reason, what stopped it. Status "resumed" reopens
//   it offence  a mismatch, crash, hang or kill; the worker ends with it. All samples that its
//   process took
//            in the same round are suspect: left out of every statistic and taken again
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "harness/names.hpp"
#include "harness/plan.hpp"

namespace attn {

struct Event {
  enum class Kind { check, sample, finish, offence };
  std::string point_id;
  Kind kind = Kind::check;
  int process = 0;
  std::optional<int> round = std::nullopt;
  std::optional<int> position = std::nullopt;
  std::optional<double> time_s = std::nullopt;
  std::optional<int> clock_mhz = std::nullopt;   // of a device, while the call was under way
  std::optional<bool> throttled = std::nullopt;  // and whether power, heat or hardware held it back
  nlohmann::json detail = nlohmann::json::object();
};

class Journal {
 public:
  // Opens or creates the file, takes a lock that ends with the last process that holds it, and cuts
  // a torn last line off. Waits a moment for the lock: the worker of a supervisor that was killed
  // dies right after it. Throws CommandError (file; usage when another run holds the lock).
  Journal(const std::string& path, const std::string& run_id);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  void append(const Event& event);  // throws CommandError (file)
  // A process that was killed inside a write leaves part of a line; nothing may be glued to it. What
  // is cut is named on stderr.
  void cut_torn_line();  // throws CommandError (file)
  // Throws CommandError (file), also when the file is no longer where it was opened: what else is
  // written to its folder would not stand beside it.
  void sync();

 private:
  void lock() const;

  std::string path_;
  std::string run_id_;
  int fd_ = -1;
};

// All whole events of the file, in order. A line that is none, or that repeats an earlier one, is left
// out; `left_out` hears its number and why.
using LeftOut = std::function<void(std::size_t line, const std::string& why)>;
std::vector<Event> read_journal(const std::string& path, const LeftOut& left_out = {});

struct Sample {
  int process = 0;
  int round = 0;
  double time_s = 0;
  std::string cache;  // warm, mixed or cold
};

// Where a point stands.
struct PointState {
  std::map<int, Event> checks;  // by process
  std::vector<Sample> samples;  // without the suspect ones
  int offences = 0;             // since the start or the last resume, kills apart
  int kills = 0;                // from outside: forgiven when a sample of the point follows
  std::optional<Event> finish;

  void add_offence(const Event& event);
  void add_sample(const Sample& sample);
  [[nodiscard]] bool finished() const { return finish.has_value(); }
  // The second offence decides: one may be another program's doing.
  [[nodiscard]] bool convicted() const { return offences + kills >= 2; }
  [[nodiscard]] Status status() const;  // of a finished point
  [[nodiscard]] bool has_sample_of(int round) const;
  [[nodiscard]] std::vector<double> times() const;
  // Seconds of one call as far as known: the median sample, else the verifying call.
  [[nodiscard]] std::optional<double> call_seconds() const;
};

struct RunState {
  std::map<std::string, PointState> points;                 // by point_id
  std::map<std::string, std::vector<double>> roof_samples;  // by "roof:kind:dtype:threads"
  int processes = 0;                                        // workers started so far
};

RunState replay(const std::vector<Event>& events);

}  // namespace attn
