// SPDX-License-Identifier: MIT
// exp in f32 on Highway vectors, once per instruction set (so included inside foreach_target).
//
// exp(x) = 2^n t_i p(r) with x = (n + i/T) ln 2 + r, |r| <= ln 2 / (2 T): a table of T entries fits one
// register where T is the number of lanes, which leaves a polynomial of degree 3 (T = 4: 4, T = 1:
// 6). Adding 1.5 * 2^23 / T rounds x log2(e) to a multiple of 1/T, and leaves n and i in the low bits of
// the sum. Six slots of an FMA port: the reduction's three are what exactness costs, for 2^x would need
// one less, but x log2(e) is off by its rounding, which is 60 ulp of the result at x = -80.
// Coefficients: minimax for the relative error with p(0) = 1, so that exp(0) is 1 exactly.
//
// Error against float64: at most 2 ulp where the result is at least 2^-126 (tests/impls/exp_test.cpp);
// 0 up to x = -127 ln 2, less than 2^-126 off between the two; NaN stays NaN. From 128 ln 2 on the
// result means nothing.
#if defined(ATTN_IMPLS_SUPPORT_EXP_INL_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_IMPLS_SUPPORT_EXP_INL_HPP_
#undef ATTN_IMPLS_SUPPORT_EXP_INL_HPP_
#else
#define ATTN_IMPLS_SUPPORT_EXP_INL_HPP_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace attn::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Integers = hn::RebindToSigned<Floats>;
using FloatVector = hn::Vec<Floats>;
constexpr int lanes = static_cast<int>(hn::MaxLanes(Floats()));

// The larger one, but a NaN in `value` stays: x86 returns its second operand then, and what another
// machine's maximum does is left open by Highway.
HWY_INLINE FloatVector at_least(FloatVector bound, FloatVector value) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(bound, value);
#else
  return hn::IfThenElse(hn::Lt(value, bound), bound, value);
#endif
}

class Exp {
 public:
  HWY_INLINE Exp() {
    // Bits of 2^(i/T), less those of i where it will be added beside n.
    HWY_ALIGN std::int32_t bits[lanes];
    constexpr double sixteenth_root_of_2 = 1.0442737824274138;
    double power = 1.0;
    for (int i = 0; i < lanes; ++i) {
      const float value = static_cast<float>(power);
      std::memcpy(&bits[i], &value, sizeof value);
      bits[i] -= i << shift;
      for (int k = 0; k < 16 / lanes; ++k) power *= sixteenth_root_of_2;
    }
    table_ = hn::Load(Integers(), bits);
  }

  HWY_INLINE FloatVector operator()(FloatVector x) const {
    const Floats f;
    const Integers i;
    x = at_least(hn::Set(f, -88.0296920F), x);  // -127 ln 2: n is -127 there and 2^n all zero bits
    const FloatVector round = hn::Set(f, 12582912.0F / static_cast<float>(lanes));
    const FloatVector sum = hn::MulAdd(x, hn::Set(f, 1.44269504F), round);
    const FloatVector multiple = hn::Sub(sum, round);
    // ln 2 in two parts, the first of 9 bits, so that its product is exact without an FMA too.
    FloatVector r = hn::NegMulAdd(multiple, hn::Set(f, 0.693359375F), x);
    r = hn::MulAdd(multiple, hn::Set(f, 2.12194440e-4F), r);
    const auto bits = hn::BitCast(i, sum);
    const auto index = hn::IndicesFromVec(i, hn::And(bits, hn::Set(i, lanes - 1)));
    const FloatVector scale =
        hn::BitCast(f, hn::Add(hn::TableLookupLanes(table_, index), hn::ShiftLeft<shift>(bits)));
    FloatVector p = hn::Set(f, c[degree - 1]);
    for (int k = degree - 2; k >= 0; --k) p = hn::MulAdd(p, r, hn::Set(f, c[k]));
    return hn::MulAdd(hn::Mul(p, r), scale, scale);
  }

 private:
  static_assert(lanes == 1 || lanes == 4 || lanes == 8 || lanes == 16, "no coefficients");
  static constexpr int shift = lanes == 16 ? 19 : lanes == 8 ? 20 : lanes == 4 ? 21 : 23;
  static constexpr int degree = lanes == 1 ? 6 : lanes == 4 ? 4 : 3;
  // Of r, r^2, ...; relative error 1.6e-9, 2.5e-8, 2.6e-9 and 2.0e-9 at 16, 8, 4 lanes and 1.
  static constexpr float c16[] = {1.0F, 5.000161953e-1F, 1.666607485e-1F};
  static constexpr float c8[] = {1.0F, 5.000647781e-1F, 1.666429841e-1F};
  static constexpr float c4[] = {9.999998570e-1F, 5.000001116e-1F, 1.667442744e-1F,
                                 4.165823285e-2F};
  static constexpr float c1[] = {1.000000032F,    4.999999421e-1F, 1.666643126e-1F,
                                 4.166800204e-2F, 8.374155305e-3F, 1.384365341e-3F};
  static constexpr const float* c = lanes == 16 ? c16 : lanes == 8 ? c8 : lanes == 4 ? c4 : c1;
  hn::Vec<Integers> table_;
};

}  // namespace attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
