// SPDX-License-Identifier: MIT
// What the backends of impls/cuda declare, held against what they do.
#include "tests/cuda_emulator/traffic.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "harness/registry.hpp"
#include "tests/impls/check.hpp"

namespace attn::test {
namespace {

using cuda_emulator::Moved;
using cuda_emulator::Traffic;

struct Declared {
  Cost cost;
  Traffic traffic;
};

Declared count(const Backend& backend, const Case& c) {
  Declared result;
  result.cost = cost(backend, c.problem);
  const Tensors tensors(c, backend);
  const Scratch scratch(result.cost.scratch_bytes);
  cuda_emulator::count_traffic();
  // Without what a run need not ask for, as cost() is.
  for (const Tensor* t : {&tensors.q, &tensors.k, &tensors.v, &tensors.out}) {
    cuda_emulator::watch(t->buffer.data(), t->buffer.size());
  }
  cuda_emulator::watch(scratch.data(), static_cast<std::size_t>(result.cost.scratch_bytes));
  run(backend, c.problem, tensors.io, nullptr, scratch.data());
  result.traffic = cuda_emulator::counted_traffic();
  check_outputs(tensors, Expected(c, backend, tensors));
  return result;
}

std::vector<Entry> backends() {
  std::vector<Entry> built;
  for (const Entry& entry : registry()) {
    if (entry.built()) built.push_back(entry);
  }
  return built;
}

// Tiles that are full, ragged and empty, with and without a mask, with shared heads.
std::vector<Case> small_cases() {
  std::vector<Case> cases;
  for (const auto& [n_q, n_kv] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {1, 70}, {33, 33}, {64, 64}, {65, 40}, {70, 130}, {130, 70}}) {
    for (const bool causal : {false, true}) {
      cases.push_back(core_case(fmt::format("{}_{}{}", n_q, n_kv, causal ? "_causal" : ""), n_q,
                                [n_kv = n_kv, causal](Case& c) {
                                  c.problem.n_kv = n_kv;
                                  c.problem.mask = causal ? Mask::causal : Mask::none;
                                  set_heads(c, 4, 2), set_dims(c, 32, 32);
                                }));
    }
  }
  cases.push_back(core_case("d24_dv40", 37, [](Case& c) { set_dims(c, 24, 40); }));
  cases.push_back(core_case("d128", 37, [](Case& c) { set_dims(c, 128, 128); }));
  cases.push_back(core_case("batch", 9, [](Case& c) { c.problem.batch = 3, set_heads(c, 2, 1); }));
  return cases;
}

TEST(Traffic, IsWhatCostDeclares) {
  ASSERT_FALSE(backends().empty());
  for (const Entry& entry : backends()) {
    for (const Case& c : small_cases()) {
      SCOPED_TRACE(fmt::format("{}, {}", entry.name, c.name));
      if (refuses(entry.backend, c.problem)) continue;
      const Declared declared = count(entry.backend, c);
      EXPECT_EQ(declared.cost.bytes, declared.traffic.global_bytes());
      EXPECT_EQ(declared.cost.flops, 2 * declared.traffic.fmas);
      EXPECT_EQ(declared.cost.exps, declared.traffic.exps);
    }
  }
}

std::string per_cent(const Moved& moved) {
  return moved.steps == 0 ? "–"
                          : fmt::format("{:.0f} %", 100.0 * static_cast<double>(moved.least_steps) /
                                                        static_cast<double>(moved.steps));
}

// With full tiles: what a lane's neighbour does is all that decides.
TEST(Traffic, TilesAreCoalescedAndFreeOfBankConflicts) {
  for (const Entry& entry : backends()) {
    for (const std::int64_t d : {64, 128}) {
      SCOPED_TRACE(fmt::format("{}, head_dim {}", entry.name, d));
      const Case c = core_case("full", 128, [&](Case& wanted) { set_dims(wanted, d, d); });
      const Traffic t = count(entry.backend, c).traffic;
      fmt::print(
          "{:12} head_dim {:3}: sectors used, loads {} and stores {}; wavefronts needed, "
          "loads {} and stores {}\n",
          entry.name, d, per_cent(t.global_loads), per_cent(t.global_stores),
          per_cent(t.shared_loads), per_cent(t.shared_stores));
      if (entry.name == "cuda.naive") {
        EXPECT_GT(t.global_loads.steps, t.global_loads.least_steps) << "then what does it teach?";
        continue;
      }
      EXPECT_EQ(t.global_loads.steps, t.global_loads.least_steps);
      EXPECT_EQ(t.global_stores.steps, t.global_stores.least_steps);
      EXPECT_EQ(t.shared_loads.steps, t.shared_loads.least_steps);
      EXPECT_EQ(t.shared_stores.steps, t.shared_stores.least_steps);
      for (const auto& [place, moved] : t.wasteful) {
        ADD_FAILURE() << "at " << place << " " << moved.accesses << " accesses of warps take "
                      << moved.steps << " sectors or wavefronts where " << moved.least_steps
                      << " would do";
      }
    }
  }
}

}  // namespace
}  // namespace attn::test
