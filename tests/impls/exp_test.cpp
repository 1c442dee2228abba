// SPDX-License-Identifier: MIT
// The vectorised exp on every instruction set that this machine executes, against float64.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/impls/exp_test.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "impls/support/exp-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::HWY_NAMESPACE {
namespace {

// values [count] <- exp(values), count a multiple of 16.
void exp_of(float* values, int count) {
  const Exp exp;
  const Floats f;
  for (int i = 0; i < count; i += lanes) hn::StoreU(exp(hn::LoadU(f, values + i)), f, values + i);
}

}  // namespace
}  // namespace attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace attn {
namespace {

HWY_EXPORT(exp_of);

constexpr float infinity = std::numeric_limits<float>::infinity();

class Exp : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  static std::vector<float> exp(std::vector<float> values) {
    const std::size_t count = values.size();
    values.resize((count + 15) / 16 * 16);
    HWY_DYNAMIC_DISPATCH(exp_of)(values.data(), static_cast<int>(values.size()));
    values.resize(count);
    return values;
  }

  // The largest error over every `stride`th float from `from` away from zero up to `to`, in units that
  // `unit(truth)` gives.
  template <class Unit>
  static double largest_error(float from, float to, unsigned stride, Unit unit) {
    double largest = 0.0;
    std::vector<float> inputs;
    const auto check = [&] {
      const std::vector<float> results = exp(inputs);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const double truth = std::exp(static_cast<double>(inputs[i]));
        largest = std::max(largest, std::abs(results[i] - truth) / unit(truth));
      }
      inputs.clear();
    };
    for (auto bits = std::bit_cast<std::uint32_t>(from); bits <= std::bit_cast<std::uint32_t>(to);
         bits += stride) {
      inputs.push_back(std::bit_cast<float>(bits));
      if (inputs.size() == 4096) check();
    }
    check();
    return largest;
  }
};

double ulp(double truth) { return std::ldexp(1.0, std::ilogb(truth) - 23); }

TEST_P(Exp, IsWithinTwoUlpWhereTheResultIsNormal) {
  EXPECT_LE(largest_error(-0.0F, -87.33F, 257, ulp), 2.0);
  EXPECT_LE(largest_error(0.0F, 88.72F, 257, ulp), 2.0);
  // Everywhere near the largest score, where a weight counts most.
  EXPECT_LE(largest_error(-0.03125F, -1.0F, 13, ulp), 2.0);
}

TEST_P(Exp, IsLessThanTheLeastNormalNumberOffBelow) {
  EXPECT_LT(largest_error(-87.33F, -1000.0F, 1, [](double) { return std::ldexp(1.0, -126); }), 1.0);
  EXPECT_EQ(exp({-88.03F, -3e38F, -infinity}), (std::vector<float>{0, 0, 0}));
}

TEST_P(Exp, IsOneAtZeroAndNanAtNan) {
  EXPECT_EQ(exp({0.0F, -0.0F}), (std::vector<float>{1, 1}));
  for (const float value : exp(std::vector<float>(20, std::nanf("")))) {
    EXPECT_TRUE(std::isnan(value));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, Exp,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

}  // namespace
}  // namespace attn
#endif
