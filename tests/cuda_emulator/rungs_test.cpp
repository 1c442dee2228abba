// SPDX-License-Identifier: MIT
// Every rung of the ladder on the emulated device: head sizes, masks, sharings, sizes around the
// tiles' edges, and the orders in which threads may run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "harness/device.hpp"
#include "harness/registry.hpp"
#include "tests/cuda_emulator/emulator.hpp"
#include "tests/impls/check.hpp"

namespace attn::test {
namespace {

using cuda_emulator::options;
using cuda_emulator::Schedule;

// head_dim, causal, heads and heads_kv.
using Kind = std::tuple<std::int64_t, bool, std::pair<std::int64_t, std::int64_t>>;

Case case_of(const Kind& kind, std::int64_t n_q, std::int64_t n_kv) {
  const auto& [d, causal, heads] = kind;
  return core_case(fmt::format("n{}_{}", n_q, n_kv), n_q, [&, d = d, causal = causal](Case& c) {
    c.problem.n_kv = n_kv;
    c.problem.mask = causal ? Mask::causal : Mask::none;
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
    const auto point = make_device_point(backend, c.problem, tensors.io);
    point->upload();
    point->timed_run();
    point->download();
    check_outputs(tensors, *expected);
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
