// SPDX-License-Identifier: MIT
#include "tests/cuda_emulator/fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#if !defined(__x86_64__) || defined(CUDA_EMULATOR_UCONTEXT)
#include <ucontext.h>
#define CUDA_EMULATOR_PORTABLE 1
#endif

namespace cuda_emulator {

#ifndef CUDA_EMULATOR_PORTABLE
// The registers that a call must keep go onto the old stack and come from the new one. swapcontext
// asks the kernel for the signal mask each time and takes about ten times as long.
extern "C" void cuda_emulator_switch(Context* from, Context to);
asm(R"(
  .text
  .globl cuda_emulator_switch
  .type cuda_emulator_switch, @function
cuda_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size cuda_emulator_switch, .-cuda_emulator_switch
)");

void switch_context(Context& from, Context to) { cuda_emulator_switch(&from, to); }

void Fiber::begin_at(void (*entry)()) {
  // Six registers, the address to return to, and a word that aligns the stack as a call would.
  void** top = reinterpret_cast<void**>(static_cast<char*>(bottom_) + stack_bytes) - 8;
  for (int word = 0; word < 8; ++word) top[word] = nullptr;
  top[6] = reinterpret_cast<void*>(entry);
  context = top;
}
#else
void switch_context(Context& from, Context to) {
  ucontext_t here;
  from = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to));
}

void Fiber::begin_at(void (*entry)()) {
  // At the low end of the stack, which a kernel that needs that much would lose anyway.
  auto* fresh = new (bottom_) ucontext_t;
  getcontext(fresh);
  fresh->uc_stack.ss_sp = static_cast<char*>(bottom_) + sizeof(ucontext_t);
  fresh->uc_stack.ss_size = stack_bytes - sizeof(ucontext_t);
  fresh->uc_link = nullptr;
  makecontext(fresh, entry, 0);
  context = fresh;
}
#endif

Fiber::Fiber(void (*entry)()) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, page, PROT_NONE);
  bottom_ = static_cast<char*>(memory) + page;
  begin_at(entry);
}

Fiber::~Fiber() {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  munmap(static_cast<char*>(bottom_) - page, stack_bytes + page);
}

}  // namespace cuda_emulator
