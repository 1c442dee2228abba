// SPDX-License-Identifier: MIT
#include "harness/machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace attn {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t gibi = std::int64_t{1024} * 1024 * 1024;

// A machine made of files.
class FakeRoot : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::temp_directory_path() / (std::string("attn_machine_") + test->name());
    fs::remove_all(root_);
    write("/proc/meminfo", "MemTotal: 33554432 b\nMemFree: 1 b\nMemAvailable: 16777216 b\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const fs::path file = root_.string() + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  [[nodiscard]] std::string root() const { return root_.string(); }

 private:
  fs::path root_;
};

TEST_F(FakeRoot, WithoutLimitsTheKernelSaysWhatIsAvailable) {
  EXPECT_EQ(available_memory_bytes(root()), 16 * gibi);
  EXPECT_EQ(read_machine(root()).memory_total_bytes, 32 * gibi);
}

TEST_F(FakeRoot, CgroupV2LimitsMemoryAndQuota) {
  write("/proc/self/cgroup", "0::/user/job\n");
  write("/sys/fs/cgroup/user/job/memory.max", "max\n");
  write("/sys/fs/cgroup/user/memory.max", "4294967296\n");
  write("/sys/fs/cgroup/user/memory.current", "3221225472\n");
  write("/sys/fs/cgroup/user/memory.stat", "anon 5\ninactive_file 1073741824\n");
  write("/sys/fs/cgroup/user/job/cpu.max", "150000 100000\n");
  write("/sys/fs/cgroup/user/cpu.max", "max 100000\n");
  const Machine machine = read_machine(root());
  EXPECT_EQ(machine.memory_total_bytes, 4 * gibi);
  EXPECT_EQ(machine.memory_available_bytes, 2 * gibi);  // 4 - 3 + 1 that can be dropped
  ASSERT_TRUE(machine.cpu_quota.has_value());
  EXPECT_DOUBLE_EQ(*machine.cpu_quota, 1.5);
  EXPECT_EQ(machine.default_threads(), 1);
}

TEST_F(FakeRoot, TheTightestOfAllCgroupsCountsWhereverItStands) {
  write("/proc/self/cgroup", "0::/a/b/c\n");
  const std::vector<std::string> folders = {"/sys/fs/cgroup/a/b/c", "/sys/fs/cgroup/a/b",
                                            "/sys/fs/cgroup/a", "/sys/fs/cgroup"};
  const std::vector<std::string> where = {"", ", 1 cgroup up", ", 2 cgroups up", ", 3 cgroups up"};
  for (std::size_t tightest = 0; tightest < folders.size(); ++tightest) {
    for (std::size_t i = 0; i < folders.size(); ++i) {
      const std::int64_t gibis = i == tightest ? 1 : 8;
      write(folders[i] + "/memory.max", std::to_string(gibis * gibi) + "\n");
      write(folders[i] + "/memory.current", "0\n");
      write(folders[i] + "/cpu.max", i == tightest ? "50000 100000\n" : "max 100000\n");
    }
    const Machine machine = read_machine(root());
    EXPECT_EQ(machine.memory_total_bytes, gibi);
    EXPECT_EQ(machine.memory_total_from, "memory.max" + where[tightest]);
    EXPECT_EQ(machine.memory_available_bytes, gibi);
    EXPECT_EQ(machine.cpu_quota, 0.5);
    EXPECT_EQ(machine.cpu_quota_from, "cpu.max" + where[tightest]);
  }
}

TEST_F(FakeRoot, TheTightestOfBothVersionsCounts) {
  write("/proc/self/cgroup", "5:cpu:/\n4:memory:/\n0::/\n");
  write("/sys/fs/cgroup/unified/memory.max", "4294967296\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
  write("/sys/fs/cgroup/unified/cpu.max", "100000 100000\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const Machine machine = read_machine(root());
  EXPECT_EQ(machine.memory_total_bytes, 2 * gibi);
  EXPECT_EQ(machine.memory_total_from, "memory.limit_in_bytes");
  EXPECT_EQ(machine.cpu_quota, 1.0);
  EXPECT_EQ(machine.cpu_quota_from, "cpu.max");
}

TEST_F(FakeRoot, CgroupV1KnowsTheLimitsOutsideTheContainer) {
  write("/proc/self/cgroup", "4:memory:/job\n");
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1073741824\n");
  write("/sys/fs/cgroup/memory/job/memory.stat", "hierarchical_memory_limit 3221225472\n");
  const Machine machine = read_machine(root());
  EXPECT_EQ(machine.memory_total_bytes, 3 * gibi);
  EXPECT_EQ(machine.memory_total_from, "hierarchical_memory_limit");
  EXPECT_EQ(machine.memory_available_bytes, 2 * gibi);
}

TEST_F(FakeRoot, DamagedCgroupFilesAreNoLimits) {
  write("/proc/self/cgroup", "nonsense\n0::\n:\n4:memory:/../..\n");
  write("/sys/fs/cgroup/memory.max", "\n");
  write("/sys/fs/cgroup/cpu.max", "0 0\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "nonsense\n");
  const Machine machine = read_machine(root());
  EXPECT_EQ(machine.memory_total_bytes, 32 * gibi);
  EXPECT_EQ(machine.memory_total_from, "MemTotal");
  EXPECT_FALSE(machine.cpu_quota.has_value());
}

TEST_F(FakeRoot, ThePeakIsUnknownWhereItCannotBeReset) {
  EXPECT_FALSE(reset_peak_rss(root()));  // no such file
  write("/proc/self/clear_refs", "");
  EXPECT_FALSE(reset_peak_rss(root()));  // no status to read the peak from
  write("/proc/self/status", "VmHWM:\t 1234 kB\n");
  EXPECT_TRUE(reset_peak_rss(root()));
  EXPECT_TRUE(read_machine(root()).peak_known);
  Machine machine;
  EXPECT_THAT(to_json(machine).at("peak_memory"), ::testing::HasSubstr("clear_refs"));
}

TEST_F(FakeRoot, CgroupV1LimitsMemoryAndQuotaAlsoWhereThePathIsTheHosts) {
  write("/proc/self/cgroup", "5:cpuacct,cpu:/docker/abc\n4:memory:/docker/abc\n0::/\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "400000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const Machine machine = read_machine(root());
  EXPECT_EQ(machine.memory_total_bytes, 2 * gibi);
  EXPECT_EQ(machine.memory_available_bytes, gibi);
  ASSERT_TRUE(machine.cpu_quota.has_value());
  EXPECT_DOUBLE_EQ(*machine.cpu_quota, 4);
}

TEST_F(FakeRoot, UnlimitedCgroupsAreNoLimits) {
  write("/proc/self/cgroup", "4:memory:/\n1:cpu:/\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const Machine machine = read_machine(root());
  EXPECT_EQ(machine.memory_total_bytes, 32 * gibi);
  EXPECT_EQ(machine.memory_available_bytes, 16 * gibi);
  EXPECT_FALSE(machine.cpu_quota.has_value());
}

TEST_F(FakeRoot, AMachineThatSaysNothingIsStillAMachine) {
  const Machine machine = read_machine(root());
  EXPECT_EQ(machine.l1d_bytes, 0);
  EXPECT_EQ(machine.llc_bytes, 0);
  EXPECT_EQ(machine.governor, "");
  EXPECT_FALSE(machine.peak_known);
  EXPECT_GE(machine.cores, 1);
  EXPECT_FALSE(machine.virtual_machine);
  EXPECT_EQ(env_id(machine).size(), 12U);
}

TEST_F(FakeRoot, ReadsProcessorCachesAndSettings) {
  const std::string cpu = "/sys/devices/system/cpu/cpu" + std::to_string(usable_cpus().front());
  write("/proc/cpuinfo",
        "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n"
        "stepping\t: 1\nflags\t\t: fpu avx2 fma hypervisor\n");
  write(cpu + "/cache/index0/type", "Data\n");
  write(cpu + "/cache/index0/level", "1\n");
  write(cpu + "/cache/index0/size", "48K\n");
  write(cpu + "/cache/index1/type", "Instruction\n");
  write(cpu + "/cache/index1/level", "1\n");
  write(cpu + "/cache/index1/size", "64K\n");
  write(cpu + "/cache/index2/type", "Unified\n");
  write(cpu + "/cache/index2/level", "2\n");
  write(cpu + "/cache/index2/size", "1024K\n");
  write(cpu + "/cpufreq/scaling_governor", "powersave\n");
  write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  write("/etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  const Machine machine = read_machine(root());
  EXPECT_EQ(machine.cpu_model, "AMD EPYC");
  EXPECT_EQ(machine.cpu_id, "AuthenticAMD family 26 model 2 stepping 1");
  EXPECT_THAT(machine.isa, ::testing::ElementsAre("avx2", "fma"));
  EXPECT_TRUE(machine.virtual_machine);
  EXPECT_EQ(machine.l1d_bytes, 48 * 1024);
  EXPECT_EQ(machine.l2_bytes, 1024 * 1024);
  EXPECT_EQ(machine.llc_bytes, 1024 * 1024);  // the last one there is
  EXPECT_EQ(machine.governor, "powersave");
  EXPECT_EQ(machine.transparent_hugepage, "madvise");
  EXPECT_EQ(machine.os, "Debian GNU/Linux 12 (bookworm)");
}

TEST(Machine, EnvIdDependsOnWhatATimingDependsOnAndOnNothingElse) {
  Machine machine;
  machine.cpu_model = "AMD EPYC";
  machine.memory_total_bytes = 24 * gibi;
  const std::string id = env_id(machine);
  EXPECT_THAT(id, ::testing::MatchesRegex("[0-9a-f]{12}"));

  Machine same = machine;
  same.kernel = "Linux 6.1.0-99";
  same.load_average = 3;
  same.memory_available_bytes = 5;
  same.memory_total_bytes += 1024;
  EXPECT_EQ(env_id(same), id);

  Machine fewer_cores = machine;
  fewer_cores.cores = 7;
  EXPECT_NE(env_id(fewer_cores), id);
  Machine other_generation = machine;
  other_generation.cpu_id = "AuthenticAMD family 25";
  EXPECT_NE(env_id(other_generation), id);
}

TEST(Machine, JsonHasNoHostName) {
  const nlohmann::json json = to_json(read_machine());
  EXPECT_EQ(json.at("cpus").size(), usable_cpus().size());
  EXPECT_EQ(json.at("env_id"), env_id(read_machine()));
  EXPECT_FALSE(json.contains("host"));
  EXPECT_EQ(json.at("numeric_locale"), "C");
}

TEST(Machine, DefaultThreadsNeverExceedCoresOrQuota) {
  Machine machine;
  machine.cores = 4;
  EXPECT_EQ(machine.default_threads(), 4);
  machine.cpu_quota = 2.5;
  EXPECT_EQ(machine.default_threads(), 2);
  machine.cpu_quota = 0.5;
  EXPECT_EQ(machine.default_threads(), 1);
  machine.cpu_quota = 64;
  EXPECT_EQ(machine.default_threads(), 4);
}

TEST(SetThreads, PinsEveryThreadToACpuOfItsOwn) {
  const int usable = static_cast<int>(usable_cpus().size());
  for (const int wanted : {1, usable, 1, usable}) {
    const int threads = set_threads(wanted);
    ASSERT_EQ(threads, wanted);
    std::vector<int> cpu(static_cast<std::size_t>(threads), -1);
    std::vector<int> allowed(static_cast<std::size_t>(threads), 0);
#pragma omp parallel
    {
      cpu_set_t set;
      sched_getaffinity(0, sizeof set, &set);
      const auto i = static_cast<std::size_t>(omp_get_thread_num());
      cpu[i] = sched_getcpu();
      allowed[i] = CPU_COUNT(&set);
    }
    EXPECT_THAT(allowed, ::testing::Each(1));
    EXPECT_THAT(
        cpu, ::testing::ElementsAreArray(usable_cpus().begin(), usable_cpus().begin() + threads));
  }
}

TEST(SetThreads, OutOfRangeCountsAreClamped) {
  EXPECT_EQ(set_threads(0), 1);
  EXPECT_EQ(set_threads(1 << 20), static_cast<int>(usable_cpus().size()));
}

TEST(SetThreads, PinningDoesNotShrinkTheMachine) {
  const std::size_t before = usable_cpus().size();
  set_threads(1);
  EXPECT_EQ(usable_cpus().size(), before);
  EXPECT_EQ(read_machine().cpus.size(), before);
  unpin_this_thread();
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  EXPECT_EQ(static_cast<std::size_t>(CPU_COUNT(&set)), before);
}

TEST(Memory, PeakFollowsATouchedMappingAndCanBeReset) {
  constexpr std::size_t bytes = std::size_t{64} * 1024 * 1024;
  const auto touch = [] {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    std::memset(memory, 1, bytes);
    munmap(memory, bytes);
  };
  touch();
  const std::int64_t current = current_rss_bytes();
  ASSERT_GT(current, 0);
  EXPECT_GE(peak_rss_bytes(), current + static_cast<std::int64_t>(bytes) / 2);
  if (!reset_peak_rss()) GTEST_SKIP() << "this kernel does not let the peak be reset";
  EXPECT_LT(peak_rss_bytes(), current + static_cast<std::int64_t>(bytes) / 2);
  touch();
  EXPECT_GE(peak_rss_bytes(), current + static_cast<std::int64_t>(bytes) / 2);
}

TEST(Memory, DefaultLimitIsAFractionOfWhatIsAvailable) {
  const std::int64_t available = available_memory_bytes();
  ASSERT_GT(available, 0);
  const std::int64_t limit = default_mem_limit(0.5);
  EXPECT_GT(limit, available / 4);
  EXPECT_LT(limit, available);
}

TEST(Memory, AnAddressSpaceLimitCounts) {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::int64_t taken = pages * sysconf(_SC_PAGESIZE);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(taken + gibi / 2);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  const std::int64_t room = available_memory_bytes();
  setrlimit(RLIMIT_AS, &before);
  EXPECT_GT(room, 0);
  EXPECT_LE(room, gibi / 2);
}

TEST(ThreadRuntimes, AreTheLibrariesWithAPool) {
  omp_set_num_threads(1);
  EXPECT_THAT(thread_runtimes(), ::testing::Contains(::testing::MatchesRegex("lib(g|i)?omp.*")));
}

TEST(Blas, SaysWhatItIs) {
  const auto info = blas_info();
#ifdef ATTN_HAVE_BLAS
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->name, "OpenBLAS");
  EXPECT_THAT(info->version, ::testing::HasSubstr("."));
  EXPECT_EQ(info->parallel, "openmp");
  set_threads(1);
  EXPECT_EQ(blas_info()->threads, 1);
#else
  EXPECT_FALSE(info.has_value());
#endif
}

}  // namespace
}  // namespace attn
