// SPDX-License-Identifier: MIT
// The device side on the emulated device: what it finds, what it asks of the device and in which
// order, and what it says when the device fails.
#include "harness/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "harness/nvml.hpp"
#include "harness/runner.hpp"
#include "harness/work.hpp"
#include "tests/cuda_emulator/include/cuda_runtime.h"
#include "tests/cuda_emulator/runtime.hpp"

namespace attn {
namespace {

using cuda_emulator::Operation;
using testing::HasSubstr;

Problem problem(std::int64_t n = 16) {
  Problem p;
  p.heads = p.heads_kv = 2;
  p.n_q = p.n_kv = n;
  p.head_dim = p.head_dim_v = 8;
  p.memory = Memory::device;
  return p;
}

// One planted backend in a runner of its own, and all that a worker would have for it.
struct Bench {
  explicit Bench(std::string_view name, CacheMode cache = CacheMode::warm,
                 const Safeguards& rules = {}, std::int64_t n = 16)
      : shape(problem(n), Family::attention, 1, InputDist::normal, rules) {
    point.entry = &entry_called("test", name);
    point.problem = problem(n);
    point.cache = cache;
    runner = std::make_unique<Runner>(point, shape, arena, flusher, rules);
  }
  Point point;
  Shape shape;
  Arena arena{4096};
  CacheFlusher flusher{64};
  std::unique_ptr<Runner> runner;
};

struct Planted {
  const char* name;
  Status status;
  Safeguard rule;
  const char* reason;
};

class DeviceFault : public testing::TestWithParam<Planted> {};

class Device : public testing::Test {
 protected:
  void TearDown() override { cuda_emulator::renew_device(); }
};

TEST_P(DeviceFault, IsFoundAndNamed) {
  const CheckOutcome outcome = Bench(GetParam().name).runner->check();
  EXPECT_EQ(outcome.status, GetParam().status);
  ASSERT_TRUE(outcome.finding);
  EXPECT_EQ(outcome.finding->rule, GetParam().rule);
  EXPECT_THAT(outcome.finding->reason, HasSubstr(GetParam().reason));
}

TEST_P(DeviceFault, IsFoundByItsRuleAlone) {
  Safeguards without;
  without.remove(GetParam().rule);
  EXPECT_EQ(Bench(GetParam().name, CacheMode::warm, without).runner->check().status, Status::ok);
}

TEST_P(DeviceFault, IsFoundInTheClosingCall) {
  const Runner::Closed closed = Bench(GetParam().name).runner->closing_call();
  ASSERT_EQ(closed.trespass.has_value(), GetParam().status == Status::error);
  const Finding found = closed.trespass ? *closed.trespass : closed.check.finding.value();
  EXPECT_EQ(found.rule, GetParam().rule);
  EXPECT_THAT(found.reason, HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(
    All, DeviceFault,
    testing::Values(Planted{"bad.before", Status::error, Safeguard::fences,
                            "wrote before the start of a tensor on the device"},
                    Planted{"bad.past", Status::error, Safeguard::fences,
                            "wrote after the end of a tensor on the device"},
                    Planted{"bad.scratch", Status::error, Safeguard::fences,
                            "wrote after the end of the scratch on the device"},
                    Planted{"bad.poke", Status::error, Safeguard::input_hash,
                            "changed its inputs on the device"},
                    Planted{"bad.zeros", Status::mismatch, Safeguard::finite_scan, ""}),
    [](const auto& test) { return std::string(test.param.name).substr(4); });

TEST_F(Device, AnHonestBackendIsFreeOfFindings) {
  Bench bench("a.honest");
  const CheckOutcome outcome = bench.runner->check();
  EXPECT_EQ(outcome.status, Status::ok) << outcome.finding->reason;
  bench.runner->sample(1, 1e-3);
  EXPECT_FALSE(bench.runner->guard_verdict());
  const Runner::Closed closed = bench.runner->closing_call();
  EXPECT_FALSE(closed.trespass);
  EXPECT_EQ(closed.check.verdict, Check::Verdict::ok);
}

// The scratch is one for all points and moves when a larger one comes.
TEST_F(Device, PointsOfSeveralSizesShareTheScratch) {
  Bench small("a.honest", CacheMode::warm, {}, 16);
  EXPECT_EQ(small.runner->check().status, Status::ok);
  Bench large("a.honest", CacheMode::warm, {}, 48);
  for (Bench* bench : {&small, &large, &small}) {
    EXPECT_EQ(bench->runner->check().status, Status::ok);
  }
}

// What reaches the device in one sample.
std::vector<Operation> operations_of_sample(CacheMode cache) {
  Bench bench("a.honest", cache);
  EXPECT_EQ(bench.runner->check().status, Status::ok);
  std::vector<Operation> log;
  cuda_emulator::note_operations(&log);
  bench.runner->sample(0, 1e-3);
  cuda_emulator::note_operations(nullptr);
  EXPECT_FALSE(bench.runner->guard_verdict());
  return log;
}

TEST_F(Device, AColdCallFollowsAFlushAndNothingElse) {
  const std::vector<Operation> log = operations_of_sample(CacheMode::cold);
  const auto is = [](Operation::Kind kind) {
    return [=](const Operation& o) { return o.kind == kind; };
  };
  const auto start = std::find_if(log.begin(), log.end(), is(Operation::Kind::event));
  ASSERT_TRUE(start != log.begin() && start + 1 < log.end());
  EXPECT_EQ((start - 1)->kind, Operation::Kind::set);
  EXPECT_GE((start - 1)->bytes, static_cast<std::size_t>(2 * device_info()->l2_bytes));
  EXPECT_EQ((start + 1)->kind, Operation::Kind::launch);
  // The change is on the device before the flush, and no call has warmed anything.
  EXPECT_EQ((start - 2)->kind, Operation::Kind::copy);
  EXPECT_EQ(std::count_if(log.begin(), log.end(), is(Operation::Kind::event)), 2);
}

TEST_F(Device, AWarmCallFollowsAnotherAndNoFlush) {
  const std::vector<Operation> log = operations_of_sample(CacheMode::warm);
  std::string kinds;
  for (const Operation& o : log) kinds += "lcse"[static_cast<int>(o.kind)];
  EXPECT_THAT(kinds, testing::MatchesRegex("c+el+ec+el+ec+")) << "copies, a call, copies, a call";
}

TEST_F(Device, OutOfMemoryAtAnyAllocationSaysSoAndLeavesNothingBehind) {
  device_info();
  { Bench first("a.honest"); }  // takes what all points share
  const std::size_t before = cuda_emulator::allocated_bytes();
  int failures = 0;
  for (bool failed = true; failed; failures += failed ? 1 : 0) {
    cuda_emulator::device().failing_allocation = failures + 1;
    failed = false;
    try {
      Bench bench("a.honest");
    } catch (const DeviceOutOfMemory& error) {
      failed = true;
      EXPECT_THAT(error.what(), HasSubstr("out of memory"));
    }
    EXPECT_EQ(cuda_emulator::allocated_bytes(), before);
  }
  EXPECT_EQ(failures, 5) << "q, k, v, out and the state's fences";
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "no later call trips over it";
}

TEST_F(Device, AFaultSticksAndIsToldInTheRuntimesWords) {
  Bench bench("bad.fault");
  for (int i = 0; i < 2; ++i) {
    try {
      bench.runner->check();
      FAIL() << "no error";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("cudaErrorIllegalAddress: an illegal memory access was encountered"));
    }
  }
}

TEST_F(Device, HasRoofs) {
  EXPECT_GT(measure_device_roof(Roof::Kind::fma, 1e-3), 0);
  EXPECT_GT(measure_device_roof(Roof::Kind::copy, 1e-3), 0);
  EXPECT_THROW(measure_device_roof(Roof::Kind::gemm, 1e-3), std::logic_error);
}

TEST_F(Device, SaysWhatItIs) {
  const auto info = device_info();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->name, "emulated on the CPU");
  EXPECT_EQ(info->compute_capability, "8.0");
  EXPECT_EQ(info->driver, "13.0");
  EXPECT_EQ(info->memory_bytes, std::int64_t{8} << 30);
  EXPECT_EQ(device_free_bytes() + static_cast<std::int64_t>(cuda_emulator::allocated_bytes()),
            info->memory_bytes);
}

TEST_F(Device, WithoutADriverThereIsNone) {
  cuda_emulator::device().no_driver = true;
  EXPECT_FALSE(device_info());
  EXPECT_EQ(device_free_bytes(), 0);
  cuda_emulator::renew_device();
  EXPECT_TRUE(device_info());
}

// The stand-in would notice a supervisor that touches the device before it forks its workers.
TEST_F(Device, IsLostInAForkedChild) {
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  const pid_t child = fork();
  if (child == 0) _exit(cudaGetDeviceCount(&devices));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(cudaErrorInitializationError));
  EXPECT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
}

DeviceClocks clocks_with(const char* reasons) {
  setenv("NVML_EMULATOR_REASONS", reasons, 1);
  const Nvml nvml("0000:65:00.0", ATTN_NVML);
  EXPECT_EQ(nvml.missing(), "");
  return nvml.read();
}

TEST(Nvml, SaysTheClockAndWhetherTheDeviceIsHeldBack) {
  EXPECT_EQ(clocks_with("0").sm_mhz, 1410);
  for (const char* reason : {"0x4", "0x8", "0x20", "0x40", "0x80", "0x5"}) {
    EXPECT_EQ(clocks_with(reason).throttled, true) << reason;
  }
  // Nothing, idle, a clock set by an application, by a group of boards, by a display.
  for (const char* reason : {"0", "0x1", "0x2", "0x10", "0x100"}) {
    EXPECT_EQ(clocks_with(reason).throttled, false) << reason;
  }
}

TEST(Nvml, SaysWhyThereIsNoClock) {
  const Nvml absent("0000:65:00.0", "libnvidia-absent.so.1");
  EXPECT_THAT(absent.missing(), HasSubstr("libnvidia-absent.so.1"));
  EXPECT_FALSE(absent.read().sm_mhz);
  EXPECT_FALSE(absent.read().throttled);
  EXPECT_THAT(Nvml("0000:66:00.0", ATTN_NVML).missing(), HasSubstr("Not Found"));
  EXPECT_THAT(Nvml("0000:65:00.0", "libc.so.6").missing(), HasSubstr("lacks a function"));
}

}  // namespace
}  // namespace attn
