// SPDX-License-Identifier: MIT
// What a test may decide about the emulated device, and what it may ask of the runtime's calls.
#pragma once

#include <cstddef>
#include <vector>

namespace cuda_emulator {

// At the start as the environment says: CUDA_EMULATOR_DEVICE, names separated by commas, "no_driver",
// "no_device", "memory=BYTES", "largest=BYTES".
struct Device {
  bool no_driver = false;  // every call answers cudaErrorInsufficientDriver
  bool no_device = false;  // every call answers cudaErrorNoDevice
  std::size_t memory = std::size_t{8} << 30;
  std::size_t largest = memory;  // allocation that succeeds, whatever is said to be free
  int failing_allocation = 0;    // this one from now on fails; 1: the next
  bool faulty = false;           // the next launch touches an illegal address, and the error sticks
  bool hangs = false;            // no event completes any more
  double hurry = 1;              // the next time between two events is this many times what it was
};
Device& device();
void renew_device();  // as in a new process; memory stays allocated

// What reached the device, in its order, since `log` was given; null: nothing is noted.
struct Operation {
  enum class Kind { launch, copy, set, event };
  Kind kind;
  std::size_t bytes;  // of copy and set
};
void note_operations(std::vector<Operation>* log);

std::size_t allocated_bytes();

}  // namespace cuda_emulator
