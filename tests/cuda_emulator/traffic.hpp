// SPDX-License-Identifier: MIT
// What kernels move and multiply, counted access by access. Kernels are compiled without optimisation
// and with the thread sanitizer's instrumentation, whose calls traffic.cpp answers itself: so every
// load and store of the loops as written is seen, and none can be forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace cuda_emulator {

// Accesses of one kind. An access of a warp is what its lanes do at one place for the same time.
struct Moved {
  std::int64_t bytes = 0;
  std::int64_t accesses = 0;  // of warps
  // Global: 32-byte sectors. Shared: wavefronts of 32 banks of 4 bytes, in which lanes that read one
  // word share it; accesses of 8 and 16 bytes go by half and quarter warps.
  std::int64_t steps = 0;
  std::int64_t least_steps = 0;  // the least that as many bytes need
  Moved& operator+=(const Moved& other) {
    bytes += other.bytes, accesses += other.accesses;
    steps += other.steps, least_steps += other.least_steps;
    return *this;
  }
};

struct Traffic {
  Moved global_loads, global_stores, shared_loads, shared_stores;
  std::int64_t fmas = 0;
  std::int64_t exps = 0;
  [[nodiscard]] std::int64_t global_bytes() const {
    return global_loads.bytes + global_stores.bytes;
  }
  std::map<const void*, Moved> wasteful;  // by address in the program: more steps than the least
};

// Between the two, what kernels do is counted; only accesses to `watched` memory are global ones.
void count_traffic();
void watch(const void* memory, std::size_t bytes);
Traffic counted_traffic();

}  // namespace cuda_emulator
