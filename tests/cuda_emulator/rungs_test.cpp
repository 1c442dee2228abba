// SPDX-License-Identifier: MIT
// Every rung of the ladder on the emulated device: head sizes, masks, sharings, sizes around the
// tiles' edges, and the orders in which threads may run.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "harness/registry.hpp"
#include "impls/support/cuda.cuh"
#include "tests/cuda_emulator/emulator.hpp"
#include "tests/impls/check.hpp"

namespace attn::test {
namespace {

using cuda_emulator::options;
using cuda_emulator::Schedule;

// head_dim, causal, heads and heads_kv.
using Kind = std::tuple<std::int64_t, bool, std::pair<std::int64_t, std::int64_t>>;

Case case_of(const Kind& kind, std::int64_t n_q, std::int64_t n_kv) {
  const std::int64_t d = std::get<0>(kind);
  const auto heads = std::get<2>(kind);
  return core_case(fmt::format("n{}_{}", n_q, n_kv), n_q, [&](Case& c) {
    c.problem.n_kv = n_kv;
    c.problem.mask = std::get<1>(kind) ? Mask::causal : Mask::none;
    c.problem.memory = Memory::device;
    set_heads(c, heads.first, heads.second), set_dims(c, d, d);
  });
}

// The same problem on every backend, against one reference.
void check_on_every_rung(const Case& c) {
  std::optional<Expected> expected;
  int ran = 0;
  for (const Entry& entry : registry()) {
    SCOPED_TRACE(fmt::format("{}, {}", entry.name, c.name));
    const Backend& backend = entry.backend;
    const auto refusal = refuses(backend, c.problem);
    ASSERT_FALSE(refusal.has_value()) << refusal->sentence;
    const Tensors tensors(c, backend);
    if (!expected) expected.emplace(c, backend, tensors);
    check_device_run(tensors, backend, *expected);
    ++ran;
  }
  EXPECT_GE(ran, 2);
}

class Rungs : public testing::TestWithParam<Kind> {
 protected:
  ~Rungs() override { options() = {}; }
};

TEST_P(Rungs, MatchTheReference) {
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes;
  for (const std::int64_t n : {1, 17, 64, 128, 200, 512}) sizes.emplace_back(n, n);
  for (const auto& ragged : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 200}, {17, 64}, {64, 17}, {65, 127}, {128, 65}, {130, 515}}) {
    sizes.push_back(ragged);
  }
  for (const auto& [n_q, n_kv] : sizes) {
    if (std::max(n_q, n_kv) <= ATTN_LARGEST_N) check_on_every_rung(case_of(GetParam(), n_q, n_kv));
  }
}

TEST_P(Rungs, DoNotDependOnTheOrderOfThreads) {
  for (const Schedule schedule : {Schedule::reverse, Schedule::random, Schedule::greedy}) {
    for (const std::uint64_t seed : {1, 2}) {
      options() = {.schedule = schedule, .seed = seed};
      SCOPED_TRACE(fmt::format("schedule {}, seed {}", static_cast<int>(schedule), seed));
      check_on_every_rung(case_of(GetParam(), 65, 100));
    }
  }
}

// A grid's x ends at 2^31 - 1 blocks, y and z at 65,535: whatever the grid, all the work is done.
__global__ void mark_kernel(int* marks) { ++marks[blockIdx.x]; }

TEST(RungLimits, GridsDoNotEndAt65535) {
  std::vector<int> marks(70000, 0);
  launch(mark_kernel, static_cast<std::int64_t>(marks.size()), 1, 0, nullptr, marks.data());
  EXPECT_EQ(std::count(marks.begin(), marks.end(), 1), 70000);
}

TEST(RungLimits, ASmallGridDoesAllTheWork) {
  options().most_blocks = 3;
  check_on_every_rung(case_of({64, true, {4, 2}}, 200, 260));
  options() = {};
}

// Heads so far apart that an offset in 32 bits, of elements or of bytes, would leave the tensor. The
// memory between them is never touched and never there.
TEST(RungLimits, OffsetsHave64Bits) {
  constexpr std::int64_t apart = (std::int64_t{1} << 31) + 5;
  constexpr std::int64_t n = 70, d = 32, heads = 2;
  const std::size_t bytes = 4 * static_cast<std::size_t>((heads - 1) * apart + n * d);
  const Case c = case_of({d, true, {heads, heads}}, n, n);
  for (const Entry& entry : registry()) {
    SCOPED_TRACE(std::string(entry.name));
    const Tensors near(c, entry.backend);
    Io io = near.io;
    std::vector<void*> maps;
    const auto move_apart = [&](auto& view) {
      const auto old = view;
      view.data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      ASSERT_NE(view.data, MAP_FAILED);
      maps.push_back(const_cast<void*>(view.data));
      view.head_stride = apart;
      for (std::int64_t h = 0; h < heads; ++h) {
        std::memcpy(static_cast<float*>(maps.back()) + h * apart, old.template row<float>(0, h, 0),
                    4 * n * d);
      }
    };
    move_apart(io.q), move_apart(io.k), move_apart(io.v), move_apart(io.out);
    const Scratch scratch(cost(entry.backend, c.problem).scratch_bytes);
    run(entry.backend, c.problem, io, nullptr, scratch.data());
    for (std::int64_t h = 0; h < heads; ++h) {
      std::memcpy(near.out.view.row<float>(0, h, 0), io.out.row<float>(0, h, 0), 4 * n * d);
    }
    for (void* map : maps) munmap(map, bytes);
    check_outputs(near, Expected(c, entry.backend, near));
  }
}

std::string kind_name(const testing::TestParamInfo<Kind>& info) {
  const auto& [d, causal, heads] = info.param;
  return fmt::format("d{}_{}_{}_on_{}", d, causal ? "causal" : "all", heads.first, heads.second);
}

INSTANTIATE_TEST_SUITE_P(Emulated, Rungs,
                         testing::Combine(testing::Values(32, 64, 128), testing::Bool(),
                                          testing::Values(std::pair{2, 2}, std::pair{4, 2},
                                                          std::pair{2, 1})),
                         kind_name);

}  // namespace
}  // namespace attn::test
