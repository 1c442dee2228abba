// SPDX-License-Identifier: MIT
// The kernel text of one cpu backend (ATTN_BACKEND_FILE) run on a scalar that counts: cost().flops
// and cost().exps must be what the loops do. Products outside madd are not counted and so are found
// missing; calls of exp and tanh are found by argument-dependent lookup.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace attn {

struct Tally {
  std::int64_t flops = 0;
  std::int64_t exps = 0;
};
Tally tally;

struct Counted {
  float value;
  Counted() = default;
  explicit Counted(float v) : value(v) {}
  explicit Counted(int v) : value(static_cast<float>(v)) {}
  friend Counted operator+(Counted a, Counted b) { return Counted(a.value + b.value); }
  friend Counted operator-(Counted a, Counted b) { return Counted(a.value - b.value); }
  friend Counted operator*(Counted a, Counted b) { return Counted(a.value * b.value); }
  friend Counted operator/(Counted a, Counted b) { return Counted(a.value / b.value); }
  friend Counted operator-(Counted a) { return Counted(-a.value); }
  friend bool operator>(Counted a, Counted b) { return a.value > b.value; }
  friend Counted madd(Counted accumulator, Counted a, Counted b) {
    tally.flops += 2;
    return Counted(accumulator.value + a.value * b.value);
  }
  friend Counted exp(Counted a) {
    ++tally.exps;
    return Counted(std::exp(a.value));
  }
  friend Counted tanh(Counted a) {
    ++tally.exps;
    return Counted(std::tanh(a.value));
  }
  friend Counted log(Counted a) { return Counted(std::log(a.value)); }
};
static_assert(sizeof(Counted) == sizeof(float), "it takes a float's place in every tensor");

}  // namespace attn

#include ATTN_BACKEND_FILE  // its kernel is under test

#include "harness/work.hpp"
#include "tests/impls/check.hpp"

namespace attn::test {
namespace {

TEST(ATTN_SUITE, FlopsAndExpsAreWhatTheLoopsDo) {
  const Backend backend = ATTN_BACKEND();
  int checked = 0;
  for (const Case& c : cases_for(backend.family)) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const bool own_scope =
        backend.family == Family::attention ? p.scope == Scope::core : p.scope == Scope::layer;
    if (!own_scope || backend.refuses(p)) continue;
    const Cost declared = backend.cost(p);
    tally = {};
    check_run(c, backend, declared, [](const Problem& problem, const Io& io, void*, void* scratch) {
      compute(problem, io, static_cast<Counted*>(scratch));
    });
    EXPECT_EQ(declared.flops, tally.flops);
    EXPECT_GE(declared.flops, flops_model(p, backend.family));  // a method may compute twice
    if (declared.exps_at_least) {
      EXPECT_LE(declared.exps, tally.exps);
    } else {
      EXPECT_EQ(declared.exps, tally.exps);
    }
    ++checked;
  }
  EXPECT_GE(checked, 8);
}

}  // namespace
}  // namespace attn::test
