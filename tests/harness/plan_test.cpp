// SPDX-License-Identifier: MIT
#include "harness/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "harness/error.hpp"

namespace attn {
namespace {

using testing::HasSubstr;

int count(const std::vector<Point>& points, const std::function<bool(const Point&)>& wanted) {
  return static_cast<int>(std::count_if(points.begin(), points.end(), wanted));
}

std::string plan_complaint(const PlanOptions& options) {
  try {
    make_plan(options);
  } catch (const CommandError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "";
}

TEST(Plan, DefaultSweepHasItsFourParts) {
  const auto points = make_plan({.all_threads = 2, .most_threads = 2});
  const auto core_one_head = [](const Point& p) {
    return p.problem.scope == Scope::core && p.problem.regime == Regime::prefill &&
           p.problem.heads == 1;
  };
  // Complexity: ten n for both attention backends and the one that is not built.
  EXPECT_EQ(count(points, core_one_head), 30);
  EXPECT_EQ(count(points, [&](const Point& p) { return core_one_head(p) && p.cutoff_s == 15; }),
            30);
  EXPECT_EQ(count(points, [&](const Point& p) { return core_one_head(p) && p.fitted; }), 30);
  // Sharing: seven n, three sharings, the threaded backend on all threads.
  EXPECT_EQ(count(points,
                  [](const Point& p) {
                    return p.problem.heads == 4 && p.problem.scope == Scope::core &&
                           p.problem.regime == Regime::prefill && p.problem.threads == 2;
                  }),
            21);
  EXPECT_EQ(count(points, [](const Point& p) { return p.problem.regime == Regime::decode; }), 42);
  EXPECT_EQ(count(points, [](const Point& p) { return p.problem.scope == Scope::layer; }), 7 + 10);
}

// They would lengthen a sweep that is timed to the minute, and fill its tables with what is not built.
TEST(Plan, PeersTakePartOnlyWhereTheyAreNamed) {
  const auto peers = [](const PlanOptions& options) {
    return count(make_plan(options),
                 [](const Point& p) { return p.entry->name.starts_with("peer."); });
  };
  EXPECT_EQ(peers({}), 0);
  EXPECT_EQ(peers({.selection = {.skip = {"cpu.*"}}}), 0);
  EXPECT_EQ(peers({.axes = {{"n", "64"}}}), 0);
  EXPECT_EQ(peers({.selection = {.only = {"cpu.*", "peer.*"}}, .axes = {{"n", "64"}}}), 2);
  EXPECT_EQ(peers({.selection = {.only = {"peer.absent"}}}), 10);
}

TEST(Plan, QuickIsTheDefaultSweepUpTo2048) {
  const auto full = make_plan({});
  const auto quick = make_plan({.presets = {"quick"}});
  std::set<std::string> expected;
  for (const Point& p : full) {
    if (p.problem.n_kv <= 2048) expected.insert(p.key);
  }
  std::set<std::string> keys;
  for (const Point& p : quick) keys.insert(p.key);
  EXPECT_EQ(keys, expected);
}

TEST(Plan, AxesMakeOneGrid) {
  const auto points = make_plan(
      {.selection = {.only = {"cpu.plain"}},
       .axes = {{"n", "64,128"}, {"heads", "8"}, {"heads-kv", "8,2,1"}, {"causal", "both"}}});
  EXPECT_EQ(points.size(), 12);
  EXPECT_EQ(count(points, [](const Point& p) { return p.fitted; }), 0);
}

TEST(Plan, DtypesOfOneGridAreDifferentPoints) {
  const std::vector<Point> points = make_plan(
      {.selection = {.only = {"cpu.plain"}}, .axes = {{"n", "64"}, {"dtype", "f32,bf16,f32"}}});
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[1].problem.dtype, DType::bf16);
  EXPECT_NE(points[0].id, points[1].id);
  EXPECT_NE(points[0].label(), points[1].label());  // compare pairs by label
}

TEST(Plan, LongOneThreadCurvesAreFitted) {
  const auto points = make_plan({.axes = {{"n", "128:8192"}}, .all_threads = 2, .most_threads = 2});
  EXPECT_EQ(count(points, [](const Point& p) { return p.fitted != (p.problem.threads == 1); }), 0);
}

TEST(Plan, EqualKeysAreOnePoint) {
  // A recurrence has no heads: three values of heads-kv are one problem to it.
  const auto points = make_plan(
      {.selection = {.only = {"cpu.lstm"}},
       .axes = {{"n", "64"}, {"scope", "layer"}, {"heads-kv", "4,2,1"}, {"d-model", "64"}}});
  EXPECT_EQ(points.size(), 1);
}

TEST(Plan, IdsDifferWhereKeysDo) {
  const auto points = make_plan({});
  std::set<std::string> ids;
  for (const Point& p : points) ids.insert(p.id);
  EXPECT_EQ(ids.size(), points.size());
}

TEST(Plan, ExplicitCutoffHoldsEverywhere) {
  for (const Point& p : make_plan({.cutoff_s = 2.5})) EXPECT_EQ(p.cutoff_s, 2.5);
}

TEST(Plan, ThreadsAreAtMostWhatIsThere) {
  const auto points = make_plan({.selection = {.only = {"blas.shared"}},
                                 .axes = {{"n", "64"}, {"threads", "1,8"}},
                                 .all_threads = 2,
                                 .most_threads = 2});
  ASSERT_EQ(points.size(), 2);
  EXPECT_EQ(points[1].problem.threads, 2);
}

TEST(Plan, ReproCommandNamesTheWholeProblem) {
  const auto points =
      make_plan({.selection = {.only = {"cpu.plain"}},
                 .axes = {{"n", "64"}, {"scope", "layer"}, {"d-model", "32"}, {"causal", "true"}}});
  EXPECT_THAT(
      points.front().repro_command(),
      testing::AllOf(HasSubstr("--only cpu.plain"), HasSubstr("--scope layer"),
                     HasSubstr("--d-model 32"), HasSubstr("--causal true"), HasSubstr("--seed 1")));
}

TEST(Plan, BadWordsAreNamedWithWhatWouldWork) {
  EXPECT_THAT(plan_complaint({.selection = {.only = {"cpu.plane"}}}),
              HasSubstr("the nearest is cpu.plain"));
  EXPECT_THAT(plan_complaint({.presets = {"larger"}}), HasSubstr("default"));
  EXPECT_THAT(plan_complaint({.axes = {{"heads", "8"}, {"heads-kv", "3"}}}),
              HasSubstr("--heads-kv: 3"));
  EXPECT_THAT(plan_complaint({.axes = {{"scope", "half"}}}), HasSubstr("core, layer"));
  EXPECT_THAT(plan_complaint({.axes = {{"scale", "nan"}}}), HasSubstr("--scale"));
  EXPECT_THAT(plan_complaint({.axes = {{"causal", "maybe"}}}), HasSubstr("--causal"));
  EXPECT_THAT(plan_complaint({.axes = {{"head-dim", "0"}}}), HasSubstr("--head-dim"));
  EXPECT_THAT(plan_complaint({.axes = {{"n", "64"}}, .presets = {"quick"}}), HasSubstr("--n"));
  EXPECT_THAT(plan_complaint({.selection = {.only = {"cpu.*"}, .skip = {"cpu.*"}}}),
              HasSubstr("no backend"));
}

TEST(Plan, AGlobWithoutAMatchIsNamedWithTheBackends) {
  EXPECT_THAT(plan_complaint({.selection = {.only = {"tpu.*"}}}),
              testing::AllOf(HasSubstr("--only: \"tpu.*\""), HasSubstr("cpu.plain, ")));
}

TEST(Plan, AScaleThatOverflowsIsRefused) {
  for (const char* scale : {"1e39", "-1e39", "1e29", "1e308"}) {
    EXPECT_THAT(plan_complaint({.axes = {{"scale", scale}}}), HasSubstr("--scale")) << scale;
  }
  EXPECT_EQ(plan_complaint({.axes = {{"n", "16"}, {"scale", "-1e28"}}}), "");
}

TEST(Plan, ValuesWithoutEffectAreRefused) {
  EXPECT_THAT(plan_complaint({.axes = {{"d-model", "64"}}}), HasSubstr("--d-model"));
  EXPECT_THAT(plan_complaint({.axes = {{"output-projection", "true"}}}),
              HasSubstr("--output-projection"));
  EXPECT_THAT(plan_complaint({.axes = {{"n", "8,16"}, {"n-q", "4"}, {"n-kv", "4"}}}),
              HasSubstr("--n:"));
  // A shape brings its own d_model; asking for its core alone is no contradiction.
  EXPECT_EQ(plan_complaint({.axes = {{"scope", "core"}, {"n", "16"}}, .presets = {"bert-base"}}),
            "");
}

TEST(Plan, MorePointsThanAnybodyWaitsForAreRefused) {
  const std::string most = "1:2147483647:xsqrt2";  // 62 values
  EXPECT_THAT(
      plan_complaint({.axes = {{"n", "1"}, {"batch", most}, {"heads", most}, {"head-dim", most}}}),
      testing::AllOf(HasSubstr("--batch --head-dim --heads --n"), HasSubstr("100000")));
}

TEST(Plan, GlobsTakeNoTimeToSpeakOf) {
  std::string stars;
  for (int i = 0; i < 40; ++i) stars += "*a";
  EXPECT_FALSE(matches_glob(stars + "b", std::string(60, 'a')));
}

TEST(Plan, GlobsMatch) {
  EXPECT_TRUE(matches_glob("cpu.[no]*", "cpu.online"));
  EXPECT_TRUE(matches_glob("cpu.*", "cpu.naive"));
  EXPECT_TRUE(matches_glob("*.n?ive", "cpu.naive"));
  EXPECT_FALSE(matches_glob("cpu.*", "blas.gqa"));
  EXPECT_FALSE(matches_glob("cpu", "cpu.naive"));
}

}  // namespace
}  // namespace attn
