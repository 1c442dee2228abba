// SPDX-License-Identifier: MIT
// The whole pipeline with faulty backends beside honest ones: each fault costs its row, not the
// sweep.
#include "harness/supervisor.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "harness/csv.hpp"
#include "harness/liars/liar.hpp"
#include "harness/results.hpp"
#include "harness/work.hpp"
#include "impls/cpu/naive.cpp"  // its kernel is under test
#include "tests/harness/honest.hpp"

namespace attn {
namespace {

void run_and_crash(const Problem& /*p*/, const Io& /*io*/, void* /*state*/, void* /*scratch*/) {
  raise(SIGSEGV);
}

void run_forever(const Problem& /*p*/, const Io& /*io*/, void* /*state*/, void* /*scratch*/) {
  while (true) pause();
}

void run_and_throw(const Problem& /*p*/, const Io& /*io*/, void* /*state*/, void* /*scratch*/) {
  throw std::runtime_error("library call failed: status 7");
}

// Returns at once, on as many threads as the point has; its thread writes into scratch and output
// while others are being measured, after 0, 1 or 2 ms by n.
void run_late(const Problem& p, const Io& io, void* state, void* scratch) {
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(p.n_q % 3));
    run(p, io, state, scratch);
  }).detach();
}

void run_and_poke(const Problem& p, const Io& io, void* state, void* scratch) {
  run(p, io, state, scratch);
  const_cast<float*>(io.k.row<float>(0, 0, 0))[0] += 1;
}

constexpr double own_clock_s = 1e-3;

void run_by_own_clock(const Problem& p, const Io& io, void* state, void* scratch) {
  run(p, io, state, scratch);
  std::this_thread::sleep_for(std::chrono::duration<double>(own_clock_s));
  *io.seconds = own_clock_s;
}

void run_by_wrong_clock(const Problem& p, const Io& io, void* state, void* scratch) {
  run(p, io, state, scratch);
  *io.seconds = p.n_q == 65 ? 0 : 1e3;
}

// As a terminal's Ctrl-Z and a later `fg`: one call stands still for longer than its time-out, with or
// without the supervisor.
constexpr double stop_s = 2;
bool stops_supervisor = false;
int stop_at_call = 0;      // of a process: the first verifies, those after it belong to samples
std::string stopped_once;  // a file that says so

void run_and_stop(const Problem& p, const Io& io, void* state, void* scratch) {
  static int calls = 0;  // of this process: workers are forked from one that never calls
  if (++calls == stop_at_call && !std::filesystem::exists(stopped_once)) {
    replace_file(stopped_once, "");
    const pid_t worker = getpid();
    const pid_t supervisor = getppid();
    if (fork() == 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(stop_s));
      // The supervisor may look before the worker goes on.
      if (stops_supervisor) kill(supervisor, SIGCONT);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      kill(worker, SIGCONT);
      std::_Exit(0);
    }
    if (stops_supervisor) kill(supervisor, SIGSTOP);
    raise(SIGSTOP);
  }
  run(p, io, state, scratch);
}

// Of any dtype.
void run_as_stored(const Problem& p, const Io& io, void* /*state*/, void* /*scratch*/) {
  const auto values = testing_support::answer<float>(p, Family::attention, io);
  write_row(p.dtype, values.data(), static_cast<std::int64_t>(values.size()), io.out.data);
}

// With the v of its first call.
void run_with_old_v(const Problem& p, const Io& io, void* state, void* scratch) {
  static std::vector<std::byte> kept;
  const auto* v = static_cast<const std::byte*>(io.v.data);
  if (kept.empty()) kept.assign(v, v + bytes_per_element(p.dtype) * p.batch * io.v.batch_stride);
  Io old = io;
  old.v.data = kept.data();
  run_as_stored(p, old, state, scratch);
}

Backend in_bf16(std::string_view name, decltype(Backend::run) body) {
  Backend backend = cpu_naive();
  backend.name = name;
  backend.run = body;
  backend.refuses = [](const Problem& p) -> std::optional<Refusal> {
    if (p.dtype == DType::bf16) return std::nullopt;
    return Refusal{.sentence = "computes in bf16 only"};
  };
  return backend;
}

Backend faulty(std::string_view name, decltype(Backend::run) body) {
  Backend backend = cpu_naive();
  backend.name = name;
  backend.run = body;
  return backend;
}

Backend threaded(std::string_view name, decltype(Backend::run) body) {
  Backend backend = faulty(name, body);
  backend.threaded = true;
  return backend;
}

Backend own_clock(std::string_view name, decltype(Backend::run) body) {
  Backend backend = faulty(name, body);
  backend.own_clock = true;
  return backend;
}

// One of harness/liars.
Backend liar(std::string_view name, std::string_view stem) {
  const auto found = std::find_if(liars().begin(), liars().end(),
                                  [&](const NamedLiar& named) { return named.name == stem; });
  Backend backend = found->liar.backend;
  backend.name = name;
  return backend;
}

}  // namespace

const std::vector<Entry>& registry() {
  static const std::vector<Entry> entries = {
      {"a.honest", {}, faulty("a.honest", run)},
      {"bf16.honest", {}, in_bf16("bf16.honest", run_as_stored)},
      {"bf16.old_v", {}, in_bf16("bf16.old_v", run_with_old_v)},
      {"liar.clock", {}, own_clock("liar.clock", run_by_wrong_clock)},
      {"liar.crash", {}, faulty("liar.crash", run_and_crash)},
      {"liar.flops", {}, liar("liar.flops", "half_flops")},
      {"liar.hang", {}, faulty("liar.hang", run_forever)},
      {"liar.late", {}, threaded("liar.late", run_late)},
      {"liar.moment", {}, liar("liar.moment", "returns_a_moment_early")},
      {"liar.past", {}, liar("liar.past", "reads_past")},
      {"liar.poke", {}, faulty("liar.poke", run_and_poke)},
      {"liar.scale", {}, liar("liar.scale", "missing_scale")},
      {"liar.throw", {}, faulty("liar.throw", run_and_throw)},
      {"own.clock", {}, own_clock("own.clock", run_by_own_clock)},
      {"stop.once", {}, faulty("stop.once", run_and_stop)},
      {"z.absent", "needs a toolkit: install it", {}},
      {"z.honest", {}, faulty("z.honest", run)},
  };
  return entries;
}

const std::vector<FolderFlags>& folder_flags() {
  static const std::vector<FolderFlags> flags;
  return flags;
}

namespace {

class SupervisorRun : public testing::Test {
 protected:
  SupervisorRun() {
    sweep_.dir = testing::TempDir() + "supervisor_" +
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(sweep_.dir);
    std::filesystem::create_directories(sweep_.dir);
    sweep_.run_id = "test";
    sweep_.started_utc = utc_now();
    sweep_.machine = read_machine();
    sweep_.quiet = true;
    sweep_.options.max_samples = 6;
    sweep_.options.timeout_s = 1;
    sweep_.options.mem_limit_bytes = std::int64_t{8} << 30;
  }

  void plan(std::vector<std::string> only, const std::string& n, const std::string& dtype = "f32") {
    sweep_.points = make_plan({.selection = {.only = std::move(only)},
                               .axes = {{"n", n}, {"heads", "1"}, {"dtype", dtype}},
                               .all_threads = std::min(2, static_cast<int>(usable_cpus().size())),
                               .most_threads = 2});
  }

  Status status_of(const SweepResult& result, std::string_view backend, std::int64_t n) const {
    for (const Point& p : sweep_.points) {
      if (p.entry->name == backend && p.problem.n_kv == n) {
        return result.state.points.at(p.id).status();
      }
    }
    ADD_FAILURE() << "no point of " << backend << " at " << n;
    return Status::error;
  }

  Sweep sweep_;
};

TEST_F(SupervisorRun, EachFaultCostsItsRowsAndNoOthers) {
  plan({"*"}, "65,97,130");
  const SweepResult result = run_sweep(sweep_, false);
  EXPECT_EQ(result.code, Exit::wrong);
  for (const std::int64_t n : {65, 97, 130}) {
    EXPECT_EQ(status_of(result, "a.honest", n), Status::ok);
    EXPECT_EQ(status_of(result, "z.honest", n), Status::ok);
    EXPECT_EQ(status_of(result, "liar.clock", n), Status::error);
    EXPECT_EQ(status_of(result, "liar.crash", n), Status::error);
    EXPECT_EQ(status_of(result, "liar.flops", n), Status::error);
    EXPECT_EQ(status_of(result, "liar.hang", n), Status::timeout);
    EXPECT_EQ(status_of(result, "liar.past", n), Status::error);
    EXPECT_EQ(status_of(result, "liar.poke", n), Status::error);
    EXPECT_EQ(status_of(result, "liar.scale", n), Status::mismatch);
    EXPECT_EQ(status_of(result, "liar.throw", n), Status::error);
    EXPECT_EQ(status_of(result, "z.absent", n), Status::unavailable);
    EXPECT_EQ(status_of(result, "liar.moment", n), Status::error);
    const Status late = status_of(result, "liar.late", n);
    EXPECT_TRUE(late == Status::mismatch || late == Status::error);
  }
}

TEST_F(SupervisorRun, ChecksAndGuardsIn16Bits) {
  plan({"a.honest", "bf16.*"}, "65", "bf16");
  const SweepResult result = run_sweep(sweep_, false);
  EXPECT_EQ(status_of(result, "a.honest", 65), Status::unsupported);
  EXPECT_EQ(status_of(result, "bf16.honest", 65), Status::ok);
  EXPECT_EQ(status_of(result, "bf16.old_v", 65), Status::mismatch);
}

TEST_F(SupervisorRun, EarlyReturnConvictsNobodyElse) {
  plan({"a.honest", "liar.late", "liar.moment", "z.honest"}, "64,300,500,900");
  const SweepResult result = run_sweep(sweep_, false);
  for (const std::int64_t n : {64, 300, 500, 900}) {
    EXPECT_EQ(status_of(result, "a.honest", n), Status::ok);
    EXPECT_EQ(status_of(result, "z.honest", n), Status::ok);
    for (const char* late : {"liar.late", "liar.moment"}) {
      EXPECT_NE(status_of(result, late, n), Status::ok) << late << " at " << n;
    }
  }
}

TEST_F(SupervisorRun, AStopConvictsNobodyAndIsNoSample) {
  stopped_once = sweep_.dir + "/stopped";
  for (const bool both : {false, true}) {
    for (const int call : {1, 3}) {
      stops_supervisor = both;
      stop_at_call = call;
      std::filesystem::remove_all(sweep_.dir);
      std::filesystem::create_directories(sweep_.dir);
      plan({"a.honest", "stop.once"}, "64");
      const SweepResult result = run_sweep(sweep_, false);
      EXPECT_EQ(result.code, Exit::good);
      EXPECT_TRUE(std::filesystem::exists(stopped_once));
      for (const Event& event : read_journal(sweep_.dir + "/samples.csv")) {
        EXPECT_NE(event.kind, Event::Kind::offence) << event.detail.dump();
        EXPECT_LT(event.time_s.value_or(0), stop_s) << "the stop is inside a measured call";
      }
    }
  }
  stop_at_call = 0;
}

TEST_F(SupervisorRun, AReadOutsideATensorIsNamed) {
  plan({"liar.past"}, "64");
  const SweepResult result = run_sweep(sweep_, false);
  const auto& finish = *result.state.points.at(sweep_.points[0].id).finish;
  EXPECT_EQ(finish.detail.value("rule", ""), "protected-pages");
  EXPECT_NE(finish.detail.value("reason", "").find("outside a tensor"), std::string::npos);
}

TEST_F(SupervisorRun, ABackendsOwnClockIsTheSample) {
  plan({"own.clock"}, "64");
  sweep_.points.push_back(sweep_.points[0]);
  sweep_.points[1].cache = CacheMode::cold;
  name_point(sweep_.points[1]);
  const SweepResult result = run_sweep(sweep_, false);
  const PointState& warm = result.state.points.at(sweep_.points[0].id);
  EXPECT_EQ(warm.status(), Status::ok);
  for (const double seconds : warm.times()) EXPECT_EQ(seconds, own_clock_s);
  EXPECT_NE(read_file(sweep_.dir + "/results.csv").find(",child,"), std::string::npos);
  EXPECT_EQ(result.state.points.at(sweep_.points[1].id).status(), Status::unsupported);
}

TEST_F(SupervisorRun, EveryPointHasARowWithItsReason) {
  plan({"a.honest", "liar.scale", "z.absent"}, "64");
  run_sweep(sweep_, false);
  const std::string text = read_file(sweep_.dir + "/results.csv");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_NE(text.find("needs a toolkit: install it"), std::string::npos);
  EXPECT_NE(text.find("mismatch"), std::string::npos);
}

TEST_F(SupervisorRun, FittedCurvesSpreadOverProcesses) {
  plan({"a.honest"}, "32,40,48,56,64,72,80");
  sweep_.options.processes = 3;
  sweep_.options.rounds = 6;
  const SweepResult result = run_sweep(sweep_, false);
  EXPECT_EQ(result.code, Exit::good);
  for (const Point& p : sweep_.points) {
    std::map<int, std::set<int>> rounds_of;
    for (const Sample& sample : result.state.points.at(p.id).samples) {
      rounds_of[sample.process].insert(sample.round);
    }
    EXPECT_EQ(rounds_of, (std::map<int, std::set<int>>{{0, {0, 1}}, {1, {2, 3}}, {2, {4, 5}}}));
  }
}

TEST_F(SupervisorRun, PredictedMemoryAndCutoffAnswerWithoutACall) {
  plan({"a.honest"}, "64,128,2048");
  for (Point& p : sweep_.points) p.cutoff_s = p.problem.n_kv == 2048 ? 1e-6 : 5;
  const SweepResult result = run_sweep(sweep_, false);
  EXPECT_EQ(status_of(result, "a.honest", 2048), Status::cutoff);
  EXPECT_EQ(status_of(result, "a.honest", 128), Status::ok);
  EXPECT_EQ(result.code, Exit::good);

  std::filesystem::remove_all(sweep_.dir);
  std::filesystem::create_directories(sweep_.dir);
  sweep_.options.mem_limit_bytes = 1 << 20;
  const SweepResult poor = run_sweep(sweep_, false);
  EXPECT_EQ(status_of(poor, "a.honest", 64), Status::oom_predicted);
  EXPECT_EQ(poor.code, Exit::nothing_measured);
}

TEST_F(SupervisorRun, ResumeRetriesErrorsAndKeepsSamples) {
  plan({"a.honest", "liar.crash"}, "64");
  run_sweep(sweep_, false);
  const auto before = read_journal(sweep_.dir + "/samples.csv");
  const SweepResult result = run_sweep(sweep_, true);
  const auto after = read_journal(sweep_.dir + "/samples.csv");
  EXPECT_EQ(status_of(result, "liar.crash", 64), Status::error);
  const auto samples = [&](const std::vector<Event>& events) {
    return std::count_if(events.begin(), events.end(), [&](const Event& event) {
      return event.kind == Event::Kind::sample && event.point_id == sweep_.points[0].id;
    });
  };
  EXPECT_EQ(samples(before), samples(after));
  EXPECT_GT(after.size(), before.size());
}

}  // namespace
}  // namespace attn
