// SPDX-License-Identifier: MIT
// The test of the detectors: every synchronisation of every kernel is removed in turn, and something
// must notice. `schedules` runs the orders of the emulator, `sanitizer` (in a build with the thread
// sanitizer) starts a process for each removal. Both print a table as CSV and end with 1 when a
// removal is not noticed by what expected.csv says of it, or a kernel as it stands is.
#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cuda_emulator/emulator.hpp"
#include "tests/cuda_emulator/subjects.hpp"

namespace attn::test {
namespace {

using cuda_emulator::AsyncCopies;
using cuda_emulator::Options;
using cuda_emulator::options;
using cuda_emulator::Schedule;

// Seven tiles of 32 keys, four of 64, the last one ragged.
constexpr int tokens = 200;

// What is wrong under these options, causal or not, whenever the bytes of copies move.
std::string fault(const Subject& subject, Options wanted) {
  for (const AsyncCopies copies : {AsyncCopies::lazy, AsyncCopies::eager}) {
    for (const bool causal : {false, true}) {
      wanted.async_copies = copies;
      options() = wanted;
      std::string wrong = subject.fault(tokens, causal);
      options() = {};
      if (!wrong.empty()) return wrong;
    }
  }
  return {};
}

// What a removal does to a kernel, by the source of its line: "nothing" in a kernel that does not
// need it, "race" where no order of the emulator gives wrong values.
struct Expected {
  std::string file, source, what;
};

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// file,source,what,reason; a source or a reason has no comma.
std::vector<Expected> expectations() {
  std::vector<Expected> all;
  const std::vector<std::string> lines =
      lines_of(ATTN_SOURCE_DIR "/tests/cuda_emulator/expected.csv");
  for (std::size_t l = 1; l < lines.size(); ++l) {
    std::array<std::string, 3> fields;
    std::size_t begin = 0;
    for (std::string& field : fields) {
      const std::size_t end = lines[l].find(',', begin);
      field = lines[l].substr(begin, end - begin);
      begin = end + 1;
    }
    all.push_back({fields[0], fields[1], fields[2]});
  }
  return all;
}

// A synchronisation of one kernel.
struct Removal {
  const Subject* subject;
  std::string line;  // "tiled.cu:93"
  std::string_view word;
  std::string what;  // of its expectation; empty: wrong values
};

std::string source_of(const std::string& line) {
  const std::size_t colon = line.find(':');
  for (const char* folder : {"impls/cuda", "impls/support", "tests/cuda_emulator/kernels"}) {
    const std::vector<std::string> lines =
        lines_of(fmt::format("{}/{}/{}", ATTN_SOURCE_DIR, folder, line.substr(0, colon)));
    const std::size_t number = std::stoul(line.substr(colon + 1));
    if (number <= lines.size()) return lines[number - 1];
  }
  throw std::runtime_error("no source of " + line);
}

// Runs the kernel as it stands, which must be right, and looks where it waits.
std::vector<Removal> removals(const Subject& subject) {
  const auto before = cuda_emulator::synchronisations_met();
  const std::string wrong = fault(subject, {});
  if (!wrong.empty()) throw std::runtime_error(subject.name + " as it stands: " + wrong);
  const std::vector<Expected> expected = expectations();
  std::vector<Removal> all;
  for (const auto& [line, site] : cuda_emulator::synchronisations_met()) {
    if (before.contains(line)) continue;
    Removal removal{&subject, line, site.word, {}};
    const std::string source = source_of(line);
    for (const Expected& known : expected) {
      if (line.starts_with(known.file + ":") && source.find(known.source) != std::string::npos) {
        removal.what = known.what;
      }
    }
    all.push_back(removal);
  }
  return all;
}

// How many seeds of a schedule give wrong values or an Error without the synchronisation.
int noticed(const Removal& removal, Schedule schedule, int seeds) {
  int count = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    if (!fault(*removal.subject, {.schedule = schedule,
                                  .seed = static_cast<std::uint64_t>(seed),
                                  .removed = removal.line})
             .empty()) {
      ++count;
    }
  }
  return count;
}

int complain(const Removal& removal, std::string_view problem) {
  fmt::print(stderr, "{}: without {} ({}): {}\n", removal.subject->name, removal.word, removal.line,
             problem);
  return 1;
}

int schedules(const std::vector<Subject>& subjects) {
  int code = 0;
  fmt::print("kernel,line,word,expected,in_order,reverse,random,greedy\n");
  for (const Subject& subject : subjects) {
    for (const Removal& removal : removals(subject)) {
      const std::array<int, 4> by = {
          noticed(removal, Schedule::in_order, 1), noticed(removal, Schedule::reverse, 1),
          noticed(removal, Schedule::random, 5), noticed(removal, Schedule::greedy, 5)};
      fmt::print("{},{},{},{},{},{},{},{}\n", subject.name, removal.line, removal.word,
                 removal.what.empty() ? "values" : removal.what, by[0], by[1], by[2], by[3]);
      std::fflush(stdout);
      const bool any = by[0] + by[1] + by[2] + by[3] > 0;
      if (!any && removal.what.empty()) {
        code = complain(removal, "right in every order, and expected.csv does not say why");
      }
      if (any && !removal.what.empty()) {
        code = complain(removal, "wrong values, and expected.csv says otherwise");
      }
    }
  }
  return code;
}

// Another process that runs the kernel once: the sanitizer's reports are its exit code. Its options
// are not those of preset `thread`: with ignore_noninstrumented_modules no memcpy is seen, also none
// that copies a struct.
enum class Outcome { silent, wrong, reported };
Outcome outcome_of(const std::string& self, const std::string& subject, const std::string& line) {
  constexpr int reported = 66;
  const std::string command = fmt::format(
      "TSAN_OPTIONS='exitcode={} halt_on_error=1' "
      "'{}' one {} {} >/dev/null 2>&1",
      reported, self, subject, line);
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code != 0 && code != 1 && code != reported) {
    throw std::runtime_error(fmt::format("{} ends with {}", command, code));
  }
  return code == 0 ? Outcome::silent : code == 1 ? Outcome::wrong : Outcome::reported;
}

int sanitizer(const std::vector<Subject>& subjects, const std::string& self) {
  int code = 0;
  fmt::print("kernel,line,sanitizer\n");
  for (const Subject& subject : subjects) {
    if (outcome_of(self, subject.name, "none") != Outcome::silent) {
      throw std::runtime_error(subject.name + " as it stands is wrong, or reported");
    }
    for (const Removal& removal : removals(subject)) {
      const Outcome outcome = outcome_of(self, subject.name, removal.line);
      fmt::print("{},{},{}\n", subject.name, removal.line,
                 outcome == Outcome::reported ? "reported"
                 : outcome == Outcome::wrong  ? "wrong values"
                                              : "silent");
      std::fflush(stdout);
      if (outcome == Outcome::silent && removal.what != "nothing") {
        code = complain(removal, "neither wrong nor reported");
      }
      if (outcome != Outcome::silent && removal.what == "nothing") {
        code = complain(removal, "noticed, and expected.csv says that it is redundant");
      }
    }
  }
  return code;
}

int one(const std::vector<Subject>& subjects, const std::string& name, const std::string& line) {
  for (const Subject& subject : subjects) {
    if (subject.name == name) return fault(subject, {.removed = line}).empty() ? 0 : 1;
  }
  return 2;
}

int run(const std::vector<std::string>& arguments) {
  std::vector<Subject> subjects = emulated_backends();
  for (const Subject& subject : test_kernels()) subjects.push_back(subject);
  const std::string mode = arguments.size() < 2 ? "" : arguments[1];
  if (arguments.size() == 2 && mode == "schedules") return schedules(subjects);
  if (arguments.size() == 2 && mode == "sanitizer") return sanitizer(subjects, arguments[0]);
  if (arguments.size() == 4 && mode == "one") return one(subjects, arguments[2], arguments[3]);
  fmt::print(stderr, "usage: mutation schedules | sanitizer | one KERNEL FILE:LINE\n");
  return 2;
}

}  // namespace
}  // namespace attn::test

int main(int argc, char** argv) {
  try {
    return attn::test::run({argv, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "mutation: {}\n", error.what());
    return 3;
  }
}
