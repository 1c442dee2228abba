// SPDX-License-Identifier: MIT
// The calculators: their formulas against counting and against what the program allocates, the
// lesson's own numbers, and the two worked examples, letter by letter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "harness/command.hpp"
#include "harness/plan.hpp"
#include "harness/typeset.hpp"
#include "harness/verify.hpp"
#include "harness/work.hpp"
#include "harness/worked_example.hpp"

namespace attn {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// What `attnbench calc` prints for these words.
std::string printed(const Words& words) {
  testing::internal::CaptureStdout();
  EXPECT_NO_THROW(EXPECT_EQ(command_calc(words), Exit::good));
  std::fflush(stdout);
  return testing::internal::GetCapturedStdout();
}

json answer(Words words) {
  words.emplace_back("--json");
  const json document = json::parse(printed(words));
  return document.is_array() && document.size() == 1 ? document[0] : document;
}

std::string complaint(const Words& words) {
  try {
    command_calc(words);
  } catch (const CommandError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "";
}

Problem layer(std::int64_t d_model, std::int64_t heads, std::int64_t heads_kv, std::int64_t d_k,
              std::int64_t d_v, bool output) {
  Problem p;
  p.scope = Scope::layer;
  p.n_q = p.n_kv = 1;
  p.d_model = d_model;
  p.heads = heads;
  p.heads_kv = heads_kv;
  p.head_dim = d_k;
  p.head_dim_v = d_v;
  p.output_projection = output;
  return p;
}

// ---- parameters ----------------------------------------------------------------------------------

// The floats from `data` to the protected page behind them, found by asking the kernel for them.
std::int64_t allocated_floats(const void* data) {
  if (data == nullptr) return 0;
  const auto* const start = static_cast<const char*>(data);
  const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto readable = [](const char* address) {
    char byte = 0;
    const iovec local = {&byte, 1};
    const iovec remote = {const_cast<char*>(address), 1};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
  };
  const char* end = start;
  while (readable(end)) end += page_bytes - reinterpret_cast<std::uintptr_t>(end) % page_bytes;
  return (end - start) / static_cast<std::int64_t>(sizeof(float));
}

TEST(Calc, ParametersAreTheFloatsThatTheProgramAllocates) {
  for (const Problem& p : {layer(512, 1, 1, 64, 64, false), layer(512, 8, 8, 64, 64, true),
                           layer(768, 12, 12, 64, 64, true), layer(96, 6, 3, 5, 7, true),
                           layer(33, 4, 1, 9, 9, false)}) {
    const Shape shape(p, Family::attention, 1, InputDist::zeros);
    const Parameters w = shape.parameters();
    const std::int64_t allocated = allocated_floats(w.w_q) + allocated_floats(w.w_k) +
                                   allocated_floats(w.w_v) + allocated_floats(w.w_o);
    EXPECT_EQ(tensor_elements(p, Family::attention).parameters(), allocated) << p.d_model;
  }
  Problem recurrence = layer(40, 1, 1, 40, 40, false);
  for (const Family family : {Family::rnn, Family::gru, Family::lstm}) {
    const Shape shape(recurrence, family, 1, InputDist::zeros);
    const Parameters w = shape.parameters();
    EXPECT_EQ(tensor_elements(recurrence, family).parameters(),
              allocated_floats(w.w) + allocated_floats(w.u) + allocated_floats(w.b));
  }
}

TEST(Calc, TheLessonsParameterCounts) {
  const json one = answer({"params", "--d-model", "512", "--heads", "1", "--head-dim", "64"});
  EXPECT_EQ(one["head"]["parameters"], 98304);
  EXPECT_EQ(one["head_biases"], 2 * 64 + 64);
  const json eight = answer({"params", "--preset", "vaswani-base"});
  EXPECT_EQ(eight["w_q"].get<int>() + eight["w_k"].get<int>() + eight["w_v"].get<int>(), 786432);
  EXPECT_EQ(eight["w_o"], 512 * 512);
  EXPECT_EQ(eight["model"]["parameters"], 6 * 4 * 512 * 512);
  const json bert = answer({"params", "--preset", "bert-base"});
  EXPECT_EQ(bert["head"],
            (json{{"parameters", 147456}, {"bytes_f32", 589824}, {"bytes_f16", 294912}}));
  const json llama = answer({"params", "--preset", "llama3-8b"});
  EXPECT_EQ(llama["head"]["parameters"], 1572864);
  const std::string text = printed({"params", "--preset", "bert-base,llama3-8b"});
  EXPECT_THAT(text, HasSubstr("147 456    0.590 MB   0.295 MB"));
  EXPECT_THAT(text, HasSubstr("1 572 864    6.291 MB   3.146 MB"));
}

TEST(Calc, SharingChangesKeysAndValuesAlone) {
  const json all = answer({"params", "--preset", "llama3-8b", "--heads-kv", "32,8,1"});
  ASSERT_EQ(all.size(), 3);
  for (const json& item : all) {
    EXPECT_EQ(item["w_q"], 4096 * 4096);
    EXPECT_EQ(item["w_o"], 4096 * 4096);
    EXPECT_EQ(item["w_k"], 4096 * 128 * item["heads_kv"].get<int>());
    EXPECT_EQ(item["w_v"], item["w_k"]);
  }
}

// ---- KV cache ------------------------------------------------------------------------------------

TEST(Calc, CacheShrinksAsHeadsAreShared) {
  const json llama = answer({"cache", "--preset", "llama3-70b", "--n", "1,8192", "--batch", "4"});
  const auto bytes = [&](int n, int heads_kv, int element) {
    for (const json& row : llama["cache"]) {
      if (row["n"] == n && row["heads_kv"] == heads_kv && row["bytes_per_element"] == element)
        return row;
    }
    return json();
  };
  EXPECT_EQ(llama["cache"].size(), 2 * 3 * 2);
  EXPECT_EQ(bytes(1, 8, 2)["layer_bytes"], 4 * 2 * 8 * 128 * 2);
  EXPECT_EQ(bytes(8192, 8, 4)["model_bytes"], 80LL * 4 * 8192 * 2 * 8 * 128 * 4);
  EXPECT_EQ(bytes(8192, 64, 2)["layer_bytes"].get<std::int64_t>(),
            64 * bytes(8192, 1, 2)["layer_bytes"].get<std::int64_t>())
      << "MQA shrinks the cache h times";
  const std::string text = printed({"cache", "--preset", "llama3-70b"});
  EXPECT_THAT(text, HasSubstr("> GQA, 8 KV heads"));
  EXPECT_THAT(text, testing::ContainsRegex("share of MHA's +1 +1/8 +1/64\n"));
}

// ---- work ----------------------------------------------------------------------------------------

TEST(Calc, PartsOfTheWorkAddUpToTheModel) {
  for (const Mask mask : {Mask::none, Mask::causal}) {
    for (const bool output : {false, true}) {
      Problem p = layer(13, 6, 3, 5, 7, output);
      p.batch = 2;
      p.n_q = 11;
      p.n_kv = 17;
      p.mask = mask;
      const AttentionFlops f = attention_flops(p);
      std::int64_t pairs = 0;
      for (std::int64_t i = 0; i < p.n_q; ++i) pairs += 2 * p.visible(0, i);
      EXPECT_EQ(f.scores, 2 * 6 * pairs * 5);
      EXPECT_EQ(f.mixing, 2 * 6 * pairs * 7);
      EXPECT_EQ(f.projections, 2 * 2 * 13 * (11 * 6 * 5 + 17 * 3 * 5 + 17 * 3 * 7));
      EXPECT_EQ(f.output, output ? 2 * 2 * 11 * 6 * 7 * 13 : 0);
      EXPECT_EQ(f.total(), flops_model(p, Family::attention));
      EXPECT_EQ(score_elements(p), 2 * 6 * 11 * 17);
      p.scope = Scope::core;
      EXPECT_EQ(attention_flops(p).total(), f.core());
    }
  }
}

TEST(Calc, From2kTo32kTheCoreCosts256Times) {
  const std::string text = printed({"flops", "--preset", "lesson", "--n", "2k,32k"});
  EXPECT_THAT(text,
              HasSubstr("From n = 2 048 to 32 768, 16 times the tokens: the core has 256 times"));
  const json rows = answer({"flops", "--preset", "bert-base", "--n", "2k,32k"})["flops"];
  EXPECT_EQ(rows[1]["core"], 256 * rows[0]["core"].get<std::int64_t>());
  EXPECT_EQ(rows[1]["projections"], 16 * rows[0]["projections"].get<std::int64_t>());
  EXPECT_EQ(rows[1]["score_bytes_f32"], 4LL * 12 * 32768 * 32768);
  EXPECT_EQ(rows[0]["core"], 4LL * 2048 * 2048 * 768);
  EXPECT_EQ(rows[0]["model"], 12 * rows[0]["layer"].get<std::int64_t>());
}

// ---- crossovers ----------------------------------------------------------------------------------

// The last n up to 100 000 at which `cheaper` holds; 0 if it does nowhere.
std::int64_t last_n(const Problem& shape, const std::function<bool(const Problem&)>& cheaper) {
  std::int64_t last = 0;
  Problem p = shape;
  for (p.n_q = p.n_kv = 1; p.n_q < 100'000; p.n_kv = ++p.n_q) {
    if (cheaper(p)) last = p.n_q;
  }
  return last;
}

TEST(Calc, CrossoversAreWhereTheCountsCross) {
  for (const Mask mask : {Mask::none, Mask::causal}) {
    for (Problem p : {layer(256, 1, 1, 64, 64, false), layer(256, 4, 4, 64, 64, true),
                      layer(96, 8, 2, 20, 12, true)}) {
      p.mask = mask;
      const AttentionFlops one = attention_flops(p);
      const auto core = static_cast<double>(one.core());
      const auto projections = static_cast<double>(one.total() - one.core());
      const auto crossing = [&](double per_token) {
        return static_cast<std::int64_t>(tokens_where_equal(per_token, core, mask).value_or(0));
      };
      EXPECT_EQ(crossing(projections), last_n(p, [](const Problem& at) {
                  return attention_flops(at).core() <=
                         attention_flops(at).total() - attention_flops(at).core();
                }));
      for (const Family family : {Family::rnn, Family::gru, Family::lstm}) {
        EXPECT_EQ(crossing(static_cast<double>(flops_model(p, family)) - projections),
                  last_n(p,
                         [&](const Problem& at) {
                           return flops_model(at, Family::attention) <= flops_model(at, family);
                         }))
            << name_of(family) << " " << p.d_model;
      }
    }
  }
}

TEST(Calc, MultiHeadAttentionCrossesAtTwiceItsWidth) {
  const json vaswani = answer({"crossover", "--preset", "vaswani-base"});
  EXPECT_EQ(vaswani["core_equals_projections"], 2 * 512);
  EXPECT_EQ(vaswani["attention_equals_rnn"], json());
  EXPECT_EQ(vaswani["attention_equals_gru"], 512);
  EXPECT_EQ(vaswani["attention_equals_lstm"], 2 * 512);
  EXPECT_EQ(vaswani["scores_equal_kv"], 2 * 64);
  EXPECT_EQ(vaswani["scores_equal_x"], 64);
  EXPECT_EQ(answer({"crossover", "--preset", "lesson"})["attention_equals_rnn"], 640);
  EXPECT_EQ(answer({"crossover", "--preset", "llama3-8b"})["core_equals_projections"], 10239);
  const std::string text = printed({"crossover", "--preset", "vaswani-base"});
  EXPECT_THAT(text, HasSubstr("attention takes more at every n"));
  EXPECT_THAT(text, HasSubstr("This is arithmetic, not a measurement"));
}

// ---- words ---------------------------------------------------------------------------------------

TEST(Calc, BadWordsAreNamedWithWhatWouldWork) {
  EXPECT_THAT(complaint({}), HasSubstr("params, cache, flops, crossover or example"));
  EXPECT_THAT(complaint({"parms"}), HasSubstr("the nearest is params"));
  EXPECT_THAT(complaint({"flops"}), HasSubstr("--preset bert-base"));
  EXPECT_THAT(complaint({"flops", "--preset", "bert"}), HasSubstr("the nearest is bert-base"));
  EXPECT_THAT(complaint({"flops", "--preset", "quick"}), HasSubstr("no shape is called \"quick\""));
  EXPECT_THAT(complaint({"params", "--preset", "palm-2"}), HasSubstr("withholds its sizes"));
  EXPECT_THAT(complaint({"flops", "--preset", "lesson", "--n", "0"}), HasSubstr("--n"));
  EXPECT_THAT(complaint({"flops", "--preset", "lesson", "--batch", "0"}), HasSubstr("--batch"));
  EXPECT_THAT(complaint({"params", "--preset", "lesson", "--n", "5"}), HasSubstr("--n"));
  EXPECT_THAT(complaint({"params", "--heads", "8", "--heads-kv", "3"}), HasSubstr("--heads-kv: 3"));
  EXPECT_THAT(
      complaint({"params", "--d-model", "1000000", "--heads", "1000000", "--layers", "2000000000"}),
      HasSubstr("--layers"));
  EXPECT_THAT(complaint({"example", "M8"}), HasSubstr("M9"));
  EXPECT_THAT(complaint({"example"}), HasSubstr("--help"));
}

TEST(Calc, RunSaysWhyAModelIsNoPreset) {
  try {
    make_plan({.presets = {"palm-2"}});
    FAIL();
  } catch (const CommandError& error) {
    EXPECT_THAT(error.what(), HasSubstr("withholds its sizes"));
  }
}

TEST(Typeset, NumbersReadWell) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(98304), "98 304");
  EXPECT_EQ(grouped(-123456), "-123 456");
  EXPECT_EQ(grouped(1572864), "1 572 864");
  EXPECT_EQ(prefixed(0), "0");
  EXPECT_EQ(prefixed(128), "128");
  EXPECT_EQ(prefixed(4194304), "4.194 M");
  EXPECT_EQ(prefixed(999960), "1.000 M");
  EXPECT_EQ(prefixed(999940), "999.9 k");
  EXPECT_EQ(prefixed(3e20), "300.0 E");
  EXPECT_EQ(memory_text(9999), "9 999 B");
  EXPECT_EQ(memory_text(10000), "0.010 MB");
  EXPECT_EQ(memory_text(294912), "0.295 MB");
  EXPECT_EQ(memory_text(3145728), "3.146 MB");
  EXPECT_EQ(memory_text(2684354560), "2.684 GB");
  EXPECT_EQ(memory_text(5'000'000'000'000), "5.000 TB");
  EXPECT_EQ(grouped_real(4096), "4 096");
  EXPECT_EQ(grouped_real(1039.27), "1 039.27");
  EXPECT_EQ(grouped_real(4.999), "5.00");
}

TEST(Typeset, ColumnsStandBelowEachOther) {
  EXPECT_EQ(display_width("√d_k · Kᵀ"), 9U);
  EXPECT_EQ(table({{"", "n"}, {"√2", "1 000"}, {"alone"}}),
            "             n\n  √2     1 000\n  alone\n");
  EXPECT_EQ(table({{"n", "m"}, {"100", "1"}}, 0), "    n  m\n  100  1\n");
  EXPECT_EQ(beside({{"√", "ab"}, {"c"}}), "  √    c\n  ab\n");
}

// ---- worked examples -----------------------------------------------------------------------------

TEST(WorkedExample, ByHandIsPrintedStepByStep) {
  EXPECT_EQ(printed({"example", "M9"}),
            R"text(M9: one attention head by hand. 3 tokens, d_model = 4, d_k = d_v = 2.

1. The inputs: a row of X for each token, and three learned matrices.

  X (3, 4)      W_Q (4, 2)   W_K (4, 2)   W_V (4, 2)
  [ 1 0 1 0 ]   [ 1 0 ]      [ 0 1 ]      [ 1 0 ]
  [ 0 1 0 1 ]   [ 1 0 ]      [ 1 0 ]      [ 0 1 ]
  [ 1 1 0 0 ]   [ 0 1 ]      [ 0 0 ]      [ 1 1 ]
                [ 0 0 ]      [ 0 2 ]      [ 0 2 ]

2. Queries, keys and values: Q = X W_Q, K = X W_K, V = X W_V.

  Q (3, 2)   K (3, 2)   V (3, 2)
  [ 1 1 ]    [ 0 1 ]    [ 2 1 ]
  [ 1 0 ]    [ 1 2 ]    [ 0 3 ]
  [ 2 0 ]    [ 1 1 ]    [ 1 1 ]

  The first entry of Q: 1·1 + 0·1 + 1·0 + 0·0 = 1.

3. Scores: S = Q Kᵀ, every query with every key; then divided by √d_k = √2 = 1.4142.

  S (3, 3)    S / √d_k (3, 3)
  [ 1 3 2 ]   [ 0.7071 2.1213 1.4142 ]
  [ 0 1 1 ]   [ 0.0000 0.7071 0.7071 ]
  [ 0 2 2 ]   [ 0.0000 1.4142 1.4142 ]

  The first query with the second key: 1·1 + 1·2 = 3.

4. Weights: softmax of each row, e to the power of each score over the row's sum.

  e^(S / √d_k) (3, 3)        row sums (3, 1)   A (3, 3)
  [ 2.0281 8.3421 4.1133 ]   [ 14.4835 ]       [ 0.1400 0.5760 0.2840 ]
  [ 1.0000 2.0281 2.0281 ]   [  5.0562 ]       [ 0.1978 0.4011 0.4011 ]
  [ 1.0000 4.1133 4.1133 ]   [  9.2265 ]       [ 0.1084 0.4458 0.4458 ]

  The first query gives the second value 8.3421 / 14.4835 = 0.5760.
  Every row of A sums to 1. The third query is twice the second: the same order, sharper.

5. Output: Z = A V, for each token a mean of the values, weighted by its row of A.

  Z (3, 2)
  [ 0.5641 2.1520 ]
  [ 0.7967 1.8022 ]
  [ 0.6626 1.8916 ]

  The first entry of Z: 0.1400·2 + 0.5760·0 + 0.2840·1 = 0.5641.

Check: the float64 reference that every backend is held against gives the same Z.
)text");
}

TEST(WorkedExample, TenTokensArePrintedWithTheirTriangle) {
  EXPECT_EQ(
      printed({"example", "M10"}),
      R"text(M10: one causal attention head. B = 1, n = 10, d_model = 64, d_k = d_v = 16; seed 1.

  X               (1, 10, 64)   from N(0, 1)
  W_Q, W_K, W_V   (64, 16)      from N(0, 1/64)
  Q, K, V         (1, 10, 16)   X W
  A               (1, 10, 10)   softmax of Q Kᵀ / √d_k where j ≤ i
  Z               (1, 10, 16)   A V

A: rows are queries i, columns keys j. A token sees itself and what came before it:
above the diagonal every weight is exactly 0, and each row sums to 1 all the same.

  i\j     0     1     2     3     4     5     6     7     8     9    sum   as shades
    0 1.000     0     0     0     0     0     0     0     0     0  1.000   ██                  |
    1 0.377 0.623     0     0     0     0     0     0     0     0  1.000   ▒▒▓▓                |
    2 0.336 0.461 0.203     0     0     0     0     0     0     0  1.000   ▒▒▓▓▒▒              |
    3 0.332 0.049 0.612 0.007     0     0     0     0     0     0  1.000   ▒▒░░▓▓              |
    4 0.241 0.303 0.226 0.091 0.139     0     0     0     0     0  1.000   ▒▒▒▒▒▒░░░░          |
    5 0.178 0.066 0.302 0.131 0.242 0.081     0     0     0     0  1.000   ▒▒░░▒▒░░▒▒░░        |
    6 0.183 0.095 0.287 0.102 0.224 0.011 0.098     0     0     0  1.000   ▒▒░░▒▒░░▒▒  ░░      |
    7 0.056 0.017 0.026 0.016 0.056 0.329 0.442 0.058     0     0  1.000   ░░░░░░░░░░▒▒▓▓░░    |
    8 0.051 0.082 0.084 0.396 0.110 0.065 0.039 0.064 0.110     0  1.000   ░░░░░░▓▓░░░░░░░░░░  |
    9 0.009 0.070 0.008 0.019 0.029 0.334 0.090 0.195 0.096 0.150  1.000     ░░  ░░░░▒▒░░▒▒░░▒▒|

The first token sees itself alone, so the first row of Z is the first value:

            0        1        2       3  ...
  v_0  1.4390  -0.3478  -1.6977  0.7311
  z_0  1.4390  -0.3478  -1.6977  0.7311

Check: the float64 reference that every backend is held against gives the same Z.
)text");
}

TEST(WorkedExample, RowsOfWeightsSumToOneAndSeeNoFuture) {
  for (const std::uint64_t seed : {1, 2, 3, 99}) {
    const HeadSteps step = work_through(example_m10(seed));
    ASSERT_EQ(step.a.rows, 10);
    ASSERT_EQ(step.a.columns, 10);
    ASSERT_EQ(step.z.columns, 16);
    for (std::int64_t i = 0; i < 10; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < 10; ++j) {
        sum += step.a.at(i, j);
        EXPECT_EQ(step.a.at(i, j) > 0, j <= i);
        EXPECT_EQ(step.a.at(i, j) == 0, j > i);
      }
      EXPECT_NEAR(sum, 1, 1e-15);
    }
    for (std::int64_t c = 0; c < 16; ++c) EXPECT_EQ(step.z.at(0, c), step.v.at(0, c));
  }
}

// By hand once more: the formulas of the printed steps, written out for the first row.
TEST(WorkedExample, TheHandCalculationIsRight) {
  const HeadSteps step = work_through(example_m9());
  EXPECT_EQ(step.q.values, (std::vector<double>{1, 1, 1, 0, 2, 0}));
  EXPECT_EQ(step.k.values, (std::vector<double>{0, 1, 1, 2, 1, 1}));
  EXPECT_EQ(step.v.values, (std::vector<double>{2, 1, 0, 3, 1, 1}));
  EXPECT_EQ(step.s.values, (std::vector<double>{1, 3, 2, 0, 1, 1, 0, 2, 2}));
  const double e1 = std::exp(1 / std::sqrt(2));
  const double e2 = std::exp(2 / std::sqrt(2));
  const double e3 = std::exp(3 / std::sqrt(2));
  EXPECT_NEAR(step.z.at(0, 0), (2 * e1 + 0 * e3 + 1 * e2) / (e1 + e3 + e2), 1e-15);
  EXPECT_NEAR(step.z.at(0, 1), (1 * e1 + 3 * e3 + 1 * e2) / (e1 + e3 + e2), 1e-15);
  EXPECT_LE(step.reference_difference, 1e-15);
}

}  // namespace
}  // namespace attn
