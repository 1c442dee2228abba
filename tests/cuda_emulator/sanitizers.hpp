// SPDX-License-Identifier: MIT
// What the sanitizers must be told of fibers; nothing where there is none. The emulator itself is
// built without them, so a definition says which one the rest of the program has.
#pragma once

#include <cstddef>

#ifdef CUDA_EMULATOR_ADDRESS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CUDA_EMULATOR_THREAD
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace cuda_emulator {

namespace address {
#ifdef CUDA_EMULATOR_ADDRESS
constexpr bool detects = true;
inline void leave(void** save, const void* bottom, std::size_t bytes) {
  __sanitizer_start_switch_fiber(save, bottom, bytes);
}
inline void arrive(void* saved, const void** from, std::size_t* from_bytes) {
  __sanitizer_finish_switch_fiber(saved, from, from_bytes);
}
// A flow that was stopped for good leaves red zones behind.
inline void forget(void* bottom, std::size_t bytes) {
  __asan_unpoison_memory_region(bottom, bytes);
}
#else
constexpr bool detects = false;
inline void leave(void** /*save*/, const void* /*bottom*/, std::size_t /*bytes*/) {}
inline void arrive(void* /*saved*/, const void** /*from*/, std::size_t* /*from_bytes*/) {}
inline void forget(void* /*bottom*/, std::size_t /*bytes*/) {}
#endif
}  // namespace address

// Each thread of a block is a fiber of the thread sanitizer, and a switch orders nothing: only what
// orders memory on a device does.
namespace race {
#ifdef CUDA_EMULATOR_THREAD
constexpr bool detects = true;
inline void* create_fiber() { return __tsan_create_fiber(0); }
inline void destroy_fiber(void* fiber) {
  if (fiber != nullptr) __tsan_destroy_fiber(fiber);
}
inline void* current_fiber() { return __tsan_get_current_fiber(); }
inline void switch_to(void* fiber) {
  __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
}
inline void acquire(void* order) { __tsan_acquire(order); }
inline void release(void* order) { __tsan_release(order); }
struct Ignore {
  Ignore() { AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0); }
  ~Ignore() { AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0); }
  Ignore(const Ignore&) = delete;
  Ignore& operator=(const Ignore&) = delete;
};
#else
constexpr bool detects = false;
inline void* create_fiber() { return nullptr; }
inline void destroy_fiber(void* /*fiber*/) {}
inline void* current_fiber() { return nullptr; }
inline void switch_to(void* /*fiber*/) {}
inline void acquire(void* /*order*/) {}
inline void release(void* /*order*/) {}
struct Ignore {
  Ignore() {}  // NOLINT: not trivial, so that an unused one is no warning
};
#endif
}  // namespace race

}  // namespace cuda_emulator
