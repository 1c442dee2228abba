// SPDX-License-Identifier: MIT
// A stack to switch to: what the threads of an emulated block run on.
#pragma once

#include <cstddef>

namespace cuda_emulator {

// Where a stopped flow of control goes on: its stack pointer (x86-64), or its ucontext_t.
using Context = void*;

// Stops here, keeps the place in `from`, goes on at `to`.
void switch_context(Context& from, Context to);

// A stack before a page that no access survives, and the flow that runs on it.
class Fiber {
 public:
  explicit Fiber(void (*entry)());  // which never returns
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  Context context = nullptr;
  [[nodiscard]] void* bottom() const { return bottom_; }
  static constexpr std::size_t stack_bytes = std::size_t{256} * 1024;

 private:
  void begin_at(void (*entry)());
  void* bottom_ = nullptr;
};

}  // namespace cuda_emulator
