// SPDX-License-Identifier: MIT
#include "harness/buffers.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

namespace attn {
namespace {

constexpr std::size_t page = 4096;

class FencedBufferDeathTest : public testing::TestWithParam<std::size_t> {};

TEST_P(FencedBufferDeathTest, HoldsItsBytes) {
  const std::size_t bytes = GetParam();
  FencedBuffer buffer(bytes);
  ASSERT_NE(buffer.data(), nullptr);
  EXPECT_EQ(buffer.size(), bytes);
  std::memset(buffer.data(), 1, bytes);
  EXPECT_TRUE(buffer.intact());
  const std::size_t alignment = bytes % 64 == 0 ? 64 : 4;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment, 0U);
}

TEST_P(FencedBufferDeathTest, AccessPastTheEndDies) {
  FencedBuffer buffer(GetParam());
  auto* end = static_cast<volatile char*>(buffer.data()) + buffer.size();
  EXPECT_DEATH({ *end = 1; }, "");
  EXPECT_DEATH({ [[maybe_unused]] const char read = *end; }, "");
}

TEST_P(FencedBufferDeathTest, WithoutProtectionThePageBehindIsOrdinaryMemory) {
  FencedBuffer buffer(GetParam(), false);
  auto* end = static_cast<volatile char*>(buffer.data()) + buffer.size();
  *end = 1;
  EXPECT_EQ(*end, 1);
}

TEST_P(FencedBufferDeathTest, ProtectedPagesAreKnownWhileTheyLive) {
  const void* end = nullptr;
  {
    const FencedBuffer buffer(GetParam());
    end = static_cast<const char*>(buffer.data()) + buffer.size();
    EXPECT_TRUE(in_protected_page(end));
    if (GetParam() > 0) {
      EXPECT_FALSE(in_protected_page(buffer.data()));
    }
  }
  EXPECT_FALSE(in_protected_page(end));
}

TEST_P(FencedBufferDeathTest, AWriteBeforeTheStartIsFoundOrDies) {
  FencedBuffer buffer(GetParam());
  auto* before = static_cast<volatile char*>(buffer.data()) - 1;
  if (GetParam() % page == 0) {
    EXPECT_DEATH({ *before = 1; }, "");
  } else {
    *before = 1;
    EXPECT_FALSE(buffer.intact());
  }
}

TEST_P(FencedBufferDeathTest, TheHashSeesEveryByte) {
  const std::size_t bytes = GetParam();
  FencedBuffer buffer(bytes);
  auto* data = static_cast<unsigned char*>(buffer.data());
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(i * 7);
  const std::uint64_t hash = buffer.hash();
  for (std::size_t i = 0; i < bytes; i += bytes / 50 + 1) {
    data[i] ^= 0x10;
    EXPECT_NE(buffer.hash(), hash) << "byte " << i;
    data[i] ^= 0x10;
  }
  EXPECT_EQ(buffer.hash(), hash);
}

INSTANTIATE_TEST_SUITE_P(Sizes, FencedBufferDeathTest,
                         testing::Values(0, 4, 60, 64, 4092, 4096, 4100, 12288, 100000));

TEST(FencedBuffer, AnEarlyWriteAtTheStartOfThePageIsFound) {
  FencedBuffer buffer(100);
  static_cast<char*>(buffer.data())[-static_cast<std::ptrdiff_t>(page - 100)] = 0;
  EXPECT_FALSE(buffer.intact());
}

TEST(FencedBuffer, Moves) {
  FencedBuffer first(128);
  first.floats()[31] = 5.0F;
  const void* data = first.data();
  FencedBuffer second(std::move(first));
  EXPECT_EQ(second.data(), data);
  FencedBuffer third;
  EXPECT_EQ(third.data(), nullptr);
  EXPECT_TRUE(third.intact());
  third = std::move(second);
  EXPECT_EQ(third.floats()[31], 5.0F);
  EXPECT_EQ(third.size(), 128U);
}

TEST(FencedBuffer, TooLargeIsBadAlloc) {
  EXPECT_THROW(FencedBuffer(SIZE_MAX - 4096), std::bad_alloc);
}

TEST(ArenaDeathTest, RegionsAreAlignedAndEndAtTheFence) {
  const Arena arena(100000);
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{5000}, std::size_t{100000}}) {
    auto* start = static_cast<char*>(arena.region(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(start) % 64, 0U);
    std::memset(start, 1, bytes);
    volatile char* fence = start + (bytes + 63) / 64 * 64;
    EXPECT_DEATH({ *fence = 1; }, "") << bytes;
  }
  EXPECT_THROW(static_cast<void>(arena.region(200000)), std::length_error);
}

TEST(Arena, GiveBackFreesThePages) {
  Arena arena(16 * page);
  auto* start = static_cast<char*>(arena.region(16 * page));
  std::memset(start, 1, 16 * page);
  const auto resident = [&] {
    std::vector<unsigned char> pages(16);
    EXPECT_EQ(mincore(start, 16 * page, pages.data()), 0);
    int sum = 0;
    for (const unsigned char flags : pages) sum += flags & 1;
    return sum;
  };
  EXPECT_EQ(resident(), 16);
  arena.give_back();
  EXPECT_EQ(resident(), 0);
  EXPECT_EQ(start[100], 0);
}

TEST(Arena, MayBeEmpty) {
  Arena arena(0);
  EXPECT_NE(arena.region(0), nullptr);
  EXPECT_THROW(static_cast<void>(arena.region(1)), std::length_error);
  arena.give_back();
}

}  // namespace
}  // namespace attn
