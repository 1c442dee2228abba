// SPDX-License-Identifier: MIT
#include "tests/cuda_emulator/traffic.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "tests/cuda_emulator/emulator.hpp"

namespace cuda_emulator {
namespace {

constexpr unsigned lanes = 32;

enum class Space { none, global, shared };

// What one lane did at one place in the code for the n-th time.
struct Access {
  unsigned warp;
  const void* place;
  unsigned time;
  unsigned lane;
  Space space;
  bool store;
  std::size_t size;
  std::uintptr_t address;
  [[nodiscard]] auto of_warp() const { return std::tie(warp, place, time); }
};
using WarpAccess = std::span<const Access>;

struct Range {
  std::uintptr_t begin, end;
};

bool counting = false;
std::vector<Range> watched;
Traffic total;
std::uint64_t block = 0;
std::vector<std::unordered_map<const void*, unsigned>> times;  // by thread and place
std::vector<Access> accesses;                                  // of the block

Space space_of(std::uintptr_t address) {
  for (const Range& range : watched) {
    if (address >= range.begin && address < range.end) return Space::global;
  }
  const auto shared = reinterpret_cast<std::uintptr_t>(dynamic_shared());
  if (address >= shared && address < shared + dynamic_shared_bytes()) return Space::shared;
  return Space::none;
}

std::int64_t sectors(WarpAccess all) {
  std::set<std::uintptr_t> touched;
  for (const Access& access : all) {
    for (std::size_t byte = 0; byte < access.size; byte += 4) {
      touched.insert((access.address + byte) / 32);
    }
  }
  return static_cast<std::int64_t>(touched.size());
}

struct Steps {
  std::int64_t taken = 0, least = 0;
};

// 128 bytes go at once: all lanes, or a half or a quarter of them, each part in a step of its own even
// where all read one address.
Steps wavefronts(WarpAccess all) {
  const unsigned together =
      lanes * 4 / static_cast<unsigned>(std::max<std::size_t>(all[0].size, 4));
  Steps steps;
  for (unsigned first = 0; first < lanes; first += together) {
    std::array<std::vector<std::uintptr_t>, 32> words;  // by bank
    std::size_t most = 0, distinct = 0;
    for (const Access& access : all) {
      if (access.lane < first || access.lane >= first + together) continue;
      for (std::size_t byte = 0; byte < access.size; byte += 4) {
        const std::uintptr_t word = (access.address + byte) / 4;
        std::vector<std::uintptr_t>& bank = words[word % 32];
        if (std::find(bank.begin(), bank.end(), word) == bank.end())
          bank.push_back(word), ++distinct;
        most = std::max(most, bank.size());
      }
    }
    steps.taken += static_cast<std::int64_t>(most);
    steps.least += static_cast<std::int64_t>((distinct + 31) / 32);
  }
  return steps;
}

std::int64_t distinct_bytes(WarpAccess all) {
  std::set<std::uintptr_t> addresses;
  for (const Access& access : all) addresses.insert(access.address);
  return static_cast<std::int64_t>(addresses.size() * all[0].size);
}

void settle_warp(WarpAccess all) {
  const Access& first = all[0];
  const bool global = first.space == Space::global;
  Moved& moved = global ? (first.store ? total.global_stores : total.global_loads)
                        : (first.store ? total.shared_stores : total.shared_loads);
  const Steps steps =
      global ? Steps{sectors(all), (distinct_bytes(all) + 31) / 32} : wavefronts(all);
  const Moved one{.bytes = static_cast<std::int64_t>(all.size() * first.size),
                  .accesses = 1,
                  .steps = steps.taken,
                  .least_steps = steps.least};
  moved += one;
  if (one.steps > one.least_steps) total.wasteful[first.place] += one;
}

void settle_block() {
  std::stable_sort(accesses.begin(), accesses.end(),
                   [](const Access& a, const Access& b) { return a.of_warp() < b.of_warp(); });
  for (auto first = accesses.begin(); first != accesses.end();) {
    const auto last = std::find_if(first, accesses.end(), [&](const Access& access) {
      return access.of_warp() != first->of_warp();
    });
    settle_warp({first, last});
    first = last;
  }
  accesses.clear();
  times.clear();
}

void note(const void* place, void* where, std::size_t size, bool store) {
  if (!counting) return;
  const auto address = reinterpret_cast<std::uintptr_t>(where);
  const Space space = space_of(address);
  if (space == Space::none) return;
  if (block_number() != block) settle_block();
  block = block_number();
  const unsigned thread = thread_number();
  if (times.size() <= thread) times.resize(thread + 1);
  const unsigned time = times[thread][place]++;
  accesses.push_back({thread / lanes, place, time, thread % lanes, space, store, size, address});
}

}  // namespace

void count_traffic() {
  watched.clear();
  total = {};
  counting = true;
}

void watch(const void* memory, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  watched.push_back({begin, begin + bytes});
}

Traffic counted_traffic() {
  settle_block();
  counting = false;
  return total;
}

float counted_fmaf(float a, float b, float c) {
  ++total.fmas;
  return std::fmaf(a, b, c);
}
float counted_expf(float x) {
  ++total.exps;
  return std::exp(x);
}
float counted_exp2f(float x) {
  ++total.exps;
  return std::exp2(x);
}

}  // namespace cuda_emulator

// What g++ -fsanitize=thread calls, under names of our own.
extern "C" {
#define CUDA_EMULATOR_HOOKS(size)                                           \
  void on_read_##size(void* address) asm("__tsan_read" #size);              \
  void on_read_##size(void* address) {                                      \
    cuda_emulator::note(__builtin_return_address(0), address, size, false); \
  }                                                                         \
  void on_write_##size(void* address) asm("__tsan_write" #size);            \
  void on_write_##size(void* address) {                                     \
    cuda_emulator::note(__builtin_return_address(0), address, size, true);  \
  }
CUDA_EMULATOR_HOOKS(1)
CUDA_EMULATOR_HOOKS(2)
CUDA_EMULATOR_HOOKS(4)
CUDA_EMULATOR_HOOKS(8)
CUDA_EMULATOR_HOOKS(16)
void on_read_range(void* address, std::size_t size) asm("__tsan_read_range");
void on_read_range(void* address, std::size_t size) {
  cuda_emulator::note(__builtin_return_address(0), address, size, false);
}
void on_write_range(void* address, std::size_t size) asm("__tsan_write_range");
void on_write_range(void* address, std::size_t size) {
  cuda_emulator::note(__builtin_return_address(0), address, size, true);
}
void on_start() asm("__tsan_init");
void on_start() {}
void on_entry(void* caller) asm("__tsan_func_entry");
void on_entry(void* /*caller*/) {}
void on_leave() asm("__tsan_func_exit");
void on_leave() {}
void on_vptr(void** object, void* value) asm("__tsan_vptr_update");
void on_vptr(void** /*object*/, void* /*value*/) {}
}
