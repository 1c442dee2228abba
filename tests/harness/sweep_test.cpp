// SPDX-License-Identifier: MIT
#include "harness/sweep.hpp"

#include <gtest/gtest.h>

#include <set>

#include "harness/names.hpp"

namespace attn {
namespace {

PointState with_times(const std::vector<double>& times) {
  PointState state;
  for (std::size_t i = 0; i < times.size(); ++i) {
    state.samples.push_back({0, static_cast<int>(i), times[i], "warm"});
  }
  return state;
}

TEST(StopReason, FittedCurvesTakeExactlyTheirRounds) {
  const Point point{.fitted = true};
  const MeasureOptions options{.rounds = 6};
  EXPECT_EQ(stop_reason(point, with_times({1, 1, 1, 1, 1}), options), std::nullopt);
  EXPECT_EQ(stop_reason(point, with_times({1, 1, 1, 1, 1, 1}), options), "rounds");
}

TEST(StopReason, PrecisionNeedsAnInterval) {
  const Point point;
  const MeasureOptions options{.sample_budget_s = 1e9};
  EXPECT_EQ(stop_reason(point, with_times({1, 1, 1, 1, 1}), options), std::nullopt);
  EXPECT_EQ(stop_reason(point, with_times({1, 1, 1, 1, 1, 1}), options), "precision");
  EXPECT_EQ(stop_reason(point, with_times({1, 1, 1, 1, 1, 1.2}), options), std::nullopt);
}

TEST(StopReason, BudgetNeverStopsBeforeThreeCalls) {
  const Point point;
  EXPECT_EQ(stop_reason(point, with_times({5, 5}), {}), std::nullopt);
  EXPECT_EQ(stop_reason(point, with_times({5, 5, 5}), {}), "budget");
}

TEST(StopReason, SamplesAreLimited) {
  std::vector<double> times(30, 0.001);
  for (std::size_t i = 0; i < times.size(); i += 2) times[i] = 0.002;
  EXPECT_EQ(stop_reason({}, with_times(times), {}), "samples");
}

TEST(NextRound, IsTheFirstWithoutASample) {
  PointState state = with_times({1, 1, 1});
  state.samples.erase(state.samples.begin() + 1);  // suspect, so taken again
  EXPECT_EQ(next_round(state), 1);
}

TEST(Predict, ScalesTheLargestSmallerNByFlops) {
  auto points = make_plan({.selection = {.only = {"cpu.plain"}}, .axes = {{"n", "64,128,256"}}});
  RunState state;
  Event check{.time_s = 1.0};
  state.points[points[0].id].checks[0] = check;
  check.time_s = 3.0;
  state.points[points[1].id].checks[0] = check;
  const auto prediction = predict(points, 2, state);
  ASSERT_TRUE(prediction.has_value());
  EXPECT_EQ(prediction->from, 1);
  EXPECT_DOUBLE_EQ(prediction->seconds, 12.0);
  EXPECT_FALSE(predict(points, 0, state).has_value());
}

TEST(Predict, KnowsTwoCacheModesApart) {
  std::vector<Point> points;
  for (const CacheMode cache : {CacheMode::cold, CacheMode::warm}) {
    for (const Point& point : make_plan(
             {.selection = {.only = {"cpu.plain"}}, .axes = {{"n", "64,128"}}, .cache = cache})) {
      points.push_back(point);
    }
  }
  RunState state;
  const Event check{.time_s = 1.0};
  state.points[points[0].id].checks[0] = check;  // the smaller n, cold
  EXPECT_TRUE(predict(points, 1, state));
  EXPECT_FALSE(predict(points, 3, state));
}

TEST(RoofsOf, HaveAPeakForEveryDTypeInUse) {
  for (const DType used : {DType::f32, DType::bf16}) {
    Sweep sweep;
    sweep.points = make_plan({.selection = {.only = {"cpu.plain"}},
                              .axes = {{"n", "64"}, {"dtype", std::string(name_of(used))}}});
    std::set<DType> peaks;
    for (const Roof& roof : roofs_of(sweep)) {
      if (roof.kind == Roof::Kind::fma) peaks.insert(roof.dtype);
    }
    EXPECT_TRUE(peaks.contains(DType::f32));
    const bool wanted = used == DType::bf16 && roof_available({Roof::Kind::fma, DType::bf16, 1});
    EXPECT_EQ(peaks.contains(DType::bf16), wanted);
  }
}

TEST(ShapeKey, IsSharedByBackendsAndThreadsOnly) {
  const auto points =
      make_plan({.axes = {{"n", "64"}, {"threads", "1,2"}, {"causal", "both"}}, .most_threads = 2});
  std::map<std::string, int> shapes;
  for (const Point& p : points) {
    if (p.entry->built() && has_heads(p.family())) ++shapes[shape_key(p)];
  }
  ASSERT_EQ(shapes.size(), 2);  // causal and not
  for (const auto& [key, uses] : shapes)
    EXPECT_EQ(uses, 3);  // blas.shared on 1 and 2 threads, cpu.plain
}

}  // namespace
}  // namespace attn
