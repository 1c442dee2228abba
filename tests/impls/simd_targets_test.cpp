// SPDX-License-Identifier: MIT
// Every backend on Highway under every instruction set that this machine executes; conformance_test sees
// the best alone.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "harness/registry.hpp"
#include "tests/impls/check.hpp"

namespace attn::test {
namespace {

struct Subject {
  Entry entry;
  std::int64_t target;
  bool best;
};

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const Entry& entry : registry()) {
    if (!entry.built() || !std::string(entry.name).starts_with("simd.")) continue;
    const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();  // best first
    for (const std::int64_t target : targets) {
      all.push_back({entry, target, target == targets.front()});
    }
  }
  return all;
}

std::string subject_name(const Subject& subject) {
  std::string name(subject.entry.name);
  std::replace(name.begin(), name.end(), '.', '_');
  return name + "_" + hwy::TargetName(subject.target);
}

void PrintTo(const Subject& subject, std::ostream* out) { *out << subject_name(subject); }

class SimdTargets : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam().target); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(SimdTargets, MatchTheReference) {
  if (GetParam().best) GTEST_SKIP() << "conformance_test does it";
  const Backend& backend = GetParam().entry.backend;
  int done = 0;
  for (const Case& c : cases_of(backend)) {
    if (c.problem.scope != Scope::core || refuses(backend, c.problem)) continue;
    SCOPED_TRACE(c.name);
    check_run(c, backend, cost(backend, c.problem),
              [&](const Problem& p, const Io& io, void* state, void* scratch) {
                run(backend, p, io, state, scratch);
              });
    ++done;
  }
  EXPECT_GT(done, 0);
}

TEST_P(SimdTargets, SayWhichTheyAre) {
  const Backend& backend = GetParam().entry.backend;
  EXPECT_NE(
      backend.resolved_impl(core_cases().front().problem).find(hwy::TargetName(GetParam().target)),
      std::string::npos);
}

// Also with more threads than cores.
TEST_P(SimdTargets, GiveTheSameBitsOnAnyNumberOfThreads) {
  const Backend& backend = GetParam().entry.backend;
  const DType dtype = cases_of(backend).front().problem.dtype;
  for (const Mask mask : {Mask::none, Mask::causal}) {
    std::vector<float> on_one;
    for (const int threads : {1, 2, 3, 7}) {
      const Case c = core_case("threads", 333, [&](Case& wanted) {
        set_heads(wanted, 4, 2), set_dims(wanted, 32, 24);
        wanted.problem.mask = mask;
        wanted.problem.threads = threads;
        wanted.problem.dtype = dtype;
      });
      if (refuses(backend, c.problem)) continue;
      const Tensors tensors(c, backend);
      const Scratch scratch(cost(backend, c.problem).scratch_bytes);
      run(backend, c.problem, tensors.io, nullptr, scratch.data());
      const std::vector<float> values = values_of(tensors.result());
      if (on_one.empty()) on_one = values;
      ASSERT_EQ(std::memcmp(values.data(), on_one.data(), values.size() * sizeof(float)), 0)
          << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryBackend, SimdTargets, testing::ValuesIn(subjects()),
                         [](const auto& subject) { return subject_name(subject.param); });

}  // namespace
}  // namespace attn::test
