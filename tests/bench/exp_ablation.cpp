// SPDX-License-Identifier: MIT
// What the exponential of impls/support/exp-inl.hpp costs and gains beside others, shown and not
// asserted: run it on a quiet machine. Each variant's largest error over strided floats, in ulp of
// results from 2^-126 on (arguments up to 88) and absolutely below, and its time in L1.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/exp_ablation.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <numbers>

#include "hwy/contrib/math/math-inl.h"
#include "impls/support/exp-inl.hpp"

// What every instruction set's code is asked for.
#ifndef ATTN_TESTS_BENCH_EXP_ABLATION_CPP_
#define ATTN_TESTS_BENCH_EXP_ABLATION_CPP_
namespace attn {
enum class Kind {
  ours,
  one_part,      // ln 2 without its low part
  lower_degree,  // one less
  degree_6,      // no table
  degree_5,
  log2_domain,  // 2^y of the rounded product y = x log2(e)
  two_tables,   // of 16 entries each, and a polynomial of degree 1
  highway,      // hn::Exp
};
}  // namespace attn
#endif

HWY_BEFORE_NAMESPACE();
namespace attn::HWY_NAMESPACE {
namespace {

enum class Reduction { two_parts, one_part, log2 };

// The minimax polynomial 1 + c_1 r + ... of e^r for |r| <= ln 2 / (2 T), relative error; c_k.
template <int table, int degree>
constexpr double coefficient(int k) {
  constexpr double t16_3[] = {1.000000003, 5.000161985e-1, 1.666607430e-1};
  constexpr double t16_2[] = {1.000058499, 4.999998396e-1};
  constexpr double t8_3[] = {1.000000049, 5.000647911e-1, 1.666429773e-1};
  constexpr double t8_2[] = {1.000233323, 4.999987052e-1};
  constexpr double t4_4[] = {9.999998569e-1, 5.000001116e-1, 1.667442909e-1, 4.165823585e-2};
  constexpr double t4_3[] = {1.000000777, 5.002591184e-1, 1.665720214e-1};
  constexpr double t1_6[] = {1.000000032,    4.999999411e-1, 1.666643050e-1,
                             4.166801423e-2, 8.374210061e-3, 1.384333487e-3};
  constexpr double t1_5[] = {9.999997073e-1, 4.999914914e-1, 1.666763586e-1, 4.189798030e-2,
                             8.290347891e-3};
  constexpr int which = 10 * table + degree;
  static_assert(which == 163 || which == 162 || which == 83 || which == 82 || which == 44 ||
                    which == 43 || which == 16 || which == 15,
                "no coefficients");
  if constexpr (which == 163) return t16_3[k];
  if constexpr (which == 162) return t16_2[k];
  if constexpr (which == 83) return t8_3[k];
  if constexpr (which == 82) return t8_2[k];
  if constexpr (which == 44) return t4_4[k];
  if constexpr (which == 43) return t4_3[k];
  if constexpr (which == 16) return t1_6[k];
  if constexpr (which == 15) return t1_5[k];
}

constexpr int own_degree = lanes == 1 ? 6 : lanes == 4 ? 4 : 3;

// Bits of root^i in lane i, less those of i where it will be added beside n (i_shift >= 0).
hn::Vec<Integers> powers(double root, int i_shift) {
  HWY_ALIGN std::int32_t bits[lanes];
  double power = 1.0;
  for (int i = 0; i < lanes; ++i) {
    const auto value = static_cast<float>(power);
    std::memcpy(&bits[i], &value, sizeof value);
    if (i_shift >= 0) bits[i] -= i << i_shift;
    power *= root;
  }
  return hn::Load(Integers(), bits);
}

// Exp with its choices as parameters; table is 1 (none) or the number of lanes.
template <int table, int degree, Reduction reduction>
class Variant {
 public:
  HWY_INLINE Variant() : table_(powers(std::pow(2.0, 1.0 / table), shift)) {}

  HWY_INLINE FloatVector operator()(FloatVector x) const {
    const Floats f;
    const Integers i;
    x = at_least(hn::Set(f, -88.0296920F), x);
    const FloatVector log2_e = hn::Set(f, 1.44269504F);
    const FloatVector round = hn::Set(f, 12582912.0F / static_cast<float>(table));
    FloatVector sum;
    FloatVector r;
    if constexpr (reduction == Reduction::log2) {
      // g++ may fuse this product into the subtraction below, which then is less wrong.
      const FloatVector y = hn::Mul(x, log2_e);
      sum = hn::Add(y, round);
      r = hn::Sub(y, hn::Sub(sum, round));
    } else {
      sum = hn::MulAdd(x, log2_e, round);
      const FloatVector multiple = hn::Sub(sum, round);
      if constexpr (reduction == Reduction::one_part) {
        r = hn::NegMulAdd(multiple, hn::Set(f, 0.693147181F), x);
      } else {
        r = hn::NegMulAdd(multiple, hn::Set(f, 0.693359375F), x);
        r = hn::MulAdd(multiple, hn::Set(f, 2.12194440e-4F), r);
      }
    }
    const auto bits = hn::BitCast(i, sum);
    auto of_table = table_;
    if constexpr (table == 1) {
      of_table = hn::Set(i, 0x3F800000);
    } else {
      const auto index = hn::IndicesFromVec(i, hn::And(bits, hn::Set(i, table - 1)));
      of_table = hn::TableLookupLanes(table_, index);
    }
    const FloatVector scale = hn::BitCast(f, hn::Add(of_table, hn::ShiftLeft<shift>(bits)));
    FloatVector p = hn::Set(f, c(degree - 1));
    for (int k = degree - 2; k >= 0; --k) p = hn::MulAdd(p, r, hn::Set(f, c(k)));
    return hn::MulAdd(hn::Mul(p, r), scale, scale);
  }

 private:
  static_assert(table == 1 || table == lanes);
  static constexpr int shift = table == 16 ? 19 : table == 8 ? 20 : table == 4 ? 21 : 23;
  static constexpr float c(int k) {
    double value = coefficient<table, degree>(k);
    for (int i = 0; reduction == Reduction::log2 && i <= k; ++i) value *= std::numbers::ln2;
    return static_cast<float>(value);
  }
  hn::Vec<Integers> table_;
};

#if HWY_MAX_BYTES == 64
// exp(x) = 2^n 2^(i/16) 2^(j/256) (1 + c r), |r| <= ln 2 / 512.
class TwoTables {
 public:
  HWY_INLINE TwoTables()
      : coarse_(powers(std::pow(2.0, 1.0 / 16), -1)), fine_(powers(std::pow(2.0, 1.0 / 256), -1)) {}

  HWY_INLINE FloatVector operator()(FloatVector x) const {
    const Floats f;
    const Integers i;
    x = at_least(hn::Set(f, -88.0296920F), x);
    const FloatVector round = hn::Set(f, 12582912.0F / 256);
    const FloatVector sum = hn::MulAdd(x, hn::Set(f, 1.44269504F), round);
    const FloatVector multiple = hn::Sub(sum, round);
    FloatVector r = hn::NegMulAdd(multiple, hn::Set(f, 0.693359375F), x);
    r = hn::MulAdd(multiple, hn::Set(f, 2.12194440e-4F), r);
    const auto bits = hn::BitCast(i, sum);
    const auto low = hn::Set(i, 15);
    const auto coarse =
        hn::TableLookupLanes(coarse_, hn::IndicesFromVec(i, hn::And(hn::ShiftRight<4>(bits), low)));
    const auto fine = hn::TableLookupLanes(fine_, hn::IndicesFromVec(i, hn::And(bits, low)));
    const auto power = hn::ShiftLeft<15>(hn::AndNot(hn::Set(i, 255), bits));
    const FloatVector scale = hn::Mul(hn::BitCast(f, hn::Add(coarse, power)), hn::BitCast(f, fine));
    return hn::MulAdd(hn::Mul(r, hn::Set(f, 0.999999389F)), scale, scale);
  }

 private:
  hn::Vec<Integers> coarse_;
  hn::Vec<Integers> fine_;
};
#endif

class Highway {
 public:
  HWY_INLINE FloatVector operator()(FloatVector x) const { return hn::Exp(Floats(), x); }
};

template <class Function>
bool map(const Function& function, const float* from, float* to, std::size_t count) {
  const Floats f;
  for (std::size_t i = 0; i < count; i += lanes) {
    hn::Store(function(hn::Load(f, from + i)), f, to + i);
  }
  return true;
}

// to [count] <- exp(from [count]), both aligned, count a multiple of 16. False where this
// instruction set does not have the variant.
bool exp_of(Kind kind, const float* from, float* to, std::size_t count) {
  switch (kind) {
    case Kind::ours:
      return map(Exp(), from, to, count);
    case Kind::one_part:
      return map(Variant<lanes, own_degree, Reduction::one_part>(), from, to, count);
    case Kind::lower_degree:
      return map(Variant<lanes, own_degree - 1, Reduction::two_parts>(), from, to, count);
    case Kind::degree_6:
      return map(Variant<1, 6, Reduction::two_parts>(), from, to, count);
    case Kind::degree_5:
      return map(Variant<1, 5, Reduction::two_parts>(), from, to, count);
    case Kind::log2_domain:
      return map(Variant<lanes, own_degree, Reduction::log2>(), from, to, count);
    case Kind::two_tables:
#if HWY_MAX_BYTES == 64
      return map(TwoTables(), from, to, count);
#else
      return false;
#endif
    case Kind::highway:
      return map(Highway(), from, to, count);
  }
  return false;
}

}  // namespace
}  // namespace attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <fmt/format.h>
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace attn {
namespace {

HWY_EXPORT(exp_of);

constexpr std::size_t block = 2048;  // two blocks are half of an L1 of 32 KB
using Function = std::function<bool(const float* from, float* to)>;

struct Buffers {
  hwy::AlignedFreeUniquePtr<float[]> from = hwy::AllocateAligned<float>(block);
  hwy::AlignedFreeUniquePtr<float[]> to = hwy::AllocateAligned<float>(block);
};

struct Errors {
  double ulp = 0.0;       // where the result is at least 2^-126
  double absolute = 0.0;  // below
};

// Over every stride-th float from -120 to 88, both zeros included.
Errors errors(const Function& function, const Buffers& buffers, std::uint32_t stride) {
  Errors largest;
  std::size_t filled = 0;
  const auto check = [&] {
    std::fill(buffers.from.get() + filled, buffers.from.get() + block, 0.0F);
    function(buffers.from.get(), buffers.to.get());
    for (std::size_t i = 0; i < filled; ++i) {
      const double truth = std::exp(static_cast<double>(buffers.from[i]));
      const double error = std::abs(buffers.to[i] - truth);
      if (truth < 0x1p-126) {
        largest.absolute = std::max(largest.absolute, error);
      } else {
        largest.ulp = std::max(largest.ulp, error / std::ldexp(1.0, std::ilogb(truth) - 23));
      }
    }
    filled = 0;
  };
  for (const float end : {-120.0F, 88.0F}) {
    const auto sign = std::bit_cast<std::uint32_t>(std::copysign(0.0F, end));
    for (std::uint64_t bits = sign; bits <= std::bit_cast<std::uint32_t>(end); bits += stride) {
      buffers.from[filled++] = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
      if (filled == block) check();
    }
  }
  check();
  return largest;
}

// The best of many windows: what disturbs one is no part of the loop.
double nanoseconds(const Function& function, const Buffers& buffers) {
  constexpr int windows = 2000;
  constexpr int calls = 16;
  for (std::size_t i = 0; i < block; ++i) {
    buffers.from[i] = -20.0F * static_cast<float>(i * 1021 % block) / static_cast<float>(block);
  }
  double best = std::numeric_limits<double>::infinity();
  volatile float sink = 0.0F;
  for (int window = 0; window < windows; ++window) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) function(buffers.from.get(), buffers.to.get());
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    sink = buffers.to[static_cast<std::size_t>(window) % block];
    best = std::min(best, time.count() / calls / static_cast<double>(block));
  }
  static_cast<void>(sink);
  return best;
}

bool scalar(const float* from, float* to) {
  for (std::size_t i = 0; i < block; ++i) to[i] = std::exp(from[i]);
  return true;
}

std::string targets() {
  std::string names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", hwy::TargetName(target));
  }
  return names;
}

// Nullopt where this machine or this build does not have it.
std::optional<std::int64_t> target_named(std::string_view name) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name == hwy::TargetName(target)) return target;
  }
  return std::nullopt;
}

void show(std::uint32_t stride) {
  constexpr std::pair<Kind, const char*> variants[] = {
      {Kind::ours, "ours: a table in one register, ln 2 in two parts"},
      {Kind::one_part, "without the low part of ln 2"},
      {Kind::lower_degree, "degree lower by one"},
      {Kind::degree_6, "no table, degree 6"},
      {Kind::degree_5, "no table, degree 5"},
      {Kind::log2_domain, "2^y of the rounded y = x log2(e)"},
      {Kind::two_tables, "two tables of 16, degree 1"},
      {Kind::highway, "Highway's contrib Exp"},
  };
  const Buffers buffers;
  double ours = 0.0;
  const auto row = [&](const char* what, const Function& function) {
    if (!function(buffers.from.get(), buffers.to.get())) {
      fmt::print("| {} | needs AVX-512 | – | – | – |\n", what);
      return;
    }
    const Errors error = errors(function, buffers, stride);
    const double time = nanoseconds(function, buffers);
    if (ours == 0.0) ours = time;
    fmt::print("| {} | {:.2f} | {:.2g} | {:.3f} | {:.2f} |\n", what, error.ulp, error.absolute,
               time, time / ours);
  };
  fmt::print("| {} | ulp from 2^-126 on | error below it | ns an element | ÷ ours |\n",
             hwy::TargetName(hwy::SupportedAndGeneratedTargets().front()));
  fmt::print("| --- | --- | --- | --- | --- |\n");
  std::fill(buffers.from.get(), buffers.from.get() + block, 0.0F);
  for (const auto& [kind, what] : variants) {
    row(what, [kind = kind](const float* from, float* to) {
      return HWY_DYNAMIC_DISPATCH(exp_of)(kind, from, to, block);
    });
  }
  row("scalar std::exp", scalar);
}

int usage_error(const std::string& sentence) {
  fmt::print(stderr, "exp_ablation: {}\n", sentence);
  return 2;
}

}  // namespace

int ablation(int argc, char** argv) {
  std::uint32_t stride = 61;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--help") {
      fmt::print(
          "usage: exp_ablation [--stride N] [TARGET]\n\n"
          "Prints error and time of exponentials, under TARGET (best: {}). Errors are those of "
          "every\n"
          "N-th float (61: under a minute; 1: all of them).\n",
          targets());
      return 0;
    }
    if (word == "--stride") {
      const std::string_view text = ++i < argc ? argv[i] : "";
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), stride);
      if (error != std::errc{} || end != text.data() + text.size() || stride == 0) {
        return usage_error(fmt::format("--stride: \"{}\" is no number from 1 on", text));
      }
      continue;
    }
    const auto target = target_named(word);
    if (!target) {
      return usage_error(fmt::format("\"{}\" cannot run here; use one of {}", word, targets()));
    }
    hwy::SetSupportedTargetsForTest(*target);
  }
  show(stride);
  return 0;
}

}  // namespace attn

int main(int argc, char** argv) { return attn::ablation(argc, argv); }
#endif
