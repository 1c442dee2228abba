// SPDX-License-Identifier: MIT
// samples.csv: whatever the file holds, reading and replaying it never throws, a cut loses only
// what follows it, and what was read is written as lines that mean the same.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>

#include "harness/csv.hpp"
#include "harness/journal.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace attn {
namespace {

// A file in memory: a run of the target touches no disk.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("journal", MFD_CLOEXEC)) { ATTN_DEMAND(fd_ >= 0); }
  [[nodiscard]] std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }
  void hold(std::string_view bytes) const {
    ATTN_DEMAND(::ftruncate(fd_, 0) == 0);
    const auto size = static_cast<ssize_t>(bytes.size());
    ATTN_DEMAND(::pwrite(fd_, bytes.data(), bytes.size(), 0) == size);
  }

 private:
  int fd_;
};

bool same(const Event& a, const Event& b) {
  return a.point_id == b.point_id && a.kind == b.kind && a.process == b.process &&
         a.round == b.round && a.position == b.position && a.time_s == b.time_s &&
         a.clock_mhz == b.clock_mhz && a.throttled == b.throttled && a.detail == b.detail;
}

// `part` is how the events of `all` begin.
bool begins(const std::vector<Event>& part, const std::vector<Event>& all) {
  if (part.size() > all.size()) return false;
  return std::equal(part.begin(), part.end(), all.begin(), same);
}

// Lines that differ in a column which no event keeps are one event, written once.
std::vector<Event> distinct(const std::vector<Event>& events) {
  std::vector<Event> kept;
  for (const Event& event : events) {
    const bool known = std::any_of(kept.begin(), kept.end(),
                                   [&](const Event& other) { return same(event, other); });
    if (!known) kept.push_back(event);
  }
  return kept;
}

void check_state(const RunState& run, const std::vector<Event>& events) {
  int processes = 0;
  for (const Event& event : events) processes = std::max(processes, event.process + 1);
  ATTN_DEMAND(run.processes == processes);
  for (const auto& [id, point] : run.points) {
    std::set<std::pair<int, int>> taken;
    for (const Sample& sample : point.samples) {
      ATTN_DEMAND(sample.time_s > 0 && std::isfinite(sample.time_s));
      ATTN_DEMAND(sample.round >= 0);
      ATTN_DEMAND(taken.insert({sample.process, sample.round}).second);
    }
    ATTN_DEMAND(point.times().size() == point.samples.size());
    const auto seconds = point.call_seconds();
    if (seconds) ATTN_DEMAND(*seconds >= 0 && std::isfinite(*seconds));
    if (point.finished()) static_cast<void>(point.status());
  }
}

// Opens a journal of these bytes and appends an event; false when it is refused.
bool go_on(const MemoryFile& file, std::string_view bytes) {
  file.hold(bytes);
  const std::vector<Event> before = read_journal(file.path());
  if (!accepted({Exit::file}, file.path(), [&] {
        Journal(file.path(), "run").append({.point_id = "next"});
        return true;
      })) {
    return false;
  }
  const std::vector<Event> after = read_journal(file.path());
  ATTN_DEMAND(after.size() == before.size() + 1 && begins(before, after));
  ATTN_DEMAND(after.back().point_id == "next");
  return true;
}

}  // namespace
}  // namespace attn

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace attn;
  static const MemoryFile file;
  static const MemoryFile copy;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);

  file.hold(bytes);
  const std::vector<Event> events = read_journal(file.path());
  check_state(replay(events), events);

  file.hold(bytes.substr(0, size / 2));
  ATTN_DEMAND(begins(read_journal(file.path()), events));

  copy.hold("");
  {
    Journal journal(copy.path(), "run");
    for (const Event& event : events) journal.append(event);
  }
  const std::vector<Event> written = distinct(events);
  const std::vector<Event> again = read_journal(copy.path());
  ATTN_DEMAND(again.size() == written.size() && begins(again, written));

  // A run that opens these bytes says that they are none of its own, or goes on after them; one that
  // was killed anywhere goes on after its last whole line.
  go_on(file, bytes);
  const std::string whole = read_file(copy.path());
  const std::size_t cut = std::hash<std::string_view>{}(bytes) % (whole.size() + 1);
  ATTN_DEMAND(go_on(copy, std::string_view(whole).substr(0, cut)));
  return 0;
}
