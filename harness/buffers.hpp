// SPDX-License-Identifier: MIT
// Memory that the harness owns: fenced mappings and the scratch arena.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attn {

// A mapping whose last byte is followed by a protected page and whose first byte is preceded by a
// pattern and another protected page: an access past the end faults at once, a write before the
// start is found by `intact`. 64-byte aligned where the size is a multiple of 64. Throws
// std::bad_alloc.
class FencedBuffer {
 public:
  FencedBuffer() = default;
  // Without protection the page behind the end is ordinary memory (selftest --without
  // protected-pages).
  explicit FencedBuffer(std::size_t bytes, bool protection = true);
  FencedBuffer(FencedBuffer&& other) noexcept;
  FencedBuffer& operator=(FencedBuffer&& other) noexcept;
  ~FencedBuffer();

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] float* floats() const { return static_cast<float*>(data_); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool intact() const;
  [[nodiscard]] std::uint64_t hash() const;  // of the contents; changes when any byte does

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// Whether the address lies in a protected page of a live FencedBuffer or Arena: for the handler of a
// fault, so it allocates and locks nothing.
bool in_protected_page(const void* address);

// One scratch region for all backends, mapped once, page-aligned; every view of it ends at a
// protected page, so `at_most(bytes)` differs in its start, not in its end.
class Arena {
 public:
  explicit Arena(std::size_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // The start of a region of `bytes`, 64-byte aligned, whose end lies less than 64 bytes before the
  // protected page. Throws std::length_error when the arena is smaller.
  [[nodiscard]] void* region(std::size_t bytes) const;
  void give_back();  // MADV_DONTNEED: the next touch is a page fault again

 private:
  void* mapping_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace attn
