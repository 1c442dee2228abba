// SPDX-License-Identifier: MIT
#include "harness/journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <unordered_set>

#include "harness/csv.hpp"
#include "harness/error.hpp"
#include "harness/stats.hpp"

namespace attn {
namespace {

constexpr std::array<std::string_view, 4> kind_words = {"check", "sample", "finish", "offence"};
constexpr int most_processes = 1'000'000;
constexpr int lock_attempts = 30;  // one every tenth of a second
constexpr std::string_view samples_header =
    "run_id,point_id,event,process,round,position,time_s,clock_mhz,throttled,detail\n";

template <class T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(static_cast<double>(value))) return std::nullopt;
  return value;
}

// Every detail is flat, and those that readers take for words are text.
bool is_detail(const nlohmann::json& detail) {
  constexpr std::array<const char*, 5> words = {"cache", "device_name", "kind", "reason", "status"};
  return detail.is_object() &&
         std::none_of(detail.begin(), detail.end(),
                      [](const nlohmann::json& value) { return value.is_structured(); }) &&
         std::all_of(words.begin(), words.end(), [&](const char* word) {
           return !detail.contains(word) || detail[word].is_string();
         });
}

std::optional<Event> parse_event(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const auto fields = parse_csv_line(line);
  if (!fields || fields->size() != 10) return std::nullopt;
  const auto kind = std::find(kind_words.begin(), kind_words.end(), (*fields)[2]);
  const auto process = parse_number<int>((*fields)[3]);
  if (kind == kind_words.end() || !process) return std::nullopt;
  Event event;
  event.point_id = (*fields)[1];
  event.kind = static_cast<Event::Kind>(kind - kind_words.begin());
  event.process = *process;
  event.round = parse_number<int>((*fields)[4]);
  event.position = parse_number<int>((*fields)[5]);
  event.time_s = parse_number<double>((*fields)[6]);
  event.clock_mhz = parse_number<int>((*fields)[7]);
  if ((*fields)[8] == "true" || (*fields)[8] == "false") event.throttled = (*fields)[8] == "true";
  event.detail = nlohmann::json::parse((*fields)[9], nullptr, false);
  if (!is_detail(event.detail) || event.process < 0 || event.process > most_processes ||
      event.time_s.value_or(0) < 0) {
    return std::nullopt;
  }
  if (event.kind == Event::Kind::sample &&
      !(event.round && *event.round >= 0 && event.time_s && *event.time_s > 0)) {
    return std::nullopt;
  }
  return event;
}

}  // namespace

Journal::Journal(const std::string& path, const std::string& run_id)
    : path_(path), run_id_(run_id) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) file_error(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  try {
    lock();
    cut_torn_line();
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

void Journal::lock() const {
  for (int attempt = 1; ::flock(fd_, LOCK_EX | LOCK_NB) != 0; ++attempt) {
    if (errno != EWOULDBLOCK) {
      file_error(fmt::format("cannot lock {}: {}", path_, std::strerror(errno)));
    }
    if (attempt == lock_attempts) {
      usage_error(
          fmt::format("another run is writing {}; wait for it or choose another --out", path_));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void Journal::cut_torn_line() {
  const std::string text = read_file(path_);
  const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (whole > 0 && !text.starts_with(samples_header)) {
    file_error(fmt::format("{} is not the journal of a run: its header is another", path_));
  }
  if (whole < text.size()) {
    if (::ftruncate(fd_, static_cast<off_t>(whole)) != 0) {
      file_error(
          fmt::format("cannot cut the torn last line of {}: {}", path_, std::strerror(errno)));
    }
    warn(fmt::format("{}:{}: a torn last line is left out", path_,
                     std::count(text.begin(), text.end(), '\n') + 1));
  }
  if (whole == 0 && !write_all(fd_, samples_header)) {
    file_error(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
  }
}

Journal::~Journal() { ::close(fd_); }

void Journal::append(const Event& event) {
  if (!is_detail(event.detail)) throw std::logic_error("journal: a detail that is not flat");
  const auto text = [](const std::optional<int>& value) {
    return value ? std::to_string(*value) : std::string();
  };
  const std::string line = csv_line(
      {run_id_, event.point_id, std::string(kind_words[static_cast<std::size_t>(event.kind)]),
       std::to_string(event.process), text(event.round), text(event.position),
       event.time_s ? csv_number(*event.time_s) : "", text(event.clock_mhz),
       event.throttled ? (*event.throttled ? "true" : "false") : "", event.detail.dump()});
  if (!write_all(fd_, line)) {
    file_error(fmt::format("cannot append to {}: {}", path_, std::strerror(errno)));
  }
}

void Journal::sync() {
  if (::fdatasync(fd_) != 0) {
    file_error(fmt::format("cannot sync {}: {}", path_, std::strerror(errno)));
  }
  struct stat here {};
  struct stat there {};
  if (::fstat(fd_, &here) != 0 || ::stat(path_.c_str(), &there) != 0 ||
      here.st_ino != there.st_ino || here.st_dev != there.st_dev) {
    file_error(fmt::format("{} was removed or renamed while the run was writing it", path_));
  }
}

std::vector<Event> read_journal(const std::string& path, const LeftOut& left_out) {
  const std::string text = read_file(path);
  std::vector<Event> events;
  std::unordered_set<std::string_view> seen;
  std::size_t start = 0;
  for (std::size_t number = 1;; ++number) {
    const std::size_t end = text.find('\n', start);
    if (end == std::string::npos) return events;  // what follows the last newline is torn
    const std::string_view line = std::string_view(text).substr(start, end - start);
    start = end + 1;
    if (number == 1) continue;  // the header
    auto event = parse_event(line);
    if (event && seen.insert(line).second) {
      events.push_back(std::move(*event));
    } else if (left_out) {
      left_out(number, event ? "repeats an earlier line" : "is no event");
    }
  }
}

Status PointState::status() const {
  return parse_name<Status>(finish->detail.value("status", "")).value_or(Status::error);
}

void PointState::add_offence(const Event& event) {
  ++(event.detail.value("kind", "") == "kill" ? kills : offences);
}

void PointState::add_sample(const Sample& sample) {
  const bool known = std::any_of(samples.begin(), samples.end(), [&](const Sample& other) {
    return other.process == sample.process && other.round == sample.round;
  });
  if (known) return;  // a line that somebody has copied
  samples.push_back(sample);
  kills = 0;
}

bool PointState::has_sample_of(int round) const {
  return std::any_of(samples.begin(), samples.end(),
                     [&](const Sample& sample) { return sample.round == round; });
}

std::vector<double> PointState::times() const {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const Sample& sample : samples) values.push_back(sample.time_s);
  return values;
}

std::optional<double> PointState::call_seconds() const {
  if (!samples.empty()) return median(times());
  for (const auto& [process, check] : checks) {
    if (check.time_s) return check.time_s;
  }
  return std::nullopt;
}

RunState replay(const std::vector<Event>& events) {
  std::set<std::pair<int, int>> suspect;  // (process, round) with an offence
  for (const Event& event : events) {
    if (event.kind == Event::Kind::offence && event.round) {
      suspect.insert({event.process, *event.round});
    }
  }
  RunState run;
  for (const Event& event : events) {
    run.processes = std::max(run.processes, event.process + 1);
    if (event.point_id.starts_with("roof:")) {
      if (event.detail.contains("rate") && event.detail["rate"].is_number()) {
        run.roof_samples[event.point_id].push_back(event.detail["rate"].get<double>());
      }
      continue;
    }
    PointState& point = run.points[event.point_id];
    switch (event.kind) {
      case Event::Kind::check:
        point.checks.insert_or_assign(event.process, event);
        break;
      case Event::Kind::sample:
        if (suspect.contains({event.process, *event.round})) break;
        point.add_sample(
            {event.process, *event.round, *event.time_s, event.detail.value("cache", "warm")});
        break;
      case Event::Kind::offence:
        point.add_offence(event);
        break;
      case Event::Kind::finish:
        if (event.detail.value("status", "") == "resumed") {
          point.finish.reset();
          point.offences = point.kills = 0;
        } else {
          point.finish = event;
        }
        break;
    }
  }
  return run;
}

}  // namespace attn
