// SPDX-License-Identifier: MIT
#include "harness/machine.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <omp.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>

#include "harness/text.hpp"

#ifdef ATTN_HAVE_BLAS
#include <cblas.h>
#endif

namespace attn {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\"");
  if (first == std::string_view::npos) return {};
  const auto last = text.find_last_not_of(" \t\"");
  return std::string(text.substr(first, last - first + 1));
}

// The number a line starts with, times 1024 or 1024^2 where a K or an M follows.
std::optional<std::int64_t> to_bytes(const std::string& text) {
  char* end = nullptr;
  const long long number = std::strtoll(text.c_str(), &end, 10);
  if (end == text.c_str()) return std::nullopt;
  const std::int64_t unit = *end == 'K' ? 1024 : *end == 'M' ? 1024 * 1024 : 1;
  return number * unit;
}

// "Key : value" files; the first occurrence counts (cpuinfo repeats its block for every CPU).
std::map<std::string, std::string> fields(const std::string& path, char separator) {
  std::map<std::string, std::string> result;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto at = line.find(separator);
    if (at == std::string::npos) continue;
    result.emplace(trimmed(std::string_view(line).substr(0, at)),
                   trimmed(std::string_view(line).substr(at + 1)));
  }
  return result;
}

std::string field(const std::map<std::string, std::string>& fields, const std::string& key) {
  const auto found = fields.find(key);
  return found == fields.end() ? std::string() : found->second;
}

// A line of /proc/meminfo or /proc/self/status: "VmHWM:  1234 b".
std::int64_t kilobytes(const std::string& path, const std::string& key) {
  return to_bytes(field(fields(path, ':'), key)).value_or(0) * 1024;
}

std::vector<int> affinity_of_this_thread() {
  // 8192 CPUs: the fixed cpu_set_t ends at 1024 and the call fails on larger machines.
  constexpr int max_cpus = 8192;
  std::vector<int> cpus;
  cpu_set_t* set = CPU_ALLOC(max_cpus);
  const std::size_t size = CPU_ALLOC_SIZE(max_cpus);
  CPU_ZERO_S(size, set);
  if (sched_getaffinity(0, size, set) == 0) {
    for (int cpu = 0; cpu < max_cpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), size, set)) cpus.push_back(cpu);
    }
  }
  CPU_FREE(set);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

bool pin_this_thread(const std::vector<int>& cpus) {
  const int max_cpus = *std::max_element(cpus.begin(), cpus.end()) + 1;
  cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(max_cpus));
  const std::size_t size = CPU_ALLOC_SIZE(static_cast<std::size_t>(max_cpus));
  CPU_ZERO_S(size, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), size, set);
  const bool pinned = sched_setaffinity(0, size, set) == 0;
  CPU_FREE(set);
  return pinned;
}

// The mask at the start of the process. Under OMP_PROC_BIND the OpenMP runtime has narrowed the
// main thread before main began; its places still hold what it saw.
const std::vector<int>& initial_affinity() {
  static const std::vector<int> cpus = [] {
    std::set<int> all;
    for (int place = 0; place < omp_get_num_places(); ++place) {
      std::vector<int> ids(static_cast<std::size_t>(omp_get_place_num_procs(place)));
      if (!ids.empty()) omp_get_place_proc_ids(place, ids.data());
      all.insert(ids.begin(), ids.end());
    }
    return all.empty() ? affinity_of_this_thread() : std::vector<int>(all.begin(), all.end());
  }();
  return cpus;
}

std::string cpu_folder(const std::string& root, int cpu) {
  return fmt::format("{}/sys/devices/system/cpu/cpu{}", root, cpu);
}

// One CPU of each core first, so that two threads never share a core while another is free.
std::pair<std::vector<int>, int> cores_first(const std::string& root,
                                             const std::vector<int>& cpus) {
  std::vector<int> first;
  std::vector<int> siblings;
  std::set<std::string> seen;
  for (const int cpu : cpus) {
    std::string core = first_line(cpu_folder(root, cpu) + "/topology/thread_siblings_list");
    if (core.empty()) core = fmt::format("cpu {}", cpu);
    (seen.insert(core).second ? first : siblings).push_back(cpu);
  }
  const int cores = static_cast<int>(first.size());
  first.insert(first.end(), siblings.begin(), siblings.end());
  return {first, cores};
}

void read_caches(const std::string& root, Machine& machine) {
  std::map<int, std::set<std::string>> instances;  // by level: the CPU lists that share one
  std::map<int, std::int64_t> size;
  for (const int cpu : machine.cpus) {
    for (int index = 0; index < 16; ++index) {
      const std::string cache = fmt::format("{}/cache/index{}", cpu_folder(root, cpu), index);
      if (!exists(cache)) break;
      if (first_line(cache + "/type") == "Instruction") continue;
      const int level = std::atoi(first_line(cache + "/level").c_str());
      const auto bytes = to_bytes(first_line(cache + "/size"));
      if (level <= 0 || !bytes) continue;
      size[level] = std::max(size[level], *bytes);
      instances[level].insert(first_line(cache + "/shared_cpu_list"));
    }
  }
  if (size.empty() && root.empty()) {  // glibc asks the processor itself
    const std::array<std::pair<int, int>, 4> names = {{{1, _SC_LEVEL1_DCACHE_SIZE},
                                                       {2, _SC_LEVEL2_CACHE_SIZE},
                                                       {3, _SC_LEVEL3_CACHE_SIZE},
                                                       {4, _SC_LEVEL4_CACHE_SIZE}}};
    for (const auto& [level, name] : names) {
      if (const long bytes = sysconf(name); bytes > 0) size[level] = bytes;
    }
  }
  if (size.empty()) return;
  const auto last = size.rbegin();
  machine.l1d_bytes = size.count(1) != 0 ? size[1] : 0;
  machine.l2_bytes = size.count(2) != 0 ? size[2] : 0;
  machine.llc_bytes = last->second;
  const auto shared = instances.find(last->first);
  const std::size_t count = shared == instances.end() ? 1 : shared->second.size();
  machine.llc_total_bytes = last->second * static_cast<std::int64_t>(count);
}

struct CgroupFolder {
  std::string path;
  int levels_up = 0;  // from this process's own

  // Names a file without the folder, whose name may be a user's or a machine's.
  [[nodiscard]] std::string describe(std::string_view file) const {
    if (levels_up == 0) return std::string(file);
    return fmt::format("{}, {} cgroup{} up", file, levels_up, levels_up == 1 ? "" : "s");
  }
};

// The folders of this process's cgroup and of all that enclose it, for one controller ("" is v2).
// Inside a container the path that the kernel names may not exist: its ancestors then still lead to
// the root.
std::vector<CgroupFolder> cgroup_folders(const std::string& root, const std::string& controller) {
  std::string path;
  bool found = false;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controller.empty() ? names == ",,"
                           : names.find("," + controller + ",") != std::string::npos) {
      path = line.substr(second + 1);
      found = true;
      break;
    }
  }
  if (!found) return {};
  std::vector<std::string> mounts;
  for (const char* name : {"", "/unified", "/memory", "/cpu", "/cpu,cpuacct", "/cpuacct,cpu"}) {
    const bool v2 = name == std::string_view("") || name == std::string_view("/unified");
    if (v2 == controller.empty() && (v2 || std::string_view(name).find(controller) < 2)) {
      mounts.push_back(root + "/sys/fs/cgroup" + name);
    }
  }
  std::vector<CgroupFolder> folders;
  for (const std::string& mount : mounts) {
    std::string at = path;
    for (int levels_up = 0;; ++levels_up, at.resize(at.rfind('/'))) {
      while (!at.empty() && at.back() == '/') at.pop_back();
      folders.push_back({mount + at, levels_up});
      if (at.empty()) break;
    }
  }
  return folders;
}

// What v1 says instead of "no limit" is a little less than 2^63.
constexpr std::int64_t unlimited_v1 = std::int64_t{1} << 62;

struct CgroupMemory {
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  std::int64_t room = std::numeric_limits<std::int64_t>::max();
  std::string from;  // which file sets the limit; empty: none
};

CgroupMemory cgroup_memory(const std::string& root) {
  struct Names {
    const char* controller;
    const char* limit;
    const char* usage;
    const char* droppable;
  };
  constexpr std::array<Names, 2> versions = {
      {{"", "/memory.max", "/memory.current", "inactive_file"},
       {"memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"}}};
  CgroupMemory memory;
  for (const Names& names : versions) {
    for (const CgroupFolder& folder : cgroup_folders(root, names.controller)) {
      const auto limit = to_bytes(first_line(folder.path + names.limit));  // "max" is no number
      const auto statistics = fields(folder.path + "/memory.stat", ' ');
      // v1 also says the least of all that enclose it, those outside the container included.
      const auto enclosing = to_bytes(field(statistics, "hierarchical_memory_limit"));
      const std::int64_t usage = to_bytes(first_line(folder.path + names.usage)).value_or(0);
      const std::int64_t droppable = to_bytes(field(statistics, names.droppable)).value_or(0);
      for (const auto& [bytes, file] :
           {std::pair{limit, names.limit + 1}, std::pair{enclosing, "hierarchical_memory_limit"}}) {
        if (!bytes) continue;
        if (*bytes < memory.limit) memory.from = folder.describe(file);
        memory.limit = std::min(memory.limit, *bytes);
        memory.room = std::min(memory.room, std::max<std::int64_t>(0, *bytes - usage + droppable));
      }
    }
  }
  return memory;
}

void read_quota(const std::string& root, Machine& machine) {
  const auto take = [&](double quota, double period, const std::string& from) {
    if (quota <= 0 || period <= 0) return;
    if (machine.cpu_quota && *machine.cpu_quota <= quota / period) return;
    machine.cpu_quota = quota / period;
    machine.cpu_quota_from = from;
  };
  for (const CgroupFolder& folder : cgroup_folders(root, "")) {
    std::istringstream line(first_line(folder.path + "/cpu.max"));  // "200000 100000", "max 100000"
    double quota = 0;
    double period = 0;
    if (line >> quota >> period) take(quota, period, folder.describe("cpu.max"));
  }
  for (const CgroupFolder& folder : cgroup_folders(root, "cpu")) {
    take(std::atof(first_line(folder.path + "/cpu.cfs_quota_us").c_str()),
         std::atof(first_line(folder.path + "/cpu.cfs_period_us").c_str()),
         folder.describe("cpu.cfs_quota_us"));
  }
}

// What of RLIMIT_AS is left; the largest number without such a limit.
std::int64_t address_space_room() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<std::int64_t>::max();
  }
  const std::int64_t taken = kilobytes("/proc/self/status", "VmSize");
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(limit.rlim_cur) - taken);
}

void read_processor(const std::string& root, Machine& machine) {
  const auto cpuinfo = fields(root + "/proc/cpuinfo", ':');
  machine.cpu_model = field(cpuinfo, "model name");
  if (const std::string vendor = field(cpuinfo, "vendor_id"); !vendor.empty()) {
    machine.cpu_id =
        fmt::format("{} family {} model {} stepping {}", vendor, field(cpuinfo, "cpu family"),
                    field(cpuinfo, "model"), field(cpuinfo, "stepping"));
  } else if (const std::string part = field(cpuinfo, "CPU part"); !part.empty()) {
    machine.cpu_id = fmt::format("implementer {} part {} variant {} revision {}",
                                 field(cpuinfo, "CPU implementer"), part,
                                 field(cpuinfo, "CPU variant"), field(cpuinfo, "CPU revision"));
  }
  if (machine.cpu_model.empty()) machine.cpu_model = machine.cpu_id;

  const std::string flags = field(cpuinfo, "flags") + " " + field(cpuinfo, "Features");
  static const std::set<std::string> wanted = {
      "avx",      "avx2",        "fma",         "f16c",        "avx512f",  "avx512bw", "avx512vl",
      "avx512dq", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16",
      "asimd",    "asimdhp",     "sve",         "sve2",        "bf16",     "svebf16"};
  std::istringstream words(flags);
  std::set<std::string> found;
  for (std::string word; words >> word;) {
    if (wanted.count(word) != 0) found.insert(word);
    if (word == "hypervisor") machine.virtual_machine = true;
  }
  machine.isa.assign(found.begin(), found.end());
}

void read_system(const std::string& root, Machine& machine) {
  machine.governor =
      first_line(cpu_folder(root, machine.cpus.front()) + "/cpufreq/scaling_governor");
  const std::string thp = first_line(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  const auto open = thp.find('[');
  const auto close = thp.find(']');
  if (open != std::string::npos && close != std::string::npos) {
    machine.transparent_hugepage = thp.substr(open + 1, close - open - 1);
  }
  machine.os = field(fields(root + "/etc/os-release", '='), "PRETTY_NAME");
  utsname name{};
  if (uname(&name) == 0) {
    machine.kernel = fmt::format("{} {} {}", name.sysname, name.release, name.machine);
    if (machine.os.empty()) machine.os = name.sysname;
  }
  if (exists(root + "/sys/hypervisor/type")) machine.virtual_machine = true;
  const std::string product = first_line(root + "/sys/class/dmi/id/product_name") +
                              first_line(root + "/sys/class/dmi/id/sys_vendor");
  for (const char* sign :
       {"KVM", "QEMU", "VMware", "VirtualBox", "Virtual Machine", "Amazon EC2"}) {
    if (product.find(sign) != std::string::npos && product.find(".metal") == std::string::npos) {
      machine.virtual_machine = true;
    }
  }
  machine.container = exists(root + "/.dockerenv") || exists(root + "/run/.containerenv");
  machine.load_average = std::atof(first_line(root + "/proc/loadavg").c_str());
  machine.nice = getpriority(PRIO_PROCESS, 0);
  machine.address_randomization = (personality(0xffffffff) & ADDR_NO_RANDOMIZE) == 0;
  for (const char* variable :
       {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_DYNAMIC", "OMP_PROC_BIND", "OMP_PLACES",
        "OMP_SCHEDULE", "OMP_STACKSIZE", "OMP_WAIT_POLICY", "OMP_MAX_ACTIVE_LEVELS", "OMP_NESTED",
        "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE",
        "GOTO_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"}) {
    if (const char* value = std::getenv(variable))
      machine.thread_settings[variable] = printable(value);
  }
}

}  // namespace

int Machine::default_threads() const {
  if (!cpu_quota) return cores;
  return std::clamp(static_cast<int>(*cpu_quota), 1, cores);
}

int Machine::most_threads() const {
  return std::min(static_cast<int>(cpus.size()), omp_get_thread_limit());
}

Machine read_machine(const std::string& root) {
  Machine machine;
  read_processor(root, machine);
  std::tie(machine.cpus, machine.cores) = cores_first(root, initial_affinity());
  read_quota(root, machine);
  read_caches(root, machine);
  machine.memory_total_bytes = kilobytes(root + "/proc/meminfo", "MemTotal");
  machine.memory_total_from = machine.memory_total_bytes > 0 ? "MemTotal" : "";
  const CgroupMemory cgroup = cgroup_memory(root);
  const bool limited = !cgroup.from.empty() && cgroup.limit < unlimited_v1;
  if (limited && (machine.memory_total_bytes == 0 || cgroup.limit < machine.memory_total_bytes)) {
    machine.memory_total_bytes = cgroup.limit;
    machine.memory_total_from = cgroup.from;
  }
  machine.memory_available_bytes = available_memory_bytes(root);
  machine.peak_known = reset_peak_rss(root);
  read_system(root, machine);
  return machine;
}

nlohmann::json to_json(const Machine& machine) {
  nlohmann::json quota = nullptr;
  if (machine.cpu_quota) quota = *machine.cpu_quota;
  return {{"env_id", env_id(machine)},
          {"cpu_model", machine.cpu_model},
          {"cpu_id", machine.cpu_id},
          {"isa", machine.isa},
          {"cpus", machine.cpus},
          {"cores", machine.cores},
          {"cpu_quota", quota},
          {"cpu_quota_from", machine.cpu_quota_from},
          {"l1d_bytes", machine.l1d_bytes},
          {"l2_bytes", machine.l2_bytes},
          {"llc_bytes", machine.llc_bytes},
          {"llc_total_bytes", machine.llc_total_bytes},
          {"memory_total_bytes", machine.memory_total_bytes},
          {"memory_total_from", machine.memory_total_from},
          {"memory_available_bytes", machine.memory_available_bytes},
          {"governor", machine.governor},
          {"transparent_hugepage", machine.transparent_hugepage},
          {"os", machine.os},
          {"kernel", machine.kernel},
          {"virtual_machine", machine.virtual_machine},
          {"container", machine.container},
          {"load_average", machine.load_average},
          {"nice", machine.nice},
          {"address_randomization", machine.address_randomization},
          {"thread_settings", machine.thread_settings},
          {"numeric_locale", std::setlocale(LC_NUMERIC, nullptr)},
          {"peak_memory", machine.peak_known
                              ? "known"
                              : "unknown: the kernel does not let /proc/self/clear_refs reset it"}};
}

std::string env_id(const Machine& machine) {
  const double gib = static_cast<double>(machine.memory_total_bytes) / (1024.0 * 1024 * 1024);
  const std::string text =
      fmt::format("{}\n{}\n{}\n{} {} {}\n{} {} {} {}\n{}\n{}\n", machine.cpu_model, machine.cpu_id,
                  fmt::join(machine.isa, " "), machine.cores, machine.cpus.size(),
                  machine.cpu_quota.value_or(0.0), machine.l1d_bytes, machine.l2_bytes,
                  machine.llc_bytes, machine.llc_total_bytes, std::llround(gib), machine.os);
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  hash ^= hash >> 32;  // the last characters reach the high bits only weakly
  hash *= 0xd6e8feb86659fd93U;
  hash ^= hash >> 32;
  return fmt::format("{:012x}", hash & 0xffffffffffffU);
}

std::int64_t available_memory_bytes(const std::string& root) {
  const std::int64_t kernel = kilobytes(root + "/proc/meminfo", "MemAvailable");
  const std::int64_t room = std::min(cgroup_memory(root).room, address_space_room());
  if (kernel == 0) return room >= unlimited_v1 ? 0 : room;
  return std::min(kernel, room);
}

std::int64_t default_mem_limit(double fraction) {
  const std::int64_t available = available_memory_bytes();
  if (available == 0) return std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(fraction * static_cast<double>(available));
}

const std::vector<int>& usable_cpus() {
  static const std::vector<int> cpus = cores_first("", initial_affinity()).first;
  return cpus;
}

int set_threads(int count) {
  static pid_t pinned_process = 0;
  static int pinned = 0;
  static int in_force = 0;
  const std::vector<int>& cpus = usable_cpus();
  const int wanted = std::clamp(count, 1, static_cast<int>(cpus.size()));
  omp_set_dynamic(0);
  if (omp_get_max_active_levels() < 1) omp_set_max_active_levels(1);  // 0: no team ever
  omp_set_num_threads(wanted);
  if (pinned_process == getpid() && pinned == wanted) return in_force;
  int team = 1;
#pragma omp parallel
  {
    pin_this_thread({cpus[static_cast<std::size_t>(omp_get_thread_num())]});
#pragma omp single
    team = omp_get_num_threads();
  }
  pinned_process = getpid();
  pinned = wanted;
  in_force = team;
  return in_force;
}

void unpin_this_thread() { pin_this_thread(initial_affinity()); }

std::optional<bool> other_threads_run() {
  const std::string self = fmt::format("{}", gettid());
  std::error_code error;
  std::filesystem::directory_iterator tasks("/proc/self/task", error);
  if (error) return std::nullopt;
  for (; tasks != std::filesystem::directory_iterator(); tasks.increment(error)) {
    if (tasks->path().filename() == self) continue;
    std::string stat;
    std::getline(std::ifstream(tasks->path() / "stat"), stat);
    const std::size_t name_end = stat.rfind(')');  // the name before it may hold anything
    if (name_end != std::string::npos && name_end + 2 < stat.size() && stat[name_end + 2] == 'R') {
      return true;
    }
  }
  return false;
}

std::int64_t current_rss_bytes() { return kilobytes("/proc/self/status", "VmRSS"); }

std::int64_t peak_rss_bytes() { return kilobytes("/proc/self/status", "VmHWM"); }

bool reset_peak_rss(const std::string& root) {
  const int file = open((root + "/proc/self/clear_refs").c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool written = write(file, "5", 1) == 1;  // "reset the peak resident set size", proc(5)
  close(file);
  return written && kilobytes(root + "/proc/self/status", "VmHWM") > 0;
}

std::vector<std::string> thread_runtimes() {
  std::set<std::string> found;
  const auto look = [](dl_phdr_info* library, std::size_t, void* names) {
    const std::string name = std::filesystem::path(library->dlpi_name).filename().string();
    for (const char* runtime : {"libgomp", "libomp.", "libiomp", "libtbb."}) {
      if (name.starts_with(runtime)) static_cast<std::set<std::string>*>(names)->insert(name);
    }
    return 0;
  };
  dl_iterate_phdr(look, &found);
  return {found.begin(), found.end()};
}

#ifdef ATTN_HAVE_BLAS
std::optional<BlasInfo> blas_info() {
  BlasInfo info;
  info.config = openblas_get_config();
  std::istringstream words(info.config);
  words >> info.name >> info.version;
  info.core = openblas_get_corename();
  constexpr std::array<const char*, 3> kinds = {"sequential", "pthread", "openmp"};
  const int kind = openblas_get_parallel();
  info.parallel = kind >= 0 && kind < 3 ? kinds[static_cast<std::size_t>(kind)] : "unknown";
  // Its OpenMP flavour takes the team size of the moment at each call; its own number lags behind.
  info.threads = kind == OPENBLAS_OPENMP ? omp_get_max_threads() : openblas_get_num_threads();
  return info;
}
#else
std::optional<BlasInfo> blas_info() { return std::nullopt; }
#endif

nlohmann::json to_json(const BlasInfo& info) {
  return {{"name", info.name},         {"version", info.version}, {"core", info.core},
          {"parallel", info.parallel}, {"threads", info.threads}, {"config", info.config}};
}

}  // namespace attn
