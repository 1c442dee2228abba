// SPDX-License-Identifier: MIT
#include "harness/reference.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

#include "tests/harness/honest.hpp"

namespace attn {
namespace {

using testing_support::answer;
using testing_support::at;
using testing_support::trial;
using testing_support::trial_in_16_bits;

// Every reference row against the equations in double.
void expect_reference(Shape& shape, double tolerance) {
  const Problem& p = shape.problem();
  const auto expected = answer<double>(p, shape.family(), shape.io());
  const Shape::Truth& truth = shape.truth();
  const std::int64_t heads = p.scope == Scope::core ? p.heads : 1;
  ASSERT_EQ(truth.values.size(), truth.rows.size() * at(truth.width));
  for (std::size_t r = 0; r < truth.rows.size(); ++r) {
    const RowId& id = truth.rows[r];
    for (std::int64_t c = 0; c < truth.width; ++c) {
      const std::int64_t i = ((id.batch * heads + id.head) * p.n_q + id.token) * truth.width + c;
      ASSERT_NEAR(truth.row(r)[c], expected[at(i)], tolerance)
          << "batch " << id.batch << " head " << id.head << " row " << id.token << " element " << c;
    }
  }
}

TEST(Reference, AgreesWithTheEquations) {
  for (std::uint64_t t = 0; t < 300; ++t) {
    const auto [problem, family] = trial(t);
    SCOPED_TRACE(testing_support::describe({problem, family}));
    Shape shape(problem, family, t, InputDist::normal);
    expect_reference(shape, 1e-11);
    EXPECT_EQ(shape.truth().mode, "all rows");
    EXPECT_LT(shape.truth().plain_error, 1e-4);
  }
}

// The truth is that of the rounded inputs; plain errors are those of rounding weights and outputs.
TEST(Reference, AgreesWithTheEquationsIn16Bits) {
  double largest[2] = {};
  for (std::uint64_t t = 0; t < 100; ++t) {
    const auto [problem, family] = trial_in_16_bits(t);
    SCOPED_TRACE(testing_support::describe({problem, family}));
    Shape shape(problem, family, t, InputDist::normal);
    expect_reference(shape, 1e-11);
    double& most = largest[t % 2];
    most = std::max(most, shape.truth().plain_error);
  }
  // An output of 4 RMS is rounded by 2^-7 of the RMS in bf16, and by an eighth of it in f16.
  EXPECT_GT(largest[0], 0x1p-8);
  EXPECT_LT(largest[0], 0x1p-5);
  EXPECT_GT(largest[1], 0x1p-11);
  EXPECT_LT(largest[1], 0x1p-8);
}

TEST(Reference, SampledRowsOfTheCore) {
  for (const Mask mask : {Mask::none, Mask::causal}) {
    Problem p;
    p.heads = 4;
    p.heads_kv = 2;
    p.head_dim = p.head_dim_v = 8;
    p.n_q = p.n_kv = 1801;
    p.mask = mask;
    Shape shape(p, Family::attention, 1, InputDist::normal);
    expect_reference(shape, 1e-11);
    EXPECT_EQ(shape.truth().mode, "sampled rows");
    EXPECT_GE(shape.truth().rows.size(), 64U);
  }
}

TEST(Reference, SampledRowsOfTheLayer) {
  Problem p;
  p.scope = Scope::layer;
  p.heads = p.heads_kv = 2;
  p.head_dim = p.head_dim_v = 16;
  p.d_model = 32;
  p.output_projection = true;
  p.n_q = p.n_kv = 900;
  p.batch = 2;
  Shape shape(p, Family::attention, 1, InputDist::normal);
  expect_reference(shape, 1e-11);
  EXPECT_EQ(shape.truth().mode, "sampled rows");
  EXPECT_GE(shape.truth().rows.size(), 16U);
}

TEST(Reference, WindowsEndInTheTrueState) {
  for (const Family family : {Family::rnn, Family::lstm, Family::gru}) {
    Problem p;
    p.scope = Scope::layer;
    p.d_model = family == Family::rnn ? 320 : family == Family::gru ? 200 : 160;
    p.n_q = p.n_kv = 800;
    Shape shape(p, family, 1, InputDist::normal);
    expect_reference(shape, 1e-9);
    const Shape::Truth& truth = shape.truth();
    EXPECT_EQ(truth.mode, "windows");
    EXPECT_EQ(truth.rows.size(), 64U + 3 * 16);
    EXPECT_EQ(truth.rows.back().token, 799);
    ASSERT_EQ(truth.last_steps.size(), 1U);
  }
}

TEST(Reference, EveryBatchItemOfARecurrenceHasRows) {
  Problem p;
  p.scope = Scope::layer;
  p.d_model = 160;
  p.n_q = p.n_kv = 290;
  p.batch = 7;
  Shape shape(p, Family::lstm, 1, InputDist::normal);
  expect_reference(shape, 1e-9);
  std::set<std::int64_t> items;
  for (const RowId& id : shape.truth().rows) items.insert(id.batch);
  EXPECT_EQ(items.size(), 7U);
  EXPECT_EQ(shape.truth().last_steps.size(), 4U);
}

TEST(Reference, ARecurrenceThatRemembersIsRefused) {
  Problem p;
  p.scope = Scope::layer;
  p.d_model = 320;
  p.n_q = p.n_kv = 800;
  Shape shape(p, Family::rnn, 1,
              InputDist::zeros);  // nothing drives tanh away from its steep middle
  try {
    shape.truth();
    FAIL() << "a window from zeros and one from ones agreed";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("still differ"), std::string::npos) << error.what();
  }
}

TEST(Reference, KnownAnswers) {
  Problem p;
  p.n_q = 3;
  p.n_kv = 2;
  p.head_dim = p.head_dim_v = 1;
  p.mask = Mask::causal;
  p.scale = 0.0;
  Shape shape(p, Family::attention, 4, InputDist::normal);
  const Shape::Truth& truth = shape.truth();
  const float* v = shape.io().v.row<float>(0, 0, 0);
  ASSERT_EQ(truth.rows.size(), 3U);
  EXPECT_EQ(truth.values[0], 0.0);  // query 0 sees j <= -1
  EXPECT_EQ(truth.values[1], static_cast<double>(v[0]));
  EXPECT_NEAR(truth.values[2], 0.5 * v[0] + 0.5 * v[1], 1e-15);
  EXPECT_EQ(truth.heaviest[0], -1);
  EXPECT_NEAR(truth.log_sum_exp[2], std::log(2.0), 1e-15);
  EXPECT_NEAR(truth.visible_mean_off, 0.0, 1e-15);
  EXPECT_GT(truth.mean_off, 0.1);
}

// Three equal weights of a third, which no 16-bit dtype has.
TEST(Reference, ThePlainImplementationRoundsWeightsAndOutputs) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Problem p;
    p.n_q = 1;
    p.n_kv = 3;
    p.head_dim = p.head_dim_v = 1;
    p.scale = 0.0;
    p.dtype = dtype;
    int shown = 0;  // rounding the output hides that of the weights now and then
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      Shape shape(p, Family::attention, seed, InputDist::normal);
      float v[3];
      read_row(dtype, row_at(dtype, shape.io().v, 0, 0, 0), 3, v);
      const float sum = v[0] + v[1] + v[2];
      const float plain = rounded(dtype, rounded(dtype, 1.0F / 3) * sum);
      shown += plain != rounded(dtype, sum / 3) ? 1 : 0;
      const Shape::Truth& truth = shape.truth();
      EXPECT_NEAR(truth.values[0], static_cast<double>(sum) / 3, 1e-6);
      EXPECT_NEAR(truth.plain_error * truth.rms, std::abs(plain - truth.values[0]), 1e-6);
    }
    EXPECT_GE(shown, 1);
  }
}

TEST(Reference, BoundIsEightTimesThePlainErrorAndAFloor) {
  EXPECT_DOUBLE_EQ(reference::error_bound(DType::f32, 1e-6), 1e-5);
  EXPECT_DOUBLE_EQ(reference::error_bound(DType::bf16, 0), 0x1p-6);
  EXPECT_DOUBLE_EQ(reference::error_bound(DType::f16, 0), 0x1p-9);
}

TEST(Sampling, TakesEveryHeadItsLastRowAndTheEdgesOfTiles) {
  const std::int64_t n = 4096;
  const auto sample = reference::sample_rows(1, 1, n, 1e6, 64, 1);
  EXPECT_FALSE(sample.all);
  std::set<std::int64_t> tokens;
  for (const RowId& id : sample.rows) tokens.insert(id.token);
  EXPECT_EQ(tokens.size(), 64U);
  EXPECT_TRUE(tokens.count(0) && tokens.count(n - 1));
  for (std::int64_t tile = 16; tile <= 512; tile *= 2) {
    EXPECT_TRUE(tokens.count(tile - 1) && tokens.count(tile) && tokens.count(tile + 1)) << tile;
  }
  EXPECT_GT(*std::next(tokens.rbegin()), n / 2);

  for (const auto& [batch, heads, n_q] :
       {std::tuple<int, int, int>{3, 4, 1000}, {32, 8, 50}, {2, 9, 3}, {40, 4, 1}, {1, 1, 5}}) {
    const auto rows = reference::sample_rows(batch, heads, n_q, 1e8, 64, 1).rows;
    EXPECT_GE(static_cast<std::int64_t>(rows.size()), std::min(64, batch * heads * n_q));
    std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> distinct;
    for (const RowId& id : rows) distinct.insert({id.batch, id.head, id.token});
    EXPECT_EQ(distinct.size(), rows.size());
    for (int b = 0; b < batch; ++b) {
      for (int h = 0; h < heads; ++h) EXPECT_TRUE(distinct.count({b, h, n_q - 1}));
    }
    EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end(), [](const RowId& a, const RowId& b) {
      return std::tie(a.batch, a.head, a.token) < std::tie(b.batch, b.head, b.token);
    }));
  }
  EXPECT_TRUE(reference::sample_rows(0, 4, 10, 1, 64, 1).all);
}

// Whoever is right at the edges of tiles alone must not pass.
TEST(Sampling, NearlyHalfOfTheRowsAreDrawnBySeed) {
  const std::int64_t n = 4096;
  std::set<std::int64_t> earlier;
  for (const std::uint64_t seed : {1, 2}) {
    int elsewhere = 0;
    int again = 0;
    for (const RowId& id : reference::sample_rows(1, 1, n, 1e6, 64, seed).rows) {
      if (id.token % 16 < 2 || id.token % 16 == 15) continue;
      ++elsewhere;
      again += earlier.insert(id.token).second ? 0 : 1;
    }
    EXPECT_GE(elsewhere, 20) << "of 32, as three of 16 lie at an edge";
    EXPECT_LE(again, 3);
  }
}

}  // namespace
}  // namespace attn
