// SPDX-License-Identifier: MIT
#include "harness/buffers.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

namespace attn {
namespace {

constexpr std::byte pattern{0xa5};

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t round_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

struct Mapping {
  const std::byte* start;
  std::size_t bytes;  // both fences included
};
std::vector<Mapping>& live_mappings() {
  static std::vector<Mapping> mappings;
  return mappings;
}

void unmap(void* mapping, std::size_t bytes) {
  std::erase_if(live_mappings(), [&](const Mapping& m) { return m.start == mapping; });
  munmap(mapping, bytes);
}

// `payload` accessible bytes (whole pages) between two protected pages.
void* map_between_fences(std::size_t payload, bool protection = true) {
  const std::size_t page = page_size();
  void* mapping = mmap(nullptr, payload + 2 * page, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  const std::size_t accessible = protection ? payload : payload + page;
  if (accessible > 0 &&
      mprotect(static_cast<std::byte*>(mapping) + page, accessible, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping, payload + 2 * page);
    throw std::bad_alloc();
  }
  live_mappings().push_back({static_cast<std::byte*>(mapping), payload + 2 * page});
  return mapping;
}

}  // namespace

bool in_protected_page(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  return std::any_of(live_mappings().begin(), live_mappings().end(), [&](const Mapping& m) {
    const std::byte* end = m.start + m.bytes;
    return at >= m.start && at < end && (at < m.start + page_size() || at >= end - page_size());
  });
}

FencedBuffer::FencedBuffer(std::size_t bytes, bool protection) : size_(bytes) {
  const std::size_t page = page_size();
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  const std::size_t payload = round_up(bytes, page);
  mapping_ = map_between_fences(payload, protection);
  mapped_ = payload + 2 * page;
  std::byte* start = static_cast<std::byte*>(mapping_) + page;
  data_ = start + (payload - bytes);
  std::memset(start, static_cast<int>(pattern), payload - bytes);
}

FencedBuffer::FencedBuffer(FencedBuffer&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

FencedBuffer& FencedBuffer::operator=(FencedBuffer&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FencedBuffer::~FencedBuffer() {
  if (mapping_ != nullptr) unmap(mapping_, mapped_);
}

bool FencedBuffer::intact() const {
  if (mapping_ == nullptr) return true;
  const std::byte* start = static_cast<std::byte*>(mapping_) + page_size();
  for (const std::byte* p = start; p != data_; ++p) {
    if (*p != pattern) return false;
  }
  return true;
}

// Every step is a bijection of the state for a fixed word and of the word for a fixed state, so one
// changed word always changes the result. Eight chains, because one multiplication waits for the
// last.
std::uint64_t FencedBuffer::hash() const {
  constexpr std::size_t chain_count = 8;
  constexpr std::uint64_t prime = 0x9fb21c651e98df25;
  std::uint64_t chains[chain_count] = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto* bytes = static_cast<const std::byte*>(data_);
  const std::size_t blocks = size_ / sizeof chains;
  for (std::size_t i = 0; i < blocks; ++i) {
    std::uint64_t words[chain_count];
    std::memcpy(words, bytes + i * sizeof words, sizeof words);
    for (std::size_t c = 0; c < chain_count; ++c) {
      const std::uint64_t mixed = (chains[c] ^ words[c]) * prime;
      chains[c] = mixed ^ (mixed >> 32);
    }
  }
  std::uint64_t result = size_;
  for (const std::uint64_t chain : chains) {
    result = (result ^ chain) * prime;
    result ^= result >> 32;
  }
  for (std::size_t i = blocks * sizeof chains; i < size_; ++i) {
    result = (result ^ static_cast<std::uint64_t>(bytes[i])) * prime;
    result ^= result >> 32;
  }
  return result;
}

Arena::Arena(std::size_t bytes)
    : mapping_(map_between_fences(round_up(bytes, page_size()))),
      capacity_(round_up(bytes, page_size())) {}

Arena::~Arena() { unmap(mapping_, capacity_ + 2 * page_size()); }

void* Arena::region(std::size_t bytes) const {
  const std::size_t rounded = round_up(bytes, 64);
  if (rounded > capacity_ || rounded < bytes) {
    throw std::length_error(
        fmt::format("scratch of {} bytes does not fit into the arena of {}", bytes, capacity_));
  }
  return static_cast<std::byte*>(mapping_) + page_size() + (capacity_ - rounded);
}

void Arena::give_back() {
  if (capacity_ == 0) return;
  madvise(static_cast<std::byte*>(mapping_) + page_size(), capacity_, MADV_DONTNEED);
}

}  // namespace attn
