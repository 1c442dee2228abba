// SPDX-License-Identifier: MIT
// Preloaded into attnbench by the fault tests (runs.py compiles it): ends a process inside a write,
// fills the disk, or sets the clock back, where the environment says so. The product itself holds
// no hooks.
//
//   FAULT_DIR    the run's folder, absolute; operations on files elsewhere pass
//   FAULT_FILE   only the file of this name in it; unset: all
//   FAULT_DO     kill: the process gets FAULT_SIGNAL (9); group: its process group does;
//                full: this operation and all later ones fail with ENOSPC; once: this one alone
//   FAULT_AT     number of the operation, from 1, counted over all processes of the run: opening to
//                create, writing, syncing, renaming
//   FAULT_BYTES  what of a write still reaches the file; other operations are done first if it is > 0
//   FAULT_COUNT  a file of 8 bytes that counts the operations; FAULT_DO may be unset then
//   FAULT_CLOCK  readings of the wall clock after which it is a day earlier
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>

namespace {

constexpr time_t day_s = 86400;

struct Shared {  // by all processes of a run
  std::atomic<std::int64_t> operations{0};
  std::atomic<std::int64_t> clock_readings{0};
};

std::string_view setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

std::int64_t number(const char* name) {
  const std::string_view text = setting(name);
  return text.empty() ? 0 : std::atoll(text.data());
}

Shared& shared() {
  static Shared* const memory = [] {
    int fd = -1;
    if (!setting("FAULT_COUNT").empty()) {
      // openat, because open is replaced below.
      fd = openat(AT_FDCWD, setting("FAULT_COUNT").data(), O_RDWR | O_CLOEXEC);
      if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) abort();
    }
    void* at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                    MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    if (at == MAP_FAILED) abort();
    if (fd >= 0) close(fd);
    return new (at) Shared;
  }();
  return *memory;
}

// Before the first fork, so that supervisor and workers count together.
__attribute__((constructor)) void map_shared() { shared(); }

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

bool watched(std::string_view path) {
  const std::string_view dir = setting("FAULT_DIR");
  if (dir.empty() || !path.starts_with(dir)) return false;
  path.remove_prefix(dir.size());
  if (!path.starts_with('/')) return false;
  const std::string_view file = setting("FAULT_FILE");
  return file.empty() || path.substr(1) == file;
}

std::string absolute(const char* path) {
  if (path[0] == '/') return path;
  char cwd[PATH_MAX];
  return getcwd(cwd, sizeof cwd) == nullptr ? path : std::string(cwd) + "/" + path;
}

bool watched(int fd) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path, sizeof path);
  return length > 0 && watched(std::string_view(path, static_cast<std::size_t>(length)));
}

// Whether this operation is to go wrong.
bool struck() {
  const std::int64_t now = ++shared().operations;
  const std::int64_t at = number("FAULT_AT");
  return at > 0 && (now == at || (now > at && setting("FAULT_DO") == "full"));
}

bool kills() { return setting("FAULT_DO") == "kill" || setting("FAULT_DO") == "group"; }

void send_signal() {
  const auto signal = number("FAULT_SIGNAL");
  kill(setting("FAULT_DO") == "group" ? 0 : getpid(),
       signal > 0 ? static_cast<int>(signal) : SIGKILL);
  while (signal == 0) pause();
}

template <class Do>
int operate(bool concerned, const Do& act) {
  if (!concerned || !struck()) return act();
  if (kills() && number("FAULT_BYTES") > 0) {
    const int result = act();
    send_signal();
    return result;
  }
  if (kills()) {
    send_signal();
    return act();
  }
  errno = ENOSPC;
  return -1;
}

time_t earlier() {
  const std::int64_t after = number("FAULT_CLOCK");
  return after > 0 && ++shared().clock_readings > after ? day_s : 0;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  if (!watched(fd) || !struck()) return real(fd, data, size);
  // A full disk takes what still fits, and says so at the next call.
  const size_t part = std::min(size, static_cast<size_t>(number("FAULT_BYTES")));
  const bool first = kills() || shared().operations == number("FAULT_AT");
  const ssize_t written = first && part > 0 ? real(fd, data, part) : 0;
  if (kills()) {
    send_signal();
    return written > 0 ? written : real(fd, data, size);
  }
  if (written > 0) return written;
  errno = ENOSPC;
  return -1;
}

int fsync(int fd) {
  static auto* const real = next<int(int)>("fsync");
  return operate(watched(fd), [&] { return real(fd); });
}

int fdatasync(int fd) {
  static auto* const real = next<int(int)>("fdatasync");
  return operate(watched(fd), [&] { return real(fd); });
}

int rename(const char* from, const char* to) {
  static auto* const real = next<int(const char*, const char*)>("rename");
  return operate(watched(absolute(from)), [&] { return real(from, to); });
}

int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>("open");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  const bool creates = (flags & O_CREAT) != 0 && watched(absolute(path));
  return operate(creates, [&] { return real(path, flags, mode); });
}

time_t time(time_t* out) {
  static auto* const real = next<time_t(time_t*)>("time");
  const time_t now = real(nullptr) - earlier();
  if (out != nullptr) *out = now;
  return now;
}

int clock_gettime(clockid_t clock, timespec* out) {
  static auto* const real = next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, out);
  if (result == 0 && clock == CLOCK_REALTIME) out->tv_sec -= earlier();
  return result;
}

}  // extern "C"
