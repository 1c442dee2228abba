// SPDX-License-Identifier: MIT
// The backends on PyTorch without PyTorch: what they refuse, and how they treat a module that is not as
// it should be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "impls/attention.hpp"

namespace attn {
Backend torch_sdpa();
Backend torch_sdpa_math();

namespace {

using testing::HasSubstr;

Refusal refusal_of(const Backend& backend, const std::function<void(Problem&)>& edit) {
  Problem p;
  p.n_q = p.n_kv = 16;
  edit(p);
  return backend.refuses(p).value_or(Refusal{.sentence = "none"});
}

TEST(TorchLoader, ASecondOpenMpRuntimeMakesThemUnavailable) {
  for (const Backend& backend : {torch_sdpa(), torch_sdpa_math()}) {
    const Refusal refusal = refusal_of(backend, [](Problem&) {});
    EXPECT_EQ(refusal.kind, Refusal::Kind::unavailable) << backend.name;
    EXPECT_THAT(refusal.sentence, HasSubstr("OpenMP runtime")) << backend.name;
  }
}

TEST(TorchLoader, AFailureOfTheLibraryIsThrown) {
  try {
    torch_sdpa().run({}, {}, nullptr, nullptr);
    FAIL() << "threw nothing";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the flash kernel failed");
  }
  EXPECT_NO_THROW(torch_sdpa_math().run({}, {}, nullptr, nullptr));
}

TEST(TorchLoader, WhatPyTorchDoesOtherwiseIsUnsupported) {
  const std::vector<std::pair<const char*, std::function<void(Problem&)>>> otherwise = {
      {"top-left", [](Problem& p) { p.mask = Mask::causal, p.n_q = 15; }},
      {"key lengths", [](Problem& p) { p.key_lengths = {3}; }},
      {"host memory", [](Problem& p) { p.memory = Memory::device; }},
      {"bf16", [](Problem& p) { p.dtype = DType::f16; }},
      {"one key", [](Problem& p) { p.n_kv = 0; }}};
  for (const auto& [words, edit] : otherwise) {
    for (const Backend& backend : {torch_sdpa(), torch_sdpa_math()}) {
      const Refusal refusal = refusal_of(backend, edit);
      EXPECT_EQ(refusal.kind, Refusal::Kind::unsupported) << backend.name;
      EXPECT_THAT(refusal.sentence, HasSubstr(words)) << backend.name;
    }
  }
  EXPECT_THAT(refusal_of(torch_sdpa(), [](Problem& p) { p.head_dim_v = 8; }).sentence,
              HasSubstr("head_dim_v"));
  const auto causal_with_scale_0 = [](Problem& p) { p.mask = Mask::causal, p.scale = 0.0; };
  EXPECT_THAT(refusal_of(torch_sdpa(), causal_with_scale_0).sentence, HasSubstr("scale above 0"));
}

}  // namespace
}  // namespace attn
