// SPDX-License-Identifier: MIT
// One suite: every built backend of the tree, on every problem of its family.
#include <fmt/format.h>
#include <fnmatch.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "harness/device.hpp"
#include "harness/registry.hpp"
#include "harness/work.hpp"
#include "tests/impls/check.hpp"

namespace attn::test {
namespace {

struct Point {
  Entry entry;
  Case problem_case;
};

std::vector<Point> points() {
  std::vector<Point> all;
  for (const Entry& entry : registry()) {
    if (!entry.built()) continue;
    for (const Case& c : cases_of(entry.backend)) {
      all.push_back({entry, c});
      all.back().problem_case.problem.memory = entry.backend.memory;
    }
  }
  return all;
}

std::string point_name(const Point& point) {
  std::string name = fmt::format("{}_{}", point.entry.name, point.problem_case.name);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

void PrintTo(const Point& point, std::ostream* out) { *out << point_name(point); }

// One line of must_run.csv: where the build has the feature, no backend that matches may refuse a
// case that matches.
struct MustRun {
  std::string feature, backend, problem;
  [[nodiscard]] bool matches(const Point& point) const {
    return fnmatch(backend.c_str(), std::string(point.entry.name).c_str(), 0) == 0 &&
           fnmatch(problem.c_str(), point.problem_case.name.c_str(), 0) == 0;
  }
};

// A folder is a feature of the build where one of its backends is built.
bool has_feature(const std::string& feature) {
  const std::vector<Entry>& entries = registry();
  return feature == "any" || std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
           return entry.built() && std::string(entry.name).starts_with(feature + ".");
         });
}

std::vector<MustRun> must_run() {
  std::ifstream file(ATTN_MUST_RUN);
  std::vector<MustRun> lines;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    MustRun rule;
    std::getline(fields, rule.feature, ',');
    std::getline(fields, rule.backend, ',');
    std::getline(fields, rule.problem, ',');
    lines.push_back(rule);
  }
  return lines;
}

// One line of known_faults.csv: what another project's library is known to get wrong, in words.
struct KnownFault {
  std::string backend, problem, sentence;
};

const std::vector<KnownFault>& known_faults() {
  static const std::vector<KnownFault> faults = [] {
    std::vector<KnownFault> lines;
    std::ifstream file(ATTN_KNOWN_FAULTS);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      KnownFault fault;
      std::getline(fields, fault.backend, ',');
      std::getline(fields, fault.problem, ',');
      std::getline(fields, fault.sentence);
      lines.push_back(fault);
    }
    return lines;
  }();
  return faults;
}

const KnownFault* known_fault(const Point& point) {
  for (const KnownFault& fault : known_faults()) {
    if (fault.backend == point.entry.name && fault.problem == point.problem_case.name) {
      return &fault;
    }
  }
  return nullptr;
}

// What was expected to fail and did not must leave the list.
void skip_if_it_fails(const KnownFault& fault, const std::function<void()>& check) {
  testing::TestPartResultArray results;
  {
    testing::ScopedFakeTestPartResultReporter catches(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    check();
  }
  for (int i = 0; i < results.size(); ++i) {
    if (results.GetTestPartResult(i).failed()) GTEST_SKIP() << "known fault: " << fault.sentence;
  }
  FAIL() << "passes, but known_faults.csv says: " << fault.sentence << "; take the line out";
}

class Conformance : public testing::TestWithParam<Point> {};

TEST_P(Conformance, MatchesTheReference) {
  const Backend& backend = GetParam().entry.backend;
  const Case& c = GetParam().problem_case;
  if (const auto refusal = refuses(backend, c.problem)) {
    EXPECT_FALSE(refusal->sentence.empty()) << "a refusal is a sentence";
    for (const MustRun& rule : must_run()) {
      if (has_feature(rule.feature) && rule.matches(GetParam())) {
        FAIL() << "must run (" << rule.backend << ", " << rule.problem
               << "), but refuses: " << refusal->sentence;
      }
    }
    GTEST_SKIP() << refusal->sentence;
  }
  const Cost declared = cost(backend, c.problem);
  EXPECT_GE(declared.flops, flops_model(c.problem, backend.family));
  if (backend.memory == Memory::device) {
    const Tensors tensors(c, backend);
    return check_device_run(tensors, backend, Expected(c, backend, tensors));
  }
  const auto check = [&] {
    check_run(c, backend, declared,
              [&](const Problem& p, const Io& io, void* state, void* scratch) {
                run(backend, p, io, state, scratch);
              });
  };
  if (const KnownFault* fault = known_fault(GetParam())) return skip_if_it_fails(*fault, check);
  check();
}

INSTANTIATE_TEST_SUITE_P(EveryBackend, Conformance, testing::ValuesIn(points()),
                         [](const auto& point) { return point_name(point.param); });

// One call, then nineteen more with the scratch that the one before left: the same bits each time. The
// last of them have another thread that keeps a core busy.
TEST(Repeat, TheSameBitsInTwentyRuns) {
  for (const Entry& entry : registry()) {
    if (!entry.built() || entry.backend.memory != Memory::host) continue;
    if (entry.backend.family != Family::attention) continue;
    for (const auto& [n_q, n, dtype] :
         {std::tuple<std::int64_t, std::int64_t, DType>{48, 48, DType::f32},
          {77, 77, DType::f32},
          {7, 177, DType::f32},
          {177, 177, DType::f32},
          {177, 177, DType::bf16}}) {
      for (const int threads : {1, 2}) {
        SCOPED_TRACE(fmt::format("{}, n = {}, {} threads", entry.name, n, threads));
        const Case c = core_case("repeat", n_q, [&, n_q = n_q, n = n, dtype = dtype](Case& wanted) {
          set_heads(wanted, 4, n_q < n ? 1 : 2), set_dims(wanted, 32, 32);
          wanted.problem.n_kv = n;
          wanted.problem.mask = n % 2 == 0 ? Mask::none : Mask::causal;
          wanted.problem.threads = threads;
          wanted.problem.dtype = dtype;
        });
        if (refuses(entry.backend, c.problem)) continue;
        const Cost declared = cost(entry.backend, c.problem);
        const Scratch scratch(declared.scratch_bytes);
        const FencedBuffer state(static_cast<std::size_t>(declared.state_bytes));
        prepare(entry.backend, c.problem, {}, state.data());
        omp_set_num_threads(threads);
        std::vector<float> first;
        for (int call = 0; call < 20; ++call) {
          const Tensors tensors(c, entry.backend);
          std::atomic<bool> stop{call < 10};
          std::thread busy([&] {
            while (!stop) continue;
          });
          run(entry.backend, c.problem, tensors.io, state.data(), scratch.data());
          stop = true;
          busy.join();
          const std::vector<float> values = values_of(tensors.result());
          if (call == 0) first = values;
          ASSERT_EQ(std::memcmp(values.data(), first.data(), first.size() * sizeof(float)), 0)
              << "call " << call;
        }
      }
    }
  }
}

TEST(MustRun, EveryLineNamesSomethingThatExists) {
  const std::vector<MustRun> rules = must_run();
  ASSERT_FALSE(rules.empty()) << "no rules in " << ATTN_MUST_RUN;
  const std::vector<Point> all = points();
  for (const MustRun& rule : rules) {
    if (!has_feature(rule.feature)) continue;
    EXPECT_TRUE(std::any_of(all.begin(), all.end(),
                            [&](const Point& point) { return rule.matches(point); }))
        << rule.backend << ", " << rule.problem << " matches no backend or no case";
  }
}

TEST(KnownFaults, AreThoseOfPeersAndOfCasesThatExist) {
  ASSERT_FALSE(known_faults().empty()) << "no faults in " << ATTN_KNOWN_FAULTS;
  const auto is_peer = [](const Entry& entry) { return entry.peer; };
  if (std::none_of(registry().begin(), registry().end(), is_peer)) {
    GTEST_SKIP() << "this list has no peers";
  }
  std::vector<Case> cases = core_cases();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (Case& c : cases_in_16_bits(dtype)) cases.push_back(std::move(c));
  }
  for (const KnownFault& fault : known_faults()) {
    EXPECT_FALSE(fault.sentence.empty()) << fault.backend << ", " << fault.problem;
    EXPECT_TRUE(std::any_of(cases.begin(), cases.end(),
                            [&](const Case& c) { return c.name == fault.problem; }))
        << fault.problem << " is no case";
    EXPECT_TRUE(
        std::any_of(registry().begin(), registry().end(),
                    [&](const Entry& entry) { return entry.peer && entry.name == fault.backend; }))
        << fault.backend << " is no peer: our own backends have no known faults";
  }
}

TEST(Registry, HostBackendsRefuseWhatTheyDoNotDo) {
  for (const Entry& entry : registry()) {
    if (!entry.built() || entry.backend.memory != Memory::host) continue;
    const Backend& backend = entry.backend;
    for (Case c : cases_for(backend.family)) {
      c.problem.memory = Memory::device;
      const auto refusal = refuses(backend, c.problem);
      ASSERT_TRUE(refusal.has_value()) << entry.name << ", " << c.name;
    }
  }
}

TEST(Registry, RecurrencesRefuseCoreScopeAndDecode) {
  int seen = 0;
  for (const Entry& entry : registry()) {
    if (!entry.built() || gates(entry.backend.family) == 0) continue;
    ++seen;
    Problem p = recurrence_cases().back().problem;
    p.regime = Regime::decode;
    ASSERT_TRUE(refuses(entry.backend, p).has_value()) << entry.name;
    p.regime = Regime::prefill;
    p.scope = Scope::core;
    ASSERT_TRUE(refuses(entry.backend, p).has_value()) << entry.name;
  }
  int named = 0;
  for (const MustRun& rule : must_run()) {
    const bool recurrence = rule.backend.ends_with(".rnn") || rule.backend.ends_with(".lstm");
    if (recurrence && has_feature(rule.feature)) ++named;
  }
  EXPECT_GE(seen, named) << "fewer than must_run.csv names";
}

// Device backends have nowhere to run on most machines: then each must say what is missing, in the
// driver's own words, and the harness must know no device either.
TEST(Registry, DeviceBackendsAreUnavailableWithoutADevice) {
  if (const auto device = device_info()) GTEST_SKIP() << "there is a device: " << device->name;
  for (const Entry& entry : registry()) {
    if (!entry.built() || entry.backend.memory != Memory::device) continue;
    const auto refusal = refuses(entry.backend, core_cases().front().problem);
    ASSERT_TRUE(refusal.has_value()) << entry.name;
    EXPECT_EQ(refusal->kind, Refusal::Kind::unavailable) << entry.name;
    EXPECT_NE(refusal->sentence.find("CUDA"), std::string::npos) << refusal->sentence;
  }
}

TEST(Registry, NamesAreFolderAndStem) {
  for (const Entry& entry : registry()) {
    if (entry.built()) {
      EXPECT_EQ(entry.name, entry.backend.name);
    }
  }
}

}  // namespace
}  // namespace attn::test
