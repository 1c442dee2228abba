// SPDX-License-Identifier: MIT
// Runs CUDA kernels on the CPU: one fiber per thread of a block, blocks one after the other, in an
// order that a test chooses. This header is for tests and for the twins of device words; kernels see
// include/cuda_runtime.h only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace cuda_emulator {

// Which of the threads that can go on is next.
enum class Schedule {
  in_order,  // upwards, each until it waits
  reverse,   // downwards
  random,    // reshuffled after each pass
  greedy     // by a random rank that stays: who ranks low starves until all others wait
};

// When the bytes of an asynchronous copy move: at the wait, or at once. The first finds a wait that is
// missing, the second a buffer that is overwritten while it is still read.
enum class AsyncCopies { lazy, eager };

struct Options {
  Schedule schedule = Schedule::in_order;
  std::uint64_t seed = 1;
  AsyncCopies async_copies = AsyncCopies::lazy;
  unsigned most_blocks = 0x7FFFFFFF;  // a grid's x, whatever the launch wants: kernels must step
  // "tiled.cu:93": the synchronisation in this line does nothing.
  std::string removed = {};
};
Options& options();

// A kernel that did what no device allows, or waits for ever. Thrown by the launch.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A word of a kernel and where it stands.
struct Site {
  const char* word;
  const char* file;
  int line;
};
std::string name_of(const Site& site);  // "__syncthreads (tiled.cu:93)"

std::string line_of(const Site& site);  // "tiled.cu:93"

// Every barrier, warp barrier and wait that kernels have met so far, by line_of.
std::map<std::string, Site> synchronisations_met();
// Whether options() removes this one; notes that it was met.
bool removed(const Site& site);

// Runs `thread` once for each thread of the grid, with the built-in variables set. Throws Error.
struct Dim {
  unsigned x = 1, y = 1, z = 1;
};
void launch(Dim grid, Dim block, std::size_t shared_bytes, const std::function<void()>& thread);

// ---- for the twins of device words: called by a thread of a running kernel ------------------------

// Ends the launch with an Error that names the calling thread.
[[noreturn]] void fail(const Site& site, const std::string& what);

void block_barrier(const Site& site);
unsigned lane();  // of the calling thread in its warp
// The thread's number in its block, and a number that no two blocks of the process share.
unsigned thread_number();
std::uint64_t block_number();
void* dynamic_shared();                // of the running block; null where the launch gave none
void* given_shared(const Site& site);  // the same; fails there
std::size_t dynamic_shared_bytes();

// What the calling thread has yet to copy. The queue knows of no byte that is copied: whoever takes
// a copy moves its bytes, in code that the sanitizers see.
struct AsyncCopy {
  void* to;
  const void* from;  // null: zeros
};
void issue(const AsyncCopy& copy);
void commit_copies();
// The oldest copy that is in none of the newest `pending` groups.
std::optional<AsyncCopy> take_copy(unsigned pending);

// A thread of the warp posts `operand` and waits until all lanes of `mask` have. The last to come
// computes for all: `compute(operands)`, a null where a lane is not in the mask. Only a warp barrier
// orders memory; what a computation touches is invisible to the thread sanitizer, so memory is to be
// read and written by the lanes themselves, before or after.
using Operands = void* [32];
using Compute = void (*)(void* context, Operands& operands);
void warp_operation(unsigned mask, const Site& site, void* operand, Compute compute, void* context,
                    bool orders_memory = false);

template <class F>
void warp_operation(unsigned mask, const Site& site, void* operand, F&& compute) {
  warp_operation(
      mask, site, operand,
      [](void* context, Operands& operands) { (*static_cast<F*>(context))(operands); }, &compute);
}

}  // namespace cuda_emulator
