// SPDX-License-Identifier: MIT
#include "harness/verify.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "harness/reference.hpp"
#include "tests/harness/honest.hpp"

namespace attn {
namespace {

using testing_support::answer;
using testing_support::Fault;
using testing_support::trial;
using testing_support::trial_in_16_bits;
using testing_support::write;
using Verdict = Check::Verdict;

std::string reason_of(const Check& check) { return check.finding ? check.finding->reason : ""; }

TEST(Verify, HonestOutputsPass) {
  for (std::uint64_t t = 0; t < 400; ++t) {
    const auto [problem, family] = trial(t);
    SCOPED_TRACE(testing_support::describe({problem, family}));
    Shape shape(problem, family, t + 1000, InputDist::normal);
    Output output(problem, family);
    output.poison();
    write(answer<float>(problem, family, shape.io()), output);
    const Check check = verify(shape, output);
    EXPECT_EQ(check.verdict, Verdict::ok) << reason_of(check);
    EXPECT_TRUE(output.intact() && shape.intact());
    EXPECT_LE(check.err_scaled, check.err_bound);
  }
}

// A faulty output must fail wherever its fault shows: where it differs from the honest one by more
// than twice the bound. Every kind must have shown in at least so many of the trials.
void expect_faults_fail(testing_support::Trial (*make)(std::uint64_t), std::uint64_t trials,
                        const std::map<Fault, int>& least) {
  for (const auto& [fault, wanted] : least) {
    int shown = 0;
    for (std::uint64_t t = 0; t < trials; ++t) {
      const auto [problem, family] = make(t);
      SCOPED_TRACE(testing_support::describe({problem, family}) + " fault " +
                   std::to_string(int(fault)));
      Shape shape(problem, family, t, InputDist::normal);
      Output output(problem, family);
      const auto honest = answer<float>(problem, family, shape.io());
      const auto faulty = answer<float>(problem, family, shape.io(), fault);
      write(faulty, output, problem.dtype);
      const Check check = verify(shape, output);
      double off = 0;
      for (std::size_t i = 0; i < honest.size(); ++i) {
        const double difference = std::abs(double(faulty[i]) - double(honest[i]));
        off = std::isnan(difference) ? INFINITY : std::max(off, difference);
      }
      if (off <= 2 * check.err_bound * shape.truth().rms) {
        EXPECT_EQ(check.verdict, Verdict::ok) << reason_of(check);
        continue;
      }
      ++shown;
      EXPECT_EQ(check.verdict, Verdict::mismatch);
      EXPECT_NE(reason_of(check).find("row"), std::string::npos);
    }
    EXPECT_GE(shown, wanted) << "fault " << int(fault);
  }
}

TEST(Verify, FaultyOutputsFail) {
  expect_faults_fail(trial, 300,
                     {{Fault::zeros, 200},
                      {Fault::mean_of_v, 100},
                      {Fault::wrong_tail_row, 200},
                      {Fault::mask_off_by_one, 50},
                      {Fault::missing_scale, 80},
                      {Fault::wrong_kv_head, 30},
                      {Fault::nan_element, 200}});
}

TEST(Verify, FaultyOutputsIn16BitsFail) {
  expect_faults_fail(trial_in_16_bits, 100,
                     {{Fault::zeros, 60},
                      {Fault::mean_of_v, 30},
                      {Fault::wrong_tail_row, 60},
                      {Fault::mask_off_by_one, 15},
                      {Fault::missing_scale, 25},
                      {Fault::wrong_kv_head, 10},
                      {Fault::nan_element, 60}});
}

// Of another order of rounding than the reference's plain implementation, and near its error.
TEST(Verify, HonestOutputsIn16BitsPass) {
  for (std::uint64_t t = 0; t < 200; ++t) {
    const auto [problem, family] = trial_in_16_bits(t);
    SCOPED_TRACE(testing_support::describe({problem, family}));
    Shape shape(problem, family, t + 1000, InputDist::normal);
    Output output(problem, family);
    output.poison();
    EXPECT_EQ(output.bytes() == 0, verify(shape, output).verdict == Verdict::ok);
    write(answer<float>(problem, family, shape.io()), output, problem.dtype);
    const Check check = verify(shape, output);
    EXPECT_NE(check.verdict, Verdict::mismatch) << reason_of(check);
    EXPECT_TRUE(output.intact() && shape.intact());
  }
}

Problem long_core() {
  Problem p;
  p.heads = p.heads_kv = 2;
  p.head_dim = p.head_dim_v = 8;
  p.n_q = p.n_kv = 1500;
  return p;
}

TEST(Verify, SampledRowsFindAWrongTail) {
  const Problem p = long_core();
  Shape shape(p, Family::attention, 1, InputDist::normal);
  Output output(p, Family::attention);
  auto values = answer<float>(p, Family::attention, shape.io());
  write(values, output);
  Check check = verify(shape, output);
  EXPECT_EQ(check.verdict, Verdict::ok) << reason_of(check);
  EXPECT_EQ(check.mode, "sampled rows");
  EXPECT_GE(check.rows_checked, 64);
  for (std::int64_t head = 0; head < 2; ++head) {
    auto faulty = values;
    std::fill_n(faulty.begin() + ((head + 1) * p.n_q - 1) * 8, 8, 0.0F);
    write(faulty, output);
    check = verify(shape, output);
    EXPECT_EQ(check.verdict, Verdict::mismatch);
    EXPECT_NE(reason_of(check).find("head " + std::to_string(head) + ", row 1499"),
              std::string::npos)
        << reason_of(check);
  }
}

// Chunks of a long sequence that each start from the zero state could run side by side. Their first
// steps are wrong, and the windows must look there.
TEST(Verify, ARecurrenceThatStartsAnewInChunksIsFound) {
  Problem p;
  p.scope = Scope::layer;
  p.d_model = 160;
  p.n_q = p.n_kv = 1100;
  Shape shape(p, Family::lstm, 1, InputDist::normal);
  ASSERT_EQ(shape.truth().mode, "windows");
  Output output(p, Family::lstm);
  for (const std::int64_t chunk : {p.n_q, std::int64_t{512}, std::int64_t{128}}) {
    auto* to = static_cast<float*>(output.view().data);
    for (std::int64_t start = 0; start < p.n_q; start += chunk) {
      Problem part = p;
      part.n_q = part.n_kv = std::min(chunk, p.n_q - start);
      Io io = shape.io();
      io.x.data = io.x.row<float>(0, 0, start);
      const auto values = answer<float>(part, Family::lstm, io);
      to = std::copy(values.begin(), values.end(), to);
    }
    EXPECT_EQ(verify(shape, output).verdict == Verdict::ok, chunk == p.n_q) << chunk;
  }
}

TEST(Verify, NaNIsFoundAnywhere) {
  const Problem p = long_core();
  Shape shape(p, Family::attention, 1, InputDist::normal);
  Output output(p, Family::attention);
  write(answer<float>(p, Family::attention, shape.io()), output);
  output.view().row<float>(0, 1, 777)[3] = NAN;
  const Check check = verify(shape, output);
  EXPECT_EQ(check.verdict, Verdict::mismatch);
  EXPECT_NE(reason_of(check).find("batch item 0, head 1, row 777, element 3"), std::string::npos)
      << reason_of(check);
}

TEST(Verify, In16BitsEveryElementAndEverySampledRowIsLookedAt) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Problem p = long_core();
    p.dtype = dtype;
    Shape shape(p, Family::attention, 1, InputDist::normal);
    Output output(p, Family::attention);
    write(answer<float>(p, Family::attention, shape.io()), output, dtype);
    EXPECT_EQ(verify(shape, output).verdict, Verdict::ok);

    const auto reason_with = [&](std::int64_t head, std::int64_t row, float wrong) {
      std::vector<float> values(8);
      void* at = row_at(dtype, output.view(), 0, head, row);
      read_row(dtype, at, 8, values.data());
      const float saved = std::exchange(values[3], wrong);
      write_row(dtype, values.data(), 8, at);
      const Check check = verify(shape, output);
      EXPECT_EQ(check.verdict, Verdict::mismatch);
      values[3] = saved;
      write_row(dtype, values.data(), 8, at);
      return reason_of(check);
    };
    EXPECT_EQ(reason_with(1, 777, NAN),
              "batch item 0, head 1, row 777, element 3 is NaN: never written, or a NaN was "
              "computed");
    EXPECT_EQ(reason_with(0, 3, INFINITY), "batch item 0, head 0, row 3, element 3 is infinite");
    EXPECT_NE(reason_with(1, 1499, 0.5F).find("head 1, row 1499, element 3: got 0.5,"),
              std::string::npos);

    std::map<std::int64_t, bool> checked;
    for (const RowId& id : shape.truth().rows) checked[id.head * p.n_q + id.token] = true;
    const std::vector<float> zeros(8);
    for (std::int64_t row = 0; row < 2 * p.n_q; ++row) {
      if (checked[row]) continue;
      write_row(dtype, zeros.data(), 8, row_at(dtype, output.view(), 0, 0, row));
    }
    const Check check = verify(shape, output);
    EXPECT_EQ(check.verdict, Verdict::mistrusted) << reason_of(check);
  }
}

TEST(Verify, UnexplainedZerosAreMistrusted) {
  const Problem p = long_core();
  Shape shape(p, Family::attention, 1, InputDist::normal);
  Output output(p, Family::attention);
  write(answer<float>(p, Family::attention, shape.io()), output);
  std::map<std::int64_t, bool> checked;
  for (const RowId& id : shape.truth().rows) checked[id.head * p.n_q + id.token] = true;
  for (std::int64_t row = 0; row < 2 * p.n_q; ++row) {
    if (row % 3 != 0 && !checked[row]) std::fill_n(output.view().row<float>(0, 0, row), 8, 0.0F);
  }
  const Check check = verify(shape, output);
  EXPECT_EQ(check.verdict, Verdict::mistrusted) << reason_of(check);
}

TEST(Verify, ZerosBehindTheMaskAreExplained) {
  Problem p = long_core();
  p.n_q = 40;
  p.n_kv = 10;
  p.mask = Mask::causal;  // 30 of 40 queries see nothing
  Shape shape(p, Family::attention, 1, InputDist::normal);
  Output output(p, Family::attention);
  write(answer<float>(p, Family::attention, shape.io()), output);
  EXPECT_EQ(verify(shape, output).verdict, Verdict::ok);
  output.view().row<float>(0, 0, 3)[2] = 1e-3F;  // a masked row must stay zero
  EXPECT_EQ(verify(shape, output).verdict, Verdict::mismatch);
}

TEST(Verify, AMeanThatWouldPassIsMistrusted) {
  Problem p;
  p.n_q = p.n_kv = 32;
  p.scale = 1e-7;  // nearly the mean of v, but not it
  Shape shape(p, Family::attention, 1, InputDist::normal);
  Output output(p, Family::attention);
  write(answer<float>(p, Family::attention, shape.io()), output);
  const Check check = verify(shape, output);
  EXPECT_EQ(check.verdict, Verdict::mistrusted);
  EXPECT_NE(reason_of(check).find("mean"), std::string::npos) << reason_of(check);
}

TEST(Verify, AMeanThatIsTheAnswerIsFine) {
  Problem p;
  p.n_q = p.n_kv = 32;
  p.scale = 0.0;
  Shape shape(p, Family::attention, 1, InputDist::normal);
  Output output(p, Family::attention);
  write(answer<float>(p, Family::attention, shape.io()), output);
  EXPECT_EQ(verify(shape, output).verdict, Verdict::ok);
}

TEST(Verify, ZerosThatWouldPassAreMistrusted) {
  Problem p;
  p.n_q = p.n_kv = 64;
  p.scale = 1e9;
  Shape shape(p, Family::attention, 1, InputDist::normal);
  // Two keys a last place apart: double knows which one wins, f32 does not, so that its own error
  // is the size of the answer and the bound beyond it.
  const auto key = [&](std::int64_t j) {
    return const_cast<float*>(shape.io().k.row<float>(0, 0, j));
  };
  for (std::int64_t j = 2; j < p.n_kv; ++j) std::fill_n(key(j), p.head_dim, 0.0F);
  std::copy_n(key(0), p.head_dim, key(1));
  key(1)[0] = std::nextafter(key(0)[0], 9.0F);
  Output output(p, Family::attention);
  write(answer<float>(p, Family::attention, shape.io(), Fault::zeros), output);
  const Check check = verify(shape, output);
  EXPECT_EQ(check.verdict, Verdict::mistrusted);
  EXPECT_NE(reason_of(check).find("zeros"), std::string::npos) << reason_of(check);
}

TEST(Verify, AReferenceOfZerosDemandsZeros) {
  for (const bool masked : {true, false}) {
    Problem p;
    p.n_q = p.n_kv = 8;
    if (masked) p.key_lengths = {0};
    Shape shape(p, Family::attention, 1, masked ? InputDist::normal : InputDist::zeros);
    Output output(p, Family::attention);
    write(std::vector<float>(8 * 64, 0.0F), output);
    EXPECT_EQ(verify(shape, output).verdict, Verdict::ok);
    output.view().row<float>(0, 0, 5)[1] = 1e-30F;
    EXPECT_EQ(verify(shape, output).verdict, Verdict::mismatch);
  }
}

TEST(Verify, EmptyShapesAreOk) {
  for (const auto& [batch, n_q, n_kv] :
       {std::tuple<int, int, int>{0, 4, 4}, {2, 0, 4}, {1, 3, 0}}) {
    for (const Scope scope : {Scope::core, Scope::layer}) {
      Problem p;
      p.scope = scope;
      p.d_model = 16;
      p.batch = batch;
      p.n_q = n_q;
      p.n_kv = n_kv;
      Shape shape(p, Family::attention, 1, InputDist::normal);
      Output output(p, Family::attention);
      write(answer<float>(p, Family::attention, shape.io()), output);
      const Check check = verify(shape, output);
      EXPECT_EQ(check.verdict, Verdict::ok) << reason_of(check);
      EXPECT_EQ(check.rows_checked, batch * n_q);
    }
  }
}

TEST(Shape, AnInputThatChangesChangesTheHash) {
  for (std::uint64_t t = 0; t < 40; ++t) {
    const auto [problem, family] = trial(t);
    Shape shape(problem, family, t, InputDist::normal);
    const std::uint64_t hash = shape.hash();
    const Io io = shape.io();
    for (const void* tensor :
         {io.q.data, io.k.data, io.v.data, io.x.data, io.context.data, io.parameters.w_q,
          io.parameters.w_o, io.parameters.u, io.parameters.b}) {
      if (tensor == nullptr) continue;
      float& value = *const_cast<float*>(static_cast<const float*>(tensor));
      const float saved = value;
      value = std::nextafter(value, 9.0F);
      EXPECT_NE(shape.hash(), hash);
      value = saved;
    }
    EXPECT_EQ(shape.hash(), hash);
  }
}

TEST(Shape, AWriteBeforeATensorIsFound) {
  Problem p;
  p.n_q = p.n_kv = 10;
  p.head_dim = p.head_dim_v = 5;
  Shape shape(p, Family::attention, 1, InputDist::normal);
  Output output(p, Family::attention);
  EXPECT_TRUE(shape.intact() && output.intact());
  static_cast<float*>(output.view().data)[-1] = 0;
  const_cast<float*>(shape.io().k.row<float>(0, 0, 0))[-1] = 0;
  EXPECT_FALSE(shape.intact());
  EXPECT_FALSE(output.intact());
}

TEST(Shape, RowsAreThoseOfTheGenerator) {
  Problem p;
  p.batch = 2;
  p.heads = p.heads_kv = 3;
  p.n_q = p.n_kv = 6000;  // large enough for several threads
  Shape shape(p, Family::attention, 9, InputDist::uniform);
  std::vector<float> row(64);
  for (const auto& [b, h, t] : {std::tuple<int, int, int>{0, 0, 0}, {1, 2, 5999}, {1, 0, 17}}) {
    fill_row(9, TensorId::v, (b * 3 + h) * 6000 + t, InputDist::uniform, 1.0, row);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), shape.io().v.row<float>(b, h, t)));
  }
}

TEST(Shape, RefillChangesInputsAndKeepsParameters) {
  Problem p;
  p.scope = Scope::layer;
  p.d_model = 64;
  p.n_q = p.n_kv = 20;
  Shape shape(p, Family::attention, 1, InputDist::normal);
  Output output(p, Family::attention);
  const float weight = *static_cast<const float*>(shape.parameters().w_q);
  const float x = *shape.io().x.row<float>(0, 0, 0);
  write(answer<float>(p, Family::attention, shape.io()), output);
  EXPECT_EQ(verify(shape, output).verdict, Verdict::ok);
  shape.refill(2);
  EXPECT_EQ(*static_cast<const float*>(shape.parameters().w_q), weight);
  EXPECT_NE(*shape.io().x.row<float>(0, 0, 0), x);
  EXPECT_EQ(verify(shape, output).verdict, Verdict::mismatch);
  write(answer<float>(p, Family::attention, shape.io()), output);
  EXPECT_EQ(verify(shape, output).verdict, Verdict::ok);
}

TEST(Shape, WeightsHaveTheStandardDeviationOfTheContract) {
  const auto deviation = [](const void* weights, std::int64_t count) {
    double squares = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double w = static_cast<const float*>(weights)[i];
      squares += w * w;
    }
    return std::sqrt(squares / static_cast<double>(count));
  };
  Problem p;
  p.scope = Scope::layer;
  p.d_model = 100;
  p.heads = p.heads_kv = 5;
  p.n_q = p.n_kv = 1;
  p.output_projection = true;
  const Shape layer(p, Family::attention, 1, InputDist::normal);
  EXPECT_NEAR(deviation(layer.parameters().w_q, 320 * 100), 0.1, 0.002);
  EXPECT_NEAR(deviation(layer.parameters().w_o, 100 * 320), 1 / std::sqrt(320), 0.001);
  const Shape lstm(p, Family::lstm, 1, InputDist::normal);
  EXPECT_NEAR(deviation(lstm.parameters().u, 400 * 100), 0.1, 0.002);
  EXPECT_NEAR(deviation(lstm.parameters().b, 400), 0.1, 0.02);
}

TEST(Shape, RowsIn16BitsAreThoseOfTheGeneratorRounded) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Problem p;
    p.heads = p.heads_kv = 3;
    p.n_q = p.n_kv = 6000;  // large enough for several threads
    p.dtype = dtype;
    Shape shape(p, Family::attention, 9, InputDist::normal);
    std::vector<float> row(64);
    std::vector<float> got(64);
    for (const auto& [h, t] : {std::pair{0, 0}, {2, 5999}, {1, 17}}) {
      fill_row(9, TensorId::v, h * 6000 + t, InputDist::normal, 1.0, row);
      read_row(dtype, row_at(dtype, shape.io().v, 0, h, t), 64, got.data());
      for (std::size_t c = 0; c < 64; ++c) EXPECT_EQ(got[c], rounded(dtype, row[c]));
    }
    const std::uint64_t hash = shape.hash();
    shape.fill(10);
    EXPECT_NE(shape.hash(), hash);
    shape.fill(9);
    EXPECT_EQ(shape.hash(), hash);
  }
}

TEST(Shape, LayersIn16BitsAreRefused) {
  Problem p;
  p.scope = Scope::layer;
  p.d_model = 8;
  p.dtype = DType::bf16;
  for (const Family family : {Family::attention, Family::lstm}) {
    EXPECT_THROW(Shape(p, family, 1, InputDist::normal), std::invalid_argument);
  }
}

}  // namespace
}  // namespace attn
