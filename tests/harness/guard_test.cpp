// SPDX-License-Identifier: MIT
#include "harness/guard.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <stdexcept>

#include "harness/names.hpp"
#include "harness/reference.hpp"
#include "harness/verify.hpp"
#include "harness/work.hpp"
#include "tests/harness/honest.hpp"

namespace {
std::atomic<long> allocations{0};
}  // namespace

// The sanitizers bring their own operators, and then nothing is counted.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Not inlined: the compiler would see memory of malloc go to delete and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace attn {
namespace {

using testing_support::answer;
using testing_support::at;
using testing_support::trial;
using testing_support::trial_in_16_bits;

struct Setting {
  Setting(const Problem& problem, Family family, std::uint64_t seed)
      : shape(problem, family, seed, InputDist::normal), output(problem, family) {
    output.poison();
  }
  void honest() { write(answer<float>(shape.problem(), shape.family(), shape.io())); }
  void write(const std::vector<float>& values) {
    testing_support::write(values, output, shape.problem().dtype);
  }
  Shape shape;
  Output output;
};

void expect_honest_passes(testing_support::Trial (*make)(std::uint64_t), std::uint64_t trials) {
  for (std::uint64_t t = 0; t < trials; ++t) {
    const auto [problem, family] = make(t);
    SCOPED_TRACE(testing_support::describe({problem, family}));
    Setting setting(problem, family, t);
    setting.honest();
    const std::uint64_t hash = setting.shape.hash();
    Guard guard(setting.shape, setting.output);
    for (std::uint64_t lot = 0; lot < 6; ++lot) {
      guard.disturb(lot);
      setting.honest();
      const auto wrong = guard.check();
      EXPECT_FALSE(wrong) << wrong->reason;
      EXPECT_EQ(setting.shape.hash(), hash);
    }
  }
}

TEST(Guard, AnHonestBackendPassesAndItsInputsComeBack) { expect_honest_passes(trial, 400); }

TEST(Guard, AnHonestBackendPassesIn16Bits) { expect_honest_passes(trial_in_16_bits, 200); }

// What a backend does in place of computing: given its honest answer to the inputs before the
// change and whether this call is an odd one.
using Liar = std::function<void(Setting&, const std::vector<float>& before, int call)>;

// The share of `samples` guarded calls that were found wrong.
int caught(Setting& setting, const Liar& liar, int samples) {
  setting.honest();
  const auto before =
      answer<float>(setting.shape.problem(), setting.shape.family(), setting.shape.io());
  Guard guard(setting.shape, setting.output);
  int found = 0;
  for (int sample = 0; sample < samples; ++sample) {
    guard.disturb(static_cast<std::uint64_t>(sample) * 7919 + 3);
    liar(setting, before, sample);
    found += guard.check().has_value() ? 1 : 0;
  }
  return found;
}

void does_nothing(Setting&, const std::vector<float>&, int) {}
void repeats_its_last_answer(Setting& s, const std::vector<float>& before, int) { s.write(before); }
void skips_every_second_call(Setting& s, const std::vector<float>&, int call) {
  if (call % 2 == 0) s.honest();
}

// Whether a change of inputs can show: some query sees a key, and at layer scope one beside its
// own.
bool can_follow(const Problem& p, Family family) {
  if (family != Family::attention) return true;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = 0; i < p.n_q; ++i) {
      if (p.visible(b, i) > (p.scope == Scope::layer && p.n_q == p.n_kv ? 1 : 0)) return true;
    }
  }
  return false;
}

TEST(Guard, LiarsAreCaughtInEveryFamily) {
  int followed = 0;
  for (std::uint64_t t = 0; t < 250; ++t) {
    const auto [problem, family] = trial(t);
    SCOPED_TRACE(testing_support::describe({problem, family}));
    Setting setting(problem, family, t);
    EXPECT_EQ(caught(setting, does_nothing, 4), 4);
    EXPECT_EQ(caught(setting, skips_every_second_call, 4), 2);
    if (!can_follow(problem, family)) continue;
    ++followed;
    const int found = caught(setting, repeats_its_last_answer, 24);
    // A gate of a recurrence of one or three units may be shut for the new input too.
    if (family == Family::attention) {
      EXPECT_EQ(found, 24);
    } else {
      EXPECT_GE(found, 16);
    }
  }
  EXPECT_GT(followed, 200);
}

TEST(Guard, LiarsAreCaughtIn16Bits) {
  for (std::uint64_t t = 0; t < 100; ++t) {
    const auto [problem, family] = trial_in_16_bits(t);
    SCOPED_TRACE(testing_support::describe({problem, family}));
    Setting setting(problem, family, t);
    EXPECT_EQ(caught(setting, does_nothing, 4), 4);
    EXPECT_EQ(caught(setting, skips_every_second_call, 4), 2);
    if (!can_follow(problem, family)) continue;
    EXPECT_EQ(caught(setting, repeats_its_last_answer, 8), 8);
  }
}

Problem long_problem(Scope scope, std::int64_t n) {
  Problem p;
  p.scope = scope;
  p.heads = 4;
  p.heads_kv = 2;
  p.head_dim = p.head_dim_v = 8;
  p.d_model = 32;
  p.n_q = p.n_kv = n;
  p.output_projection = true;
  return p;
}

TEST(Guard, LongShapes) {
  for (const Scope scope : {Scope::core, Scope::layer}) {
    for (const Mask mask : {Mask::none, Mask::causal}) {
      Problem p = long_problem(scope, 900);
      p.mask = mask;
      Setting setting(p, Family::attention, 1);
      EXPECT_EQ(caught(
                    setting, [](Setting& s, const auto&, int) { s.honest(); }, 4),
                0);
      EXPECT_EQ(caught(setting, repeats_its_last_answer, 40), 40);
      EXPECT_EQ(caught(setting, does_nothing, 40), 40);
    }
  }
  Problem p;
  p.scope = Scope::layer;
  p.d_model = 160;
  p.batch = 2;
  p.n_q = p.n_kv = 400;
  Setting setting(p, Family::lstm, 1);
  ASSERT_EQ(setting.shape.truth().mode, "windows");
  EXPECT_EQ(caught(
                setting, [](Setting& s, const auto&, int) { s.honest(); }, 2),
            0);
  EXPECT_EQ(caught(setting, repeats_its_last_answer, 20), 20);
}

TEST(Guard, WeightsNearOneAndNearZeroGiveNoFalseAlarm) {
  for (const double scale : {0.0, 0.01, 1.0, 3.0}) {
    Problem p;
    p.heads = 4;
    p.heads_kv = 1;
    p.n_q = p.n_kv = 200;
    p.scale = scale;
    Setting setting(p, Family::attention, 3);
    EXPECT_EQ(caught(
                  setting, [](Setting& s, const auto&, int) { s.honest(); }, 10),
              0)
        << scale;
    EXPECT_EQ(caught(setting, repeats_its_last_answer, 30), 30) << scale;
  }
}

// The key that one head weighs least of all possible (1 / n) another head may weigh with 1: its row
// then moves by 2 n RMS, and so do the rounding errors of an honest backend.
TEST(Guard, ALargeMoveInAnotherHeadIsNoFalseAlarm) {
  Problem p;
  p.heads = 2;
  p.n_q = p.n_kv = 400;
  Setting setting(p, Family::attention, 3);
  const Io io = setting.shape.io();
  const float* k = io.k.row<float>(0, 0, 0);
  for (std::int64_t i = 0; i < p.n_q; ++i) {
    std::fill_n(const_cast<float*>(io.q.row<float>(0, 0, i)), 64, 0.0F);
    for (std::int64_t c = 0; c < 64; ++c)
      const_cast<float*>(io.q.row<float>(0, 1, i))[c] = 2 * k[c];
  }
  EXPECT_EQ(caught(
                setting, [](Setting& s, const auto&, int) { s.honest(); }, 20),
            0);
  EXPECT_EQ(caught(setting, repeats_its_last_answer, 20), 20);
}

TEST(Guard, EveryHeadAndBatchItemMustBeWritten) {
  for (const auto& [scope, family] : {std::pair{Scope::core, Family::attention},
                                      {Scope::layer, Family::attention},
                                      {Scope::layer, Family::gru}}) {
    Problem p = long_problem(scope, 20);
    p.batch = 3;
    const std::int64_t pairs = scope == Scope::core ? p.batch * p.heads : p.batch;
    Setting setting(p, family, 1);
    for (std::int64_t missing = 0; missing < pairs; ++missing) {
      const auto liar = [&](Setting& s, const auto&, int) {
        auto values = answer<float>(s.shape.problem(), s.shape.family(), s.shape.io());
        auto* to = static_cast<float*>(s.output.view().data);
        const std::size_t part = values.size() / at(pairs);
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (i / part != at(missing)) to[i] = values[i];
        }
      };
      EXPECT_EQ(caught(setting, liar, 5), 5) << "part " << missing;
    }
  }
}

TEST(Guard, ASharedKvHeadMovesAllItsQueryHeads) {
  // A backend that hands every query head the v of before but for one of each group.
  Problem p = long_problem(Scope::core, 30);
  Setting setting(p, Family::attention, 1);
  const auto liar = [&](Setting& s, const std::vector<float>& before, int) {
    auto values = answer<float>(s.shape.problem(), s.shape.family(), s.shape.io());
    for (std::int64_t h = 1; h < p.heads; h += 2) {
      const auto part = h * p.n_q * p.head_dim_v;
      std::copy_n(before.begin() + part, p.n_q * p.head_dim_v, values.begin() + part);
    }
    s.write(values);
  };
  // The stale head's row may weigh the key next to nothing: most samples see it, not each.
  EXPECT_GE(caught(setting, liar, 40), 38);
}

// Which rules found something in `samples` guarded calls.
std::map<Safeguard, int> rules_of(Setting& setting, const Liar& liar, int samples,
                                  std::initializer_list<Safeguard> without = {}) {
  Safeguards rules;
  for (const Safeguard rule : without) rules.remove(rule);
  setting.honest();
  const auto before =
      answer<float>(setting.shape.problem(), setting.shape.family(), setting.shape.io());
  Guard guard(setting.shape, setting.output, rules);
  std::map<Safeguard, int> found;
  for (int sample = 0; sample < samples; ++sample) {
    guard.disturb(static_cast<std::uint64_t>(sample) * 7919 + 3);
    liar(setting, before, sample);
    if (const auto finding = guard.check()) ++found[finding->rule];
  }
  return found;
}

void writes_what_is_poisoned(Setting& s, const std::vector<float>&, int) {
  const auto values = answer<float>(s.shape.problem(), s.shape.family(), s.shape.io());
  with_element(s.shape.problem().dtype, [&]<class Element>(Element) {
    auto* to = static_cast<Element*>(s.output.view().data);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(to[i])) to[i] = Element(values[i]);
    }
  });
}

TEST(Guard, RowsThatAreNotPoisonedAreCheckedToo) {
  // Where a second row hardly weighs the key, it moves by less than 16 bits can tell.
  for (const auto& [scope, dtype, least] : {std::tuple{Scope::core, DType::f32, 40},
                                            {Scope::layer, DType::f32, 30},
                                            {Scope::core, DType::f16, 30}}) {
    Problem p = long_problem(scope, 40);
    p.dtype = dtype;
    Setting setting(p, Family::attention, 1);
    const auto found = rules_of(setting, writes_what_is_poisoned, 40);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_GE(found.at(Safeguard::guard_second_row), least);
    EXPECT_TRUE(
        rules_of(setting, writes_what_is_poisoned, 40, {Safeguard::guard_second_row}).empty());
  }
}

// A backend that keeps K, or V, of the inputs before the change.
Liar keeps(ConstView Io::*tensor, const std::vector<std::byte>& copy) {
  return [=](Setting& s, const std::vector<float>&, int) {
    Io io = s.shape.io();
    (io.*tensor).data = copy.data();
    s.write(answer<float>(s.shape.problem(), s.shape.family(), io));
  };
}

class GuardOfDType : public testing::TestWithParam<DType> {};

TEST_P(GuardOfDType, SaysWhichChangeWasMissed) {
  Problem p = long_problem(Scope::core, 60);
  p.dtype = GetParam();
  Setting setting(p, Family::attention, 1);
  const Io io = setting.shape.io();
  const auto copy = [&](const ConstView& view) {
    const auto* data = static_cast<const std::byte*>(view.data);
    return std::vector<std::byte>(data, data + view.batch_stride * bytes_per_element(p.dtype));
  };
  const auto old_k = copy(io.k);
  const auto old_v = copy(io.v);
  using Found = std::map<Safeguard, int>;
  EXPECT_EQ(rules_of(setting, keeps(&Io::k, old_k), 40), (Found{{Safeguard::guard_key, 40}}));
  EXPECT_EQ(rules_of(setting, keeps(&Io::v, old_v), 40), (Found{{Safeguard::guard_value, 40}}));
  EXPECT_EQ(rules_of(setting, keeps(&Io::k, old_k), 40, {Safeguard::guard_key}), Found{});
  EXPECT_EQ(rules_of(setting, keeps(&Io::v, old_v), 40, {Safeguard::guard_value}), Found{});
  EXPECT_EQ(rules_of(setting, does_nothing, 40), (Found{{Safeguard::guard_row, 40}}));
  // Who keeps both is found by either; 16 bits cannot tell the new value of a weight of before.
  Found both = rules_of(setting, repeats_its_last_answer, 40);
  if (p.dtype != DType::f32) {
    both[Safeguard::guard_value] += both[Safeguard::guard_key];
    both.erase(Safeguard::guard_key);
  }
  EXPECT_EQ(both, (Found{{Safeguard::guard_value, 40}}));
}

INSTANTIATE_TEST_SUITE_P(Each, GuardOfDType, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

TEST(Guard, DegradesWhereNothingCanBeGuarded) {
  for (const auto& [batch, n_q, n_kv] :
       {std::tuple<int, int, int>{0, 4, 4}, {2, 0, 3}, {1, 3, 0}, {1, 1, 1}}) {
    for (const Family family : {Family::attention, Family::rnn}) {
      for (const Scope scope : {Scope::core, Scope::layer}) {
        if (family == Family::rnn && (scope == Scope::core || n_q != n_kv)) continue;
        Problem p = long_problem(scope, 1);
        p.batch = batch;
        p.n_q = n_q;
        p.n_kv = n_kv;
        Setting setting(p, family, 1);
        EXPECT_EQ(caught(
                      setting, [](Setting& s, const auto&, int) { s.honest(); }, 3),
                  0);
        EXPECT_EQ(caught(setting, does_nothing, 3), batch * n_q > 0 ? 3 : 0);
      }
    }
  }
}

TEST(Guard, PutsInputsBackWhenItIsDropped) {
  for (const Family family : {Family::attention, Family::lstm}) {
    for (const Scope scope : {Scope::core, Scope::layer}) {
      const Problem p = long_problem(scope, 30);
      Setting setting(p, family, 1);
      const std::uint64_t hash = setting.shape.hash();
      {
        Guard guard(setting.shape, setting.output);
        guard.disturb(1);
        EXPECT_NE(setting.shape.hash(), hash);
        guard.disturb(2);
      }
      EXPECT_EQ(setting.shape.hash(), hash);
    }
  }
}

TEST(ChangedRow, KnowsWhatIsStoredAndPutsItBack) {
  const float before[] = {1.0F, -3.0F, 0x1p-20F};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    float tensor[3];  // room enough for each dtype
    write_row(dtype, before, 3, tensor);
    std::vector<float> stored(3);
    read_row(dtype, tensor, 3, stored.data());
    {
      ChangedRow row(dtype, 3);
      float* values = row.take(tensor);
      EXPECT_TRUE(std::equal(stored.begin(), stored.end(), values));
      values[1] = 1.0F / 3;
      row.write();
      EXPECT_EQ(row.values()[1], rounded(dtype, 1.0F / 3));
      EXPECT_EQ(row.saved()[1], -3.0F);
      std::vector<float> changed(3);
      read_row(dtype, tensor, 3, changed.data());
      EXPECT_TRUE(std::equal(changed.begin(), changed.end(), row.values()));
      EXPECT_TRUE(row.active());
    }
    std::vector<float> after(3);
    read_row(dtype, tensor, 3, after.data());
    EXPECT_EQ(after, stored);
  }
}

TEST(Guard, ARefilledShapeNeedsANewOne) {
  Setting setting(long_problem(Scope::core, 30), Family::attention, 1);
  Guard old(setting.shape, setting.output);
  setting.shape.refill(2);
  EXPECT_THROW(old.disturb(1), std::logic_error);
  Guard guard(setting.shape, setting.output);
  guard.disturb(1);
  setting.honest();
  const auto wrong = guard.check();
  EXPECT_FALSE(wrong) << wrong->reason;
}

TEST(Guard, AllocatesNothing) {
  for (const auto& [family, scope, dtype] : {std::tuple{Family::attention, Scope::core, DType::f32},
                                             {Family::attention, Scope::core, DType::bf16},
                                             {Family::attention, Scope::layer, DType::f32},
                                             {Family::lstm, Scope::layer, DType::f32}}) {
    Problem p = long_problem(scope, 30);
    p.dtype = dtype;
    Setting setting(p, family, 1);
    Guard guard(setting.shape, setting.output);
    for (std::uint64_t lot = 0; lot < 10; ++lot) {
      long before = allocations;
      guard.disturb(lot);
      EXPECT_EQ(allocations, before);
      setting.honest();
      before = allocations;
      EXPECT_FALSE(guard.check());
      EXPECT_EQ(allocations, before);
    }
  }
}

}  // namespace
}  // namespace attn
