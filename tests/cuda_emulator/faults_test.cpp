// SPDX-License-Identifier: MIT
// Kernels with one fault each, and what the emulator says of it. Kernels are lambdas here, which is
// what a launch is given in the end.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mma.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "impls/support/cuda.cuh"
#include "tests/cuda_emulator/emulator.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define ATTN_SANITIZED 1
#endif

namespace attn::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// What the launch of one block throws; empty when it runs through.
template <class F>
std::string error_of(unsigned threads, std::size_t shared_bytes, const F& kernel) {
  try {
    cuda_emulator::launch({1, 1, 1}, {threads, 1, 1}, shared_bytes, kernel);
  } catch (const cuda_emulator::Error& error) {
    return error.what();
  }
  return {};
}

std::string at(int line) { return fmt::format("(faults_test.cpp:{})", line); }

TEST(SharedMemory, AnOverrunIsNoticed) {
  const auto overrun = [] {
    ATTN_DYNAMIC_SHARED(float, shared);
    shared[threadIdx.x] = 1.0F;
  };
  EXPECT_EQ(error_of(64, 64 * sizeof(float), overrun), "");
#ifdef ATTN_SANITIZED
  EXPECT_DEATH(error_of(64, 63 * sizeof(float), overrun), "heap-buffer-overflow");
#else
  EXPECT_EQ(error_of(64, 63 * sizeof(float), overrun),
            "block (0, 0, 0) wrote behind its 252 bytes of shared memory");
#endif
}

TEST(SharedMemory, UnwrittenIsNotANumber) {
  for (int block = 0; block < 2; ++block) {
    int numbers = 0;
    EXPECT_EQ(error_of(32, 32 * sizeof(float),
                       [&] {
                         ATTN_DYNAMIC_SHARED(float, shared);
                         ATTN_DYNAMIC_SHARED(__half, halves);
                         ATTN_DYNAMIC_SHARED(__nv_bfloat16, bfloats);
                         if (!std::isnan(shared[threadIdx.x])) ++numbers;
                         if (!std::isnan(__half2float(halves[threadIdx.x]))) ++numbers;
                         if (!std::isnan(__bfloat162float(bfloats[threadIdx.x]))) ++numbers;
                         __syncthreads();
                         shared[threadIdx.x] = 1.0F;  // for the next block to find, if it could
                       }),
              "");
    EXPECT_EQ(numbers, 0);
  }
}

TEST(SharedMemory, IsOnlyThereWhenTheLaunchGivesIt) {
  const auto kernel = [] {
    ATTN_DYNAMIC_SHARED(float, shared);
    shared[0] = 1.0F;
  };
  EXPECT_THAT(error_of(32, 0, kernel),
              AllOf(HasSubstr("thread 0 of block (0, 0, 0), ATTN_DYNAMIC_SHARED"),
                    HasSubstr("the launch gave no dynamic shared memory")));
}

TEST(Alignment, OfVectors) {
#ifdef ATTN_SANITIZED
  EXPECT_DEATH(error_of(1, 64,
                        [] {
                          ATTN_DYNAMIC_SHARED(float, shared);
                          *reinterpret_cast<float4*>(shared + 1) = make_float4(1, 2, 3, 4);
                        }),
               "misaligned address .* for type 'struct float4'");
#else
  GTEST_SKIP() << "seen by the undefined-behaviour sanitizer alone";
#endif
}

TEST(Alignment, OfTheWordsThatMoveTiles) {
  alignas(32) static std::uint16_t memory[512];
  const auto copy = [](int to, int from) {
    return error_of(1, 64, [=] {
      ATTN_DYNAMIC_SHARED(std::uint16_t, shared);
      cp_async(shared + to, memory + from);
    });
  };
  EXPECT_EQ(copy(8, 8), "");
  EXPECT_THAT(copy(0, 4), AllOf(HasSubstr("thread 0 of block (0, 0, 0), cp_async (faults_test.cpp"),
                                HasSubstr("the address is no multiple of 16 bytes")));
  EXPECT_THAT(copy(1, 0), HasSubstr("the address is no multiple of 16 bytes"));
  EXPECT_THAT(copy(32, 0), HasSubstr("the address is not in the block's shared memory"));

  const auto load_rows = [](unsigned stride) {
    return error_of(32, 512, [=] {
      ATTN_DYNAMIC_SHARED(std::uint16_t, shared);
      unsigned matrices[4];
      ldmatrix(matrices, shared + stride * threadIdx.x);
    });
  };
  EXPECT_EQ(load_rows(8), "");
  EXPECT_THAT(load_rows(7), AllOf(HasSubstr("thread 1 of block (0, 0, 0), ldmatrix"),
                                  HasSubstr("the address is no multiple of 16 bytes")));

  namespace wmma = nvcuda::wmma;
  const auto load_tile = [](unsigned first, unsigned stride) {
    return error_of(32, 0, [=] {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
      wmma::load_matrix_sync(a, reinterpret_cast<const __half*>(memory) + first, stride);
    });
  };
  EXPECT_EQ(load_tile(0, 16), "");
  EXPECT_THAT(load_tile(8, 16), AllOf(HasSubstr("thread 0 of block (0, 0, 0), load_matrix_sync"),
                                      HasSubstr("does not start at a multiple of 32 bytes")));
  EXPECT_THAT(load_tile(0, 20), HasSubstr("the stride is no multiple of 16 bytes"));
}

TEST(Barrier, InDivergentCodeNamesBothLines) {
  int lines[2];
  const std::string error = error_of(64, 0, [&] {
    if (threadIdx.x < 32) {
      lines[0] = __LINE__, __syncthreads();
    } else {
      lines[1] = __LINE__, __syncthreads();
    }
  });
  EXPECT_THAT(error, AllOf(HasSubstr("the threads of the block are at different barriers"),
                           HasSubstr("threads 0-31 wait at __syncthreads " + at(lines[0])),
                           HasSubstr("threads 32-63 wait at __syncthreads " + at(lines[1]))));
}

TEST(Barrier, AfterAnEarlyReturnIsNeverPassed) {
  int line = 0;
  const std::string error = error_of(64, 0, [&] {
    if (threadIdx.x >= 48 || threadIdx.x == 7) return;
    line = __LINE__, __syncthreads();
  });
  EXPECT_EQ(error, "block (0, 0, 0) can never go on: threads 0-6, 8-47 wait at __syncthreads " +
                       at(line) + "; threads 7, 48-63 returned");
}

TEST(Mask, HasToHoldTheCaller) {
  int line = 0;
  const std::string error = error_of(32, 0, [&] { line = __LINE__, __syncwarp(0xFFFFU); });
  EXPECT_EQ(error, "thread 16 of block (0, 0, 0), __syncwarp " + at(line) +
                       ": the calling lane is not in its own mask 0x0000FFFF");
}

TEST(Mask, MayNotNameLanesThatHaveReturned) {
  int line = 0;
  const std::string error = error_of(32, 0, [&] {
    if (threadIdx.x >= 16) return;
    line = __LINE__, __shfl_xor_sync(0xFFFFFFFFU, 1.0F, 1);
  });
  EXPECT_EQ(error, "block (0, 0, 0) can never go on: threads 0-15 wait at __shfl_xor_sync " +
                       at(line) + "; threads 16-31 returned");
}

TEST(Mask, MayNotNameLanesThatAreElsewhere) {
  int lines[2];
  std::string error = error_of(32, 0, [&] {
    if (threadIdx.x < 16) lines[0] = __LINE__, __shfl_xor_sync(0xFFFFFFFFU, 1.0F, 1);
    lines[1] = __LINE__, __syncthreads();
  });
  EXPECT_EQ(error, "block (0, 0, 0) can never go on: threads 0-15 wait at __shfl_xor_sync " +
                       at(lines[0]) + "; threads 16-31 wait at __syncthreads " + at(lines[1]));
  error = error_of(32, 0, [&] {
    if (threadIdx.x < 16) {
      lines[0] = __LINE__, __shfl_xor_sync(0xFFFFFFFFU, 1.0F, 1);
    } else {
      lines[1] = __LINE__, __shfl_xor_sync(0xFFFFFFFFU, 1.0F, 1);
    }
  });
  EXPECT_EQ(error, "thread 16 of block (0, 0, 0), __shfl_xor_sync " + at(lines[1]) +
                       ": lanes of its mask wait at __shfl_xor_sync " + at(lines[0]));
}

TEST(Mask, IsTheSameForAllThatItNames) {
  int line = 0;
  const std::string error = error_of(32, 0, [&] {
    const unsigned mask = threadIdx.x < 16 ? 0xFFFFFFFFU : 0xFFFF0000U;
    line = __LINE__, __shfl_xor_sync(mask, 1.0F, 1);
  });
  EXPECT_THAT(error, HasSubstr("mask 0xFFFF0000, but other lanes wait at __shfl_xor_sync " +
                               at(line) + " with mask 0xFFFFFFFF"));
}

TEST(Mask, EndsWithTheBlock) {
  EXPECT_THAT(error_of(40, 0, [] { __syncwarp(); }),
              HasSubstr("mask 0xFFFFFFFF names lanes that the block does not have: its last warp "
                        "has 8"));
}

TEST(Shuffle, FromOutsideTheMaskIsNotANumber) {
  std::vector<float> got(32, 0.0F);
  EXPECT_EQ(error_of(32, 0,
                     [&] {
                       if (threadIdx.x >= 16) return;
                       got[threadIdx.x] = __shfl_sync(0xFFFFU, 1.0F, threadIdx.x % 2 == 0 ? 20 : 3);
                     }),
            "");
  for (int l = 0; l < 16; ++l) EXPECT_EQ(std::isnan(got[l]), l % 2 == 0) << "lane " << l;
}

TEST(Launch, KnowsWhatADeviceTakes) {
  const auto nothing = [] {};
  EXPECT_EQ(error_of(1024, 0, nothing), "");
  EXPECT_EQ(error_of(1025, 0, nothing), "a block of 1025 threads: 1 to 1024 are possible");
  EXPECT_EQ(error_of(0, 0, nothing), "a block of 0 threads: 1 to 1024 are possible");
  EXPECT_EQ(error_of(32, 232449, nothing), "232449 bytes of shared memory: 232448 are the most");
  EXPECT_THROW(cuda_emulator::launch({1, 65536, 1}, {32, 1, 1}, 0, nothing), cuda_emulator::Error);
}

TEST(Launch, InsideAKernelIsNotEmulated) {
  const auto nothing = [] {};
  EXPECT_EQ(error_of(32, 0,
                     [&] {
                       cuda_emulator::launch({1, 1, 1}, {32, 1, 1}, 0, nothing);
                     }),
            "a kernel launches a kernel, which is not emulated");
}

// The fibers of a block that failed stand anywhere in it.
TEST(Launch, GoesOnAfterAFailure) {
  const auto stuck = [] {
    if (threadIdx.x != 255) __syncthreads();
  };
  for (int round = 0; round < 3; ++round) {
    EXPECT_THAT(error_of(256, 64, stuck), HasSubstr("can never go on"));
    for (const unsigned threads : {64U, 256U}) {
      unsigned ran = 0;
      EXPECT_EQ(error_of(threads, 64, [&] { __syncthreads(), ++ran; }), "");
      EXPECT_EQ(ran, threads);
    }
  }
}

}  // namespace
}  // namespace attn::test
