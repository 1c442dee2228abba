// SPDX-License-Identifier: MIT
#include "harness/layer.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "harness/work.hpp"

namespace attn {
namespace {

// A core that records what it was given and writes a constant into out.
struct Seen {
  Problem problem;
  Io io;
  void* scratch = nullptr;
  int prepared = 0;
};
Seen seen;
std::int64_t core_scratch = 0;

Backend probe(std::string_view name, Memory memory = Memory::host) {
  Backend backend;
  backend.name = name;
  backend.memory = memory;
  backend.refuses = [](const Problem& p) -> std::optional<Refusal> {
    seen.problem = p;
    if (p.mask == Mask::causal) return Refusal{.sentence = "the core says no"};
    return std::nullopt;
  };
  backend.cost = [](const Problem&) {
    return Cost{
        .flops = 1000, .exps = 7, .bytes = 10, .state_bytes = 3, .scratch_bytes = core_scratch};
  };
  backend.prepare = [](const Problem& p, const Parameters&, void*) {
    seen.problem = p;
    ++seen.prepared;
  };
  backend.run = [](const Problem& p, const Io& io, void*, void* scratch) {
    seen = {p, io, scratch, seen.prepared};
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t h = 0; h < p.heads; ++h) {
        for (std::int64_t i = 0; i < p.n_q; ++i) {
          for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
            io.out.row<float>(b, h, i)[c] = static_cast<float>(100 * b + 10 * h + i);
          }
        }
      }
    }
  };
  return backend;
}

Problem layer(std::int64_t head_dim) {
  Problem p;
  p.scope = Scope::layer;
  p.batch = 2;
  p.heads = 4;
  p.heads_kv = 2;
  p.n_q = p.n_kv = 3;
  p.head_dim = p.head_dim_v = head_dim;
  p.d_model = 5;
  return p;
}

TEST(Layer, OtherScopesAndFamiliesReachTheBackend) {
  const Backend core = probe("cpu.probe");
  Problem p = layer(4);
  p.scope = Scope::core;
  EXPECT_EQ(cost(core, p).flops, 1000);
  EXPECT_EQ(projection_impl(core, p), "");
  Backend recurrence = probe("cpu.probe");
  recurrence.family = Family::lstm;
  p.scope = Scope::layer;
  EXPECT_EQ(cost(recurrence, p).flops, 1000);
  EXPECT_FALSE(refuses(recurrence, p).has_value());
  EXPECT_EQ(seen.problem.scope, Scope::layer);
}

TEST(Layer, TheCoreSeesOnlyCoreProblems) {
  const Backend core = probe("cpu.probe");
  const Problem p = layer(4);
  EXPECT_FALSE(refuses(core, p).has_value());
  EXPECT_EQ(seen.problem.scope, Scope::core);
  seen.problem.scope = Scope::layer;
  prepare(core, p, {}, nullptr);
  EXPECT_EQ(seen.problem.scope, Scope::core);
  EXPECT_EQ(seen.prepared, 1);
}

TEST(Layer, RefusesWithASentence) {
  Problem p = layer(4);
  EXPECT_TRUE(refuses(probe("cuda.probe", Memory::device), p).has_value());
  p.mask = Mask::causal;
  EXPECT_EQ(refuses(probe("cpu.probe"), p)->sentence, "the core says no");
  p = layer(4);
  p.regime = Regime::decode;
  EXPECT_TRUE(refuses(probe("cpu.probe"), p).has_value());
  p = layer(4);
  p.dtype = DType::bf16;
  EXPECT_TRUE(refuses(probe("cpu.probe"), p).has_value());
  p = layer(4);
  p.d_model = 0;
  EXPECT_TRUE(refuses(probe("cpu.probe"), p).has_value());
}

TEST(Layer, CostIsTheCoresAndTheProjections) {
  for (const bool output_projection : {false, true}) {
    for (const std::int64_t n_kv : {3, 8}) {
      Problem p = layer(4);
      p.output_projection = output_projection;
      p.n_kv = n_kv;
      Problem core = p;
      core.scope = Scope::core;
      const std::int64_t projections =
          flops_model(p, Family::attention) - flops_model(core, Family::attention);
      const Cost c = cost(probe("cpu.probe"), p);
      EXPECT_EQ(c.flops, 1000 + projections);
      EXPECT_EQ(c.exps, 7);
      EXPECT_EQ(c.state_bytes, 3);
      EXPECT_EQ(c.sequential_steps, 1);
    }
  }
}

// Scratch is the exact sum, and the core's part starts at a multiple of 64 whatever the sizes are.
TEST(Layer, ScratchIsTheExactSumAndTheCoreIsAligned) {
  for (const std::int64_t head_dim : {1, 4, 7, 16}) {
    for (const std::int64_t scratch_bytes : {0, 4, 36, 64, 1000}) {
      for (const bool output_projection : {false, true}) {
        core_scratch = scratch_bytes;
        Problem p = layer(head_dim);
        p.output_projection = output_projection;
        const std::int64_t tokens = 2 * 3;
        const std::int64_t q = 4 * tokens * 4 * head_dim, kv = 4 * tokens * 2 * head_dim;
        const std::int64_t bytes = cost(probe("cpu.probe"), p).scratch_bytes;
        ASSERT_EQ(bytes, scratch_bytes + q + 2 * kv + (output_projection ? q : 0));

        std::vector<float> x(2 * 3 * 5, 1.0F), w(4 * head_dim * 5, 1.0F);
        std::vector<float> y(2 * 3 * 4 * head_dim + 30);
        std::vector<char> memory(bytes + 64);
        void* aligned = memory.data();
        std::size_t space = memory.size();
        auto* const scratch = static_cast<char*>(std::align(64, bytes, aligned, space));
        Io io;
        io.x = {x.data(), 15, 0, 5};
        io.y = output_projection ? View{y.data(), 15, 0, 5}
                                 : View{y.data(), 3 * 4 * head_dim, 0, 4 * head_dim};
        io.parameters.w_q = io.parameters.w_k = io.parameters.w_v = io.parameters.w_o = w.data();
        run(probe("cpu.probe"), p, io, nullptr, scratch);
        const auto offset = static_cast<char*>(seen.scratch) - scratch;
        ASSERT_EQ(offset % 64, 0);
        ASSERT_LE(offset + scratch_bytes, bytes);
        for (const ConstView& view : {seen.io.q, seen.io.k, seen.io.v}) {
          const auto start = static_cast<const char*>(view.data) - scratch;
          ASSERT_GE(start, 0);
          ASSERT_TRUE(start >= offset + scratch_bytes || start < offset || scratch_bytes == 0);
        }
        core_scratch = 0;
      }
    }
  }
}

TEST(Layer, TensorsLieTokenHeadDim) {
  Problem p = layer(4);
  std::vector<float> x(30, 1.0F), w(4 * 4 * 5, 0.5F), y(2 * 3 * 16);
  std::vector<float> scratch(cost(probe("cpu.probe"), p).scratch_bytes / 4);
  Io io;
  io.x = {x.data(), 15, 0, 5};
  io.y = {y.data(), 48, 0, 16};
  io.parameters.w_q = io.parameters.w_k = io.parameters.w_v = w.data();
  run(probe("cpu.probe"), p, io, nullptr, scratch.data());
  EXPECT_EQ(seen.io.q.head_stride, 4);
  EXPECT_EQ(seen.io.q.token_stride, 16);
  EXPECT_EQ(seen.io.k.token_stride, 8);
  EXPECT_EQ(seen.io.q.row<float>(1, 3, 2)[3], 2.5F);
  EXPECT_EQ(seen.io.out.data, y.data()) << "without W_O the core writes y itself";
  EXPECT_EQ(y[48 + 2 * 16 + 3 * 4], 132.0F) << "item 1, token 2, head 3";
}

TEST(Layer, TheFolderDecidesWhatMultiplies) {
  const Problem p = layer(4);
  EXPECT_EQ(projection_impl(probe("cpu.anything"), p), "loops");
#ifdef ATTN_HAVE_BLAS
  EXPECT_EQ(projection_impl(probe("blas.anything"), p), "openblas sgemm");
  EXPECT_EQ(projection_impl(probe("simd.anything"), p), "openblas sgemm");
#else
  EXPECT_EQ(projection_impl(probe("simd.anything"), p), "loops");
#endif
}

TEST(Layer, PhasesFrameTheCores) {
  Problem p = layer(4);
  p.output_projection = true;
  std::vector<float> x(30, 1.0F), w(4 * 4 * 5, 0.5F), y(30);
  std::vector<float> scratch(cost(probe("cpu.probe"), p).scratch_bytes / 4);
  std::vector<std::string> phases;
  Io io;
  io.x = {x.data(), 15, 0, 5};
  io.y = {y.data(), 15, 0, 5};
  io.parameters.w_q = io.parameters.w_k = io.parameters.w_v = io.parameters.w_o = w.data();
  io.phase = {[](void* list, std::string_view phase) {
                static_cast<std::vector<std::string>*>(list)->emplace_back(phase);
              },
              &phases};
  run(probe("cpu.probe"), p, io, nullptr, scratch.data());
  EXPECT_EQ(phases, (std::vector<std::string>{"projections", "output projection", ""}));
}

}  // namespace
}  // namespace attn
