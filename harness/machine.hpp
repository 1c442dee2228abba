// SPDX-License-Identifier: MIT
// The machine under measurement: what it is, what of it may be used, how its threads are pinned and
// how much memory this process has taken.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace attn {

// Every field has a value for "could not be read": an empty string, 0, or the empty optional.
struct Machine {
  std::string cpu_model;  // "AMD EPYC 9354P"
  std::string cpu_id;     // vendor, family, model, stepping: virtual machines shorten cpu_model
  std::vector<std::string> isa;  // those of the instruction sets kernels care about, sorted
  std::vector<int> cpus;         // usable logical CPUs: one of each core first, then their siblings
  int cores = 1;                 // usable physical cores: the first `cores` entries of `cpus`
  std::optional<double> cpu_quota;  // CPUs the cgroup grants; empty: no limit
  std::string cpu_quota_from;       // "cpu.max", or "cpu.max, 2 cgroups up"; empty: no limit
  std::int64_t l1d_bytes = 0;       // of one core
  std::int64_t l2_bytes = 0;
  std::int64_t llc_bytes = 0;               // one instance of the last level
  std::int64_t llc_total_bytes = 0;         // all instances that the usable CPUs reach
  std::int64_t memory_total_bytes = 0;      // physical, or the cgroup's limit where that is lower
  std::string memory_total_from;            // "MemTotal", or "memory.max, 1 cgroup up"
  std::int64_t memory_available_bytes = 0;  // see available_memory_bytes
  bool peak_known = false;                  // whether reset_peak_rss works
  std::string governor;                     // "performance", ...
  std::string transparent_hugepage;         // "always", "madvise" or "never"
  std::string os;                           // "Debian GNU/Linux 12 (bookworm)"
  std::string kernel;                       // "Linux 6.1.0-18-amd64 x86_64"
  bool virtual_machine = false;
  bool container = false;
  double load_average = 0;  // over one minute
  int nice = 0;
  bool address_randomization = true;  // of this process
  // The variables that OpenMP and BLAS libraries read, of those that are set.
  std::map<std::string, std::string> thread_settings;

  // Threads that "all threads" means: one a core, and no more than the quota grants.
  [[nodiscard]] int default_threads() const;
  // As many as there can be: OMP_THREAD_LIMIT binds the teams of everybody here.
  [[nodiscard]] int most_threads() const;
};

// Reads /proc, /sys and /etc below `root` ("" is the real machine; tests give a folder), and the
// affinity mask that this process started with.
Machine read_machine(const std::string& root = "");

nlohmann::json to_json(const Machine& machine);

// 12 hex digits over what a timing depends on: processor, usable cores and quota, caches, memory in
// GiB, operating system. Neither host name nor kernel version: a patched kernel is the same
// machine.
std::string env_id(const Machine& machine);

// What may still be allocated: the kernel's MemAvailable, or the room that any enclosing cgroup (v1
// or v2) leaves, or that RLIMIT_AS (ulimit -v) leaves, whichever is least. Page cache that can be
// dropped counts as room. 0: unknown.
std::int64_t available_memory_bytes(const std::string& root = "");

// `fraction` of the available memory; the largest number where that is unknown.
inline constexpr double default_memory_share = 0.6;  // what --mem-limit says without being asked
std::int64_t default_mem_limit(double fraction = default_memory_share);

// The logical CPUs this process may use, in the order of Machine::cpus. Read once, before
// set_threads narrows the main thread's own mask.
const std::vector<int>& usable_cpus();

// OpenMP teams get `count` threads from here on (at least 1, at most one a usable CPU), thread i
// pinned to usable_cpus()[i]. Returns the number a team really has: OMP_THREAD_LIMIT may lower it.
// Pins only when the count or the process changed. The calling thread is pinned too, and threads or
// programs it starts inherit its one CPU; a process forked after a call with several threads must
// not use OpenMP.
int set_threads(int count);

// Undoes the pinning of the calling thread, for one that is about to start something else.
void unpin_this_thread();

// Whether a thread of this process but the calling one is running or waits for a processor; nothing
// where /proc does not say. A sleeping thread's processor time is exact; that of a running one is
// known up to the last tick of its processor's clock, some milliseconds ago.
std::optional<bool> other_threads_run();

// Resident set of this process; 0 where /proc does not say. The kernel batches its counters: expect
// an error of up to 256 KiB a thread.
std::int64_t current_rss_bytes();
std::int64_t peak_rss_bytes();

// Sets the peak back to the current value. False where the kernel does not allow it; the peak is
// then that of the whole process life.
bool reset_peak_rss(const std::string& root = "");

// The libraries in this process that keep a pool of threads (OpenMP, TBB): names as loaded, sorted.
// Two of them are two pools, and the idle threads of one may spin beside the other's.
std::vector<std::string> thread_runtimes();

struct BlasInfo {
  std::string name;      // "OpenBLAS"
  std::string version;   // "0.3.21"
  std::string core;      // the kernels it chose on this machine: "SkylakeX"
  std::string parallel;  // "sequential", "pthread" or "openmp"
  int threads = 0;       // that its next call would use
  std::string config;    // its own description, whole
};

// Empty in a build without BLAS.
std::optional<BlasInfo> blas_info();
nlohmann::json to_json(const BlasInfo& info);

}  // namespace attn
