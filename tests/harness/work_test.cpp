// SPDX-License-Identifier: MIT
#include "harness/work.hpp"

#include <gtest/gtest.h>

namespace attn {
namespace {

// Every visible pair counted one by one, from the rule itself: key j <= i + n_kv - n_q, j < length.
std::int64_t count_pairs(const Problem& p) {
  std::int64_t pairs = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = 0; i < p.n_q; ++i) {
      for (std::int64_t j = 0; j < p.n_kv; ++j) {
        const bool by_mask = p.mask == Mask::none || j <= i + p.n_kv - p.n_q;
        pairs += by_mask && (p.key_lengths.empty() || j < p.key_lengths[b]);
      }
    }
  }
  return pairs;
}

// Two flops for every multiplication that a plain program makes.
std::int64_t count_core(const Problem& p) {
  return 2 * p.heads * count_pairs(p) * (p.head_dim + p.head_dim_v);
}

std::int64_t product(std::int64_t m, std::int64_t n, std::int64_t k) { return 2 * m * n * k; }

TEST(Work, CorePairsAreThoseOfTheMask) {
  for (const std::int64_t n_q : {0, 1, 2, 7, 16}) {
    for (const std::int64_t n_kv : {0, 1, 2, 7, 23}) {
      for (const Mask mask : {Mask::none, Mask::causal}) {
        for (const bool padded : {false, true}) {
          Problem p;
          p.batch = 3;
          p.heads = 4;
          p.heads_kv = 2;
          p.n_q = n_q;
          p.n_kv = n_kv;
          p.head_dim = 5;
          p.head_dim_v = 3;
          p.mask = mask;
          if (padded) p.key_lengths = {n_kv, 0, n_kv / 2};
          ASSERT_EQ(p.pairs(), count_pairs(p)) << n_q << " x " << n_kv;
          ASSERT_EQ(flops_model(p, Family::attention), count_core(p)) << n_q << " x " << n_kv;
        }
      }
    }
  }
}

Problem layer() {
  Problem p;
  p.scope = Scope::layer;
  p.batch = 2;
  p.heads = 6;
  p.heads_kv = 3;
  p.n_q = 11;
  p.n_kv = 17;
  p.head_dim = 5;
  p.head_dim_v = 7;
  p.d_model = 13;
  return p;
}

TEST(Work, LayerAddsItsProjections) {
  Problem p = layer();
  const std::int64_t q = product(2 * 11, 6 * 5, 13);
  const std::int64_t k = product(2 * 17, 3 * 5, 13);
  const std::int64_t v = product(2 * 17, 3 * 7, 13);
  const std::int64_t o = product(2 * 11, 13, 6 * 7);
  EXPECT_EQ(flops_model(p, Family::attention), count_core(p) + q + k + v);
  p.output_projection = true;
  EXPECT_EQ(flops_model(p, Family::attention), count_core(p) + q + k + v + o);
}

TEST(Work, DecodeProjectsOnlyTheNewTokens) {
  Problem p = layer();
  p.regime = Regime::decode;
  p.n_q = 1;
  const std::int64_t projections =
      product(2, 6 * 5, 13) + product(2, 3 * 5, 13) + product(2, 3 * 7, 13);
  EXPECT_EQ(flops_model(p, Family::attention), count_core(p) + projections);
}

TEST(Work, RecurrencesAndConvolution) {
  Problem p;
  p.scope = Scope::layer;
  p.batch = 3;
  p.n_q = p.n_kv = 10;
  p.d_model = 8;
  p.width = 5;
  const std::int64_t matrix = product(1, 8, 8);  // one d x d matrix times one token
  EXPECT_EQ(flops_model(p, Family::rnn), 30 * 2 * matrix);
  EXPECT_EQ(flops_model(p, Family::gru), 30 * 6 * matrix);
  EXPECT_EQ(flops_model(p, Family::lstm), 30 * 8 * matrix);
  EXPECT_EQ(flops_model(p, Family::convolution), 30 * 5 * matrix);
  EXPECT_THROW(flops_model(p, Family::sparse), std::invalid_argument);
  EXPECT_THROW(flops_model(p, Family::linear), std::invalid_argument);
}

TEST(Work, CountsDoNotOverflowAtLongContext) {
  Problem p;
  p.heads = 64;
  p.heads_kv = 8;
  p.n_q = p.n_kv = 131072;
  p.head_dim = p.head_dim_v = 128;
  EXPECT_EQ(flops_model(p, Family::attention), 2LL * 64 * 131072 * 131072 * 256);
}

TEST(Work, TensorsOfTheCore) {
  Problem p = layer();
  p.scope = Scope::core;
  const TensorElements e = tensor_elements(p, Family::attention);
  EXPECT_EQ(e.q, 2 * 6 * 11 * 5);
  EXPECT_EQ(e.k, 2 * 3 * 17 * 5);
  EXPECT_EQ(e.v, 2 * 3 * 17 * 7);
  EXPECT_EQ(e.out, 2 * 6 * 11 * 7);
  EXPECT_EQ(e.inputs(), e.q + e.k + e.v);
  EXPECT_EQ(e.outputs(), e.out);
  EXPECT_EQ(bytes_min(p, Family::attention), 4 * (e.q + e.k + e.v + e.out));
  EXPECT_EQ(kv_cache_bytes(p, Family::attention), 4 * (e.k + e.v));
  p.dtype = DType::bf16;
  EXPECT_EQ(bytes_min(p, Family::attention), 2 * (e.q + e.k + e.v + e.out));
  EXPECT_EQ(kv_cache_bytes(p, Family::attention), 2 * (e.k + e.v));
}

TEST(Work, TensorsOfTheLayer) {
  Problem p = layer();
  TensorElements e = tensor_elements(p, Family::attention);
  EXPECT_EQ(e.x, 2 * 11 * 13);
  EXPECT_EQ(e.context, 2 * 17 * 13);
  EXPECT_EQ(e.y, 2 * 11 * 6 * 7);
  EXPECT_EQ(e.w_q + e.w_k + e.w_v, 13 * (6 * 5 + 3 * 5 + 3 * 7));
  EXPECT_EQ(e.w_o, 0);
  EXPECT_EQ(e.q + e.k + e.v + e.out + e.w + e.u + e.b, 0);
  p.output_projection = true;
  p.n_kv = p.n_q;
  e = tensor_elements(p, Family::attention);
  EXPECT_EQ(e.context, 0) << "keys come from x itself";
  EXPECT_EQ(e.y, 2 * 11 * 13);
  EXPECT_EQ(e.w_o, 13 * 6 * 7);
}

TEST(Work, TensorsOfRecurrences) {
  Problem p;
  p.scope = Scope::layer;
  p.batch = 3;
  p.n_q = p.n_kv = 10;
  p.d_model = 8;
  const TensorElements e = tensor_elements(p, Family::lstm);
  EXPECT_EQ(e.x, 240);
  EXPECT_EQ(e.y, 240);
  EXPECT_EQ(e.w, 4 * 64);
  EXPECT_EQ(e.u, 4 * 64);
  EXPECT_EQ(e.b, 4 * 8);
  EXPECT_EQ(e.inputs(), 240 + 2 * 4 * 64 + 4 * 8);
  EXPECT_EQ(kv_cache_bytes(p, Family::lstm), 0);
  EXPECT_EQ(gates(Family::gru), 3);
  EXPECT_EQ(gates(Family::attention), 0);
}

// The lesson's parameter counts: 512 and 64 give 98,304 for one head; 4096 and 128 give 1,572,864.
TEST(Work, ParametersOfOneHead) {
  const auto parameters = [](std::int64_t d_model, std::int64_t d) {
    Problem p;
    p.scope = Scope::layer;
    p.n_q = p.n_kv = 1;
    p.d_model = d_model;
    p.head_dim = p.head_dim_v = d;
    const TensorElements e = tensor_elements(p, Family::attention);
    return e.w_q + e.w_k + e.w_v + e.w_o;
  };
  EXPECT_EQ(parameters(512, 64), 98304);
  EXPECT_EQ(parameters(768, 64), 147456);
  EXPECT_EQ(parameters(4096, 128), 1572864);
}

}  // namespace
}  // namespace attn
