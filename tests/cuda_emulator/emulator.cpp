// SPDX-License-Identifier: MIT
// Built without any sanitizer of its own: what the scheduler touches is not the kernel's doing. It
// tells the sanitizers when the stack changes and which synchronisation orders what.
#include "tests/cuda_emulator/emulator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <utility>

#include "tests/cuda_emulator/fiber.hpp"
#include "tests/cuda_emulator/include/cuda_runtime.h"
#include "tests/cuda_emulator/sanitizers.hpp"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_emulator {
namespace {

constexpr unsigned warp_lanes = 32;
constexpr unsigned most_threads = 1024;                             // of a block, on every device
constexpr std::size_t most_shared_bytes = std::size_t{227} * 1024;  // of a block, on the largest

struct Thread {
  enum class State { ready, waits, done };
  explicit Thread(void (*entry)()) : fiber(entry), race_fiber(race::create_fiber()) {}
  ~Thread() {
    race::destroy_fiber(race_fiber);
    address::forget(fiber.bottom(), Fiber::stack_bytes);
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  Fiber fiber;
  void* race_fiber;               // the thread sanitizer's
  void* address_stack = nullptr;  // the address sanitizer's
  State state = State::ready;
  Site where{};
  unsigned number = 0;
  uint3 index{};
  struct Pending {
    AsyncCopy copy;
    unsigned group;
  };
  std::vector<Pending> copies;
  std::size_t copies_taken = 0;
  unsigned groups = 0;  // committed
};

// Lanes of one warp that are to do one thing together.
struct Meeting {
  unsigned mask = 0;
  unsigned arrived = 0;
  Site site{};
  Operands operands = {};
  char* order = nullptr;  // what the thread sanitizer knows the meeting by
};

struct Warp {
  std::vector<Meeting> meetings;
  std::array<char, 64> orders{};
  unsigned met = 0;
};

struct Block {
  const std::function<void()>* body = nullptr;
  std::vector<Warp> warps;
  unsigned threads = 0;
  unsigned at_barrier = 0;
  unsigned barriers = 0;
  // A fast thread may be one barrier ahead, never two. On the heap: what the thread sanitizer knows
  // of these addresses ends with the block.
  std::vector<char> barrier_orders = std::vector<char>(2);
  std::byte* shared = nullptr;
  std::size_t shared_bytes = 0;
  std::string failure;
};

// Exactly as large as the launch says, for the address sanitizer; a fence stands behind it where there
// is none.
struct SharedMemory {
  explicit SharedMemory(std::size_t size) : bytes(size) {
    if (bytes == 0) return;
    data = static_cast<std::byte*>(::operator new(bytes + fence_bytes, alignment));
    std::memset(data, 0xFF, bytes + fence_bytes);  // NaN in every floating-point type
  }
  SharedMemory(SharedMemory&& other) noexcept
      : data(std::exchange(other.data, nullptr)), bytes(other.bytes) {}
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory() {
    if (data != nullptr) ::operator delete(data, alignment);
  }
  [[nodiscard]] bool fence_intact() const {
    return data == nullptr || std::all_of(data + bytes, data + bytes + fence_bytes,
                                          [](std::byte byte) { return byte == std::byte{0xFF}; });
  }
  static constexpr std::align_val_t alignment{128};
  static constexpr std::size_t fence_bytes = address::detects ? 0 : 256;
  std::byte* data = nullptr;
  std::size_t bytes;
};

Block block;
std::vector<std::unique_ptr<Thread>> pool;
std::vector<Thread*> threads;  // of the running block, by number
Thread* current = nullptr;
Context scheduler_context = nullptr;
void* scheduler_race_fiber = nullptr;
void* scheduler_address_stack = nullptr;
const void* scheduler_stack = nullptr;
std::size_t scheduler_stack_bytes = 0;
std::uint64_t blocks_run = 0;
char launch_begins, launch_ends;

// A synchronisation that some kernel has met.
struct Known {
  Site site;
  std::string line;
};
std::vector<Known> met;

bool same_line(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

void to_scheduler() {
  Thread& me = *current;
  race::switch_to(scheduler_race_fiber);
  address::leave(&me.address_stack, scheduler_stack, scheduler_stack_bytes);
  switch_context(me.fiber.context, scheduler_context);
  address::arrive(me.address_stack, nullptr, nullptr);
}

void to_thread(Thread& thread) {
  current = &thread;
  threadIdx = thread.index;
  race::switch_to(thread.race_fiber);
  address::leave(&scheduler_address_stack, thread.fiber.bottom(), Fiber::stack_bytes);
  switch_context(scheduler_context, thread.fiber.context);
  address::arrive(scheduler_address_stack, nullptr, nullptr);
}

// What a fiber runs: one kernel after another, and never returns.
void thread_main() {
  address::arrive(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  for (;;) {
    race::acquire(&launch_begins);
    try {
      (*block.body)();
    } catch (const std::exception& error) {  // no exception survives a change of the stack
      block.failure = error.what();
    }
    race::release(&launch_ends);
    current->state = Thread::State::done;
    to_scheduler();
  }
}

void wait_at(const Site& site) {
  current->state = Thread::State::waits;
  current->where = site;
  to_scheduler();
}

// "threads 0-31, 40" of numbers that rise.
std::string ranges(const std::vector<unsigned>& numbers) {
  std::string text = numbers.size() == 1 ? "thread " : "threads ";
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += i == 0 ? "" : ", ";
    text +=
        last == i ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string whereabouts() {
  std::vector<std::pair<std::string, std::vector<unsigned>>> groups;
  for (const Thread* thread : threads) {
    const std::string place = thread->state == Thread::State::done
                                  ? std::string("returned")
                                  : fmt::format("wait at {}", name_of(thread->where));
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& known) { return known.first == place; });
    if (group == groups.end()) group = groups.insert(groups.end(), {place, {}});
    group->second.push_back(thread->number);
  }
  std::string text;
  for (const auto& [place, numbers] : groups) {
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", ranges(numbers), place);
  }
  return text;
}

std::string block_name() {
  return fmt::format("block ({}, {}, {})", blockIdx.x, blockIdx.y, blockIdx.z);
}

bool step(Thread& thread) {
  if (thread.state != Thread::State::ready) return false;
  to_thread(thread);
  if (!block.failure.empty()) throw Error(block.failure);
  return true;
}

// Runs the threads of the block until all are done; throws when none can go on.
void run_block(std::mt19937_64& random) {
  const Schedule schedule = options().schedule;
  std::vector<Thread*> order = threads;
  if (schedule == Schedule::reverse) std::reverse(order.begin(), order.end());
  if (schedule == Schedule::greedy) std::shuffle(order.begin(), order.end(), random);
  for (;;) {
    if (schedule == Schedule::random) std::shuffle(order.begin(), order.end(), random);
    bool anybody = false;
    for (Thread* thread : order) {
      if (!step(*thread)) continue;
      anybody = true;
      if (schedule == Schedule::greedy) break;
    }
    if (anybody) continue;
    if (std::all_of(threads.begin(), threads.end(),
                    [](Thread* thread) { return thread->state == Thread::State::done; })) {
      return;
    }
    throw Error(fmt::format("{} can never go on: {}", block_name(), whereabouts()));
  }
}

// Under the thread sanitizer neighbouring blocks have different fibers: one that ran in both would
// bring to the second block's barriers what it did in the first, and so order them.
void seat_threads(const Dim& dim) {
  constexpr unsigned sets = race::detects ? 2 : 1;
  const unsigned count = dim.x * dim.y * dim.z;
  while (pool.size() < sets * count) pool.push_back(std::make_unique<Thread>(thread_main));
  threads.resize(count);
  for (unsigned t = 0; t < count; ++t) {
    Thread& thread = *pool[sets * t + blocks_run % sets];
    thread.copies.clear();
    thread.copies_taken = 0;
    thread.groups = 0;
    thread.state = Thread::State::ready;
    thread.number = t;
    thread.index = {t % dim.x, t / dim.x % dim.y, t / dim.x / dim.y};
    threads[t] = &thread;
  }
}

Warp& warp_of(const Thread& thread) { return block.warps[thread.number / warp_lanes]; }

std::string hexadecimal(unsigned mask) { return fmt::format("0x{:08X}", mask); }

}  // namespace

Options& options() {
  static Options all;
  return all;
}

std::string line_of(const Site& site) {
  return fmt::format("{}:{}", std::filesystem::path(site.file).filename().string(), site.line);
}

std::string name_of(const Site& site) { return fmt::format("{} ({})", site.word, line_of(site)); }

std::map<std::string, Site> synchronisations_met() {
  std::map<std::string, Site> all;
  for (const Known& known : met) all.emplace(known.line, known.site);
  return all;
}

bool removed(const Site& site) {
  const race::Ignore ignore;
  auto known = std::find_if(met.begin(), met.end(), [&](const Known& other) {
    return other.site.line == site.line && other.site.file == site.file;
  });
  if (known == met.end()) known = met.insert(met.end(), {site, line_of(site)});
  return known->line == options().removed;
}

void launch(Dim grid, Dim dim, std::size_t shared_bytes, const std::function<void()>& thread) {
  const unsigned count = dim.x * dim.y * dim.z;
  if (current != nullptr) throw Error("a kernel launches a kernel, which is not emulated");
  if (count == 0 || count > most_threads) {
    throw Error(fmt::format("a block of {} threads: 1 to {} are possible", count, most_threads));
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
    throw Error(fmt::format("a grid of {} x {} x {} blocks: y and z end at 65535, and none is 0",
                            grid.x, grid.y, grid.z));
  }
  if (shared_bytes > most_shared_bytes) {
    throw Error(
        fmt::format("{} bytes of shared memory: {} are the most", shared_bytes, most_shared_bytes));
  }
  grid.x = std::min(grid.x, options().most_blocks);
  gridDim = {grid.x, grid.y, grid.z};
  blockDim = {dim.x, dim.y, dim.z};
  scheduler_race_fiber = race::current_fiber();
  race::release(&launch_begins);

  const race::Ignore ignore;
  std::mt19937_64 random(options().seed);
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  std::vector<std::uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  if (options().schedule == Schedule::reverse) std::reverse(order.begin(), order.end());
  if (options().schedule == Schedule::random || options().schedule == Schedule::greedy) {
    std::shuffle(order.begin(), order.end(), random);
  }
  // Under the thread sanitizer a block keeps its shared memory until the launch ends: given back and
  // taken again, it would order the blocks.
  std::vector<SharedMemory> shared;
  for (const std::uint64_t b : order) {
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    if (!race::detects) shared.clear();
    shared.emplace_back(shared_bytes);
    block = {};
    block.body = &thread;
    block.threads = count;
    block.warps.resize((count + warp_lanes - 1) / warp_lanes);
    block.shared = shared.back().data;
    block.shared_bytes = shared_bytes;
    seat_threads(dim);
    ++blocks_run;
    try {
      run_block(random);
      if (!shared.back().fence_intact()) {
        throw Error(fmt::format("{} wrote behind its {} bytes of shared memory", block_name(),
                                shared_bytes));
      }
    } catch (const Error&) {
      pool.clear();  // the fibers stand somewhere inside a kernel
      current = nullptr;
      throw;
    }
  }
  current = nullptr;
  race::acquire(&launch_ends);
}

void fail(const Site& site, const std::string& what) {
  throw Error(
      fmt::format("thread {} of {}, {}: {}", current->number, block_name(), name_of(site), what));
}

void block_barrier(const Site& site) {
  if (removed(site)) return;
  char& order = block.barrier_orders[block.barriers % 2];
  race::release(&order);
  ++block.at_barrier;
  if (block.at_barrier < block.threads) {
    wait_at(site);
  } else {
    for (const Thread* thread : threads) {
      if (thread != current && !same_line(thread->where, site)) {
        current->where = site;
        fail(site,
             fmt::format("the threads of the block are at different barriers: {}", whereabouts()));
      }
    }
    block.at_barrier = 0;
    ++block.barriers;
    for (Thread* thread : threads) thread->state = Thread::State::ready;
  }
  race::acquire(&order);
}

void warp_operation(unsigned mask, const Site& site, void* operand, Compute compute, void* context,
                    bool orders_memory) {
  const race::Ignore ignore;
  Thread& me = *current;
  Warp& warp = warp_of(me);
  const unsigned bit = 1U << (me.number % warp_lanes);
  if ((mask & bit) == 0) {
    fail(site, fmt::format("the calling lane is not in its own mask {}", hexadecimal(mask)));
  }
  const unsigned first = me.number / warp_lanes * warp_lanes;
  const unsigned lanes = std::min(block.threads - first, warp_lanes);
  if (lanes < warp_lanes && (mask >> lanes) != 0) {
    fail(site, fmt::format("mask {} names lanes that the block does not have: its last warp has {}",
                           hexadecimal(mask), lanes));
  }
  auto meeting = std::find_if(warp.meetings.begin(), warp.meetings.end(),
                              [&](const Meeting& other) { return (other.mask & mask) != 0; });
  if (meeting == warp.meetings.end()) {
    warp.meetings.push_back({mask, 0, site, {}, &warp.orders[warp.met++ % warp.orders.size()]});
    meeting = warp.meetings.end() - 1;
  } else if (meeting->mask != mask) {
    fail(site, fmt::format("mask {}, but other lanes wait at {} with mask {}", hexadecimal(mask),
                           name_of(meeting->site), hexadecimal(meeting->mask)));
  } else if (std::strcmp(meeting->site.word, site.word) != 0 ||
             (!orders_memory && !same_line(meeting->site, site))) {
    fail(site, fmt::format("lanes of its mask wait at {}", name_of(meeting->site)));
  }
  char* const order = meeting->order;
  if (orders_memory) race::release(order);
  meeting->arrived |= bit;
  meeting->operands[me.number % warp_lanes] = operand;
  if (meeting->arrived != mask) {
    wait_at(site);
  } else {
    Meeting complete = *meeting;
    warp.meetings.erase(meeting);
    if (compute != nullptr) compute(context, complete.operands);
    for (unsigned l = 0; l < lanes; ++l) {
      if ((mask >> l & 1) != 0) threads[first + l]->state = Thread::State::ready;
    }
  }
  if (orders_memory) race::acquire(order);
}

unsigned lane() { return current->number % warp_lanes; }
unsigned thread_number() { return current->number; }
std::uint64_t block_number() { return blocks_run; }
void* dynamic_shared() { return block.shared; }
void* given_shared(const Site& site) {
  if (block.shared == nullptr) fail(site, "the launch gave no dynamic shared memory");
  return block.shared;
}
std::size_t dynamic_shared_bytes() { return block.shared_bytes; }

void issue(const AsyncCopy& copy) {
  const race::Ignore ignore;
  current->copies.push_back({copy, current->groups});
}
void commit_copies() { ++current->groups; }
std::optional<AsyncCopy> take_copy(unsigned pending) {
  Thread& me = *current;
  if (me.copies_taken < me.copies.size()) {
    const Thread::Pending& oldest = me.copies[me.copies_taken];
    if (oldest.group + pending >= me.groups) return std::nullopt;
    ++me.copies_taken;
    return oldest.copy;
  }
  me.copies.clear();
  me.copies_taken = 0;
  return std::nullopt;
}

}  // namespace cuda_emulator
