// SPDX-License-Identifier: MIT
#include "harness/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "harness/elements.hpp"
#include "harness/reference.hpp"
#include "harness/work.hpp"

namespace attn {
namespace {

constexpr double zero_share = 0.3;

bool layer_scope(const Problem& problem, Family family) {
  return problem.scope == Scope::layer || is_recurrent(family) || family == Family::convolution;
}

std::size_t bytes_of(DType dtype, std::int64_t elements) {
  return static_cast<std::size_t>(elements * bytes_per_element(dtype));
}

template <class AnyView>
AnyView contiguous(void* data, std::int64_t heads, std::int64_t tokens, std::int64_t width) {
  AnyView view;
  view.data = data;
  view.batch_stride = heads * tokens * width;
  view.head_stride = tokens * width;
  view.token_stride = width;
  return view;
}

// Rows are made alone, so any number of threads gives the same tensor. Below a million elements
// starting the threads costs more than it saves. Those of a 16-bit dtype are the f32 rows, rounded.
void fill_tensor(std::uint64_t seed, TensorId tensor, InputDist dist, double scale, DType dtype,
                 std::int64_t rows, std::int64_t width, void* data) {
  with_element(dtype, [&]<class Element>(Element) {
    const auto size = static_cast<std::size_t>(width);
#pragma omp parallel if (rows * width > std::int64_t{1} << 20)
    {
      std::vector<float> values(std::is_same_v<Element, float> ? 0 : size);
#pragma omp for schedule(static)
      for (std::int64_t r = 0; r < rows; ++r) {
        Element* row = static_cast<Element*>(data) + r * width;
        if constexpr (std::is_same_v<Element, float>) {
          fill_row(seed, tensor, r, dist, scale, {row, size});
        } else {
          fill_row(seed, tensor, r, dist, scale, values);
          write_row(dtype, values.data(), width, row);
        }
      }
    }
  });
}

// "batch item 0, head 3, row 17" or, where a row has no head, "batch item 0, row 17".
std::string place(const RowId& row, bool heads) {
  return heads ? fmt::format("batch item {}, head {}, row {}", row.batch, row.head, row.token)
               : fmt::format("batch item {}, row {}", row.batch, row.token);
}

}  // namespace

struct Shape::Impl {
  Problem problem;
  Family family;
  std::uint64_t seed;
  InputDist dist;
  bool protection;
  Io io;
  struct Tensor {
    FencedBuffer buffer;
    TensorId id;
    std::int64_t rows, width;
  };
  std::vector<Tensor> inputs;
  std::vector<Tensor> weights;
  std::optional<Truth> truth;

  ConstView input(TensorId id, std::int64_t heads, std::int64_t tokens, std::int64_t width) {
    const std::int64_t rows = problem.batch * heads * tokens;
    inputs.push_back(
        {FencedBuffer(bytes_of(problem.dtype, rows * width), protection), id, rows, width});
    return contiguous<ConstView>(inputs.back().buffer.data(), heads, tokens, width);
  }

  // Normal with a standard deviation of 1 / sqrt(fan_in), row-major [rows, width].
  const void* weight(TensorId id, std::int64_t rows, std::int64_t width, std::int64_t fan_in) {
    weights.push_back(
        {FencedBuffer(bytes_of(problem.dtype, rows * width), protection), id, rows, width});
    void* data = weights.back().buffer.data();
    const double scale = 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, fan_in)));
    fill_tensor(seed, id, InputDist::normal, scale, problem.dtype, rows, width, data);
    return data;
  }

  void fill_inputs(std::uint64_t with) {
    for (const Tensor& tensor : inputs) {
      fill_tensor(with, tensor.id, dist, 1.0, problem.dtype, tensor.rows, tensor.width,
                  tensor.buffer.data());
    }
  }
};

Shape::Shape(const Problem& problem, Family family, std::uint64_t seed, InputDist dist,
             const Safeguards& rules)
    : impl_(std::make_unique<Impl>()) {
  if (problem.dtype != DType::f32 && layer_scope(problem, family)) {
    throw std::invalid_argument("inputs and reference of a layer exist for f32 only");
  }
  Impl& impl = *impl_;
  impl.problem = problem;
  impl.family = family;
  impl.seed = seed;
  impl.dist = dist;
  impl.protection = rules.has(Safeguard::protected_pages);
  const Problem& p = impl.problem;
  Io& io = impl.io;
  if (!layer_scope(p, family)) {
    io.q = impl.input(TensorId::q, p.heads, p.n_q, p.head_dim);
    io.k = impl.input(TensorId::k, p.heads_kv, p.n_kv, p.head_dim);
    io.v = impl.input(TensorId::v, p.heads_kv, p.n_kv, p.head_dim_v);
  } else {
    const std::int64_t d = p.d_model;
    io.x = impl.input(TensorId::x, 1, p.n_q, d);
    Parameters& w = io.parameters;
    if (is_recurrent(family)) {
      const std::int64_t wide = gates(family) * d;
      w.w = impl.weight(TensorId::w, wide, d, d);
      w.u = impl.weight(TensorId::u, wide, d, d);
      w.b = impl.weight(TensorId::b, 1, wide, d);
    } else if (family == Family::convolution) {
      w.w = impl.weight(TensorId::w, p.width * d, d, d);
      w.b = impl.weight(TensorId::b, 1, d, d);
    } else {
      if (p.n_q != p.n_kv) io.context = impl.input(TensorId::context, 1, p.n_kv, d);
      w.w_q = impl.weight(TensorId::w_q, p.heads * p.head_dim, d, d);
      w.w_k = impl.weight(TensorId::w_k, p.heads_kv * p.head_dim, d, d);
      w.w_v = impl.weight(TensorId::w_v, p.heads_kv * p.head_dim_v, d, d);
      const std::int64_t mixed = p.heads * p.head_dim_v;
      if (p.output_projection) w.w_o = impl.weight(TensorId::w_o, d, mixed, mixed);
    }
  }
  impl.fill_inputs(seed);
}

Shape::~Shape() = default;
const Problem& Shape::problem() const { return impl_->problem; }
Family Shape::family() const { return impl_->family; }
std::uint64_t Shape::seed() const { return impl_->seed; }
Parameters Shape::parameters() const { return impl_->io.parameters; }
Io Shape::io() const { return impl_->io; }

std::uint64_t Shape::hash() const {
  std::uint64_t result = 0;
  for (const auto* tensors : {&impl_->inputs, &impl_->weights}) {
    for (const auto& tensor : *tensors) result = random_bits(result, tensor.buffer.hash());
  }
  return result;
}

bool Shape::intact() const {
  for (const auto* tensors : {&impl_->inputs, &impl_->weights}) {
    for (const auto& tensor : *tensors) {
      if (!tensor.buffer.intact()) return false;
    }
  }
  return true;
}

void Shape::refill(std::uint64_t seed) {
  impl_->seed = seed;
  impl_->truth.reset();
  impl_->fill_inputs(seed);
}

void Shape::fill(std::uint64_t seed) { impl_->fill_inputs(seed); }

Shape::Truth& Shape::truth() {
  if (!impl_->truth) {
    impl_->truth = reference::compute(impl_->problem, impl_->family, impl_->io, impl_->seed);
  }
  return *impl_->truth;
}

Output::Output(const Problem& p, Family family, const Safeguards& rules)
    : dtype_(p.dtype), layer_(layer_scope(p, family)) {
  const bool attention_layer = !is_recurrent(family) && family != Family::convolution;
  const std::int64_t heads = layer_ ? 1 : p.heads;
  std::int64_t width = p.head_dim_v;
  if (layer_) {
    width = attention_layer && !p.output_projection ? p.heads * p.head_dim_v : p.d_model;
  }
  buffer_ = FencedBuffer(bytes_of(dtype_, p.batch * heads * p.n_q * width),
                         rules.has(Safeguard::protected_pages));
  view_ = contiguous<View>(buffer_.data(), heads, p.n_q, width);
}

void Output::poison() {
  const auto elements = static_cast<std::int64_t>(buffer_.size()) / bytes_per_element(dtype_);
  fill_with_nan(dtype_, elements, buffer_.data());
}

void Output::attach(Io& io) const { (layer_ ? io.y : io.out) = view_; }

namespace {

// What a look at every element finds: the first that is not finite, and zeros no mask explains.
struct Scan {
  std::int64_t not_finite = -1;
  double zero_share = 0;
};

template <class Element>
Scan scan(const Shape& shape, const Output& output) {
  const Problem& p = shape.problem();
  const bool masked = !is_recurrent(shape.family());
  const View view = output.view();
  const std::int64_t width = view.token_stride;
  const std::int64_t heads = p.n_q == 0 ? 0 : view.batch_stride / view.head_stride;
  Scan result;
  std::int64_t zeros = 0;
  std::int64_t seen = 0;
  const auto* row = static_cast<const Element*>(view.data);
  std::int64_t number = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < p.n_q; ++i, ++number, row += width) {
        std::int64_t row_zeros = 0;
        std::int64_t row_not_finite = 0;
        for (std::int64_t c = 0; c < width; ++c) {
          const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(row[c]));
          row_not_finite += (bits & 0x7f800000) == 0x7f800000 ? 1 : 0;
          row_zeros += (bits & 0x7fffffff) == 0 ? 1 : 0;
        }
        if (row_not_finite > 0 && result.not_finite < 0) {
          const auto* at =
              std::find_if(row, row + width, [](float v) { return !std::isfinite(v); });
          result.not_finite = number * width + (at - row);
        }
        if (masked && p.visible(b, i) == 0) continue;
        zeros += row_zeros;
        seen += width;
      }
    }
  }
  result.zero_share = seen == 0 ? 0 : static_cast<double>(zeros) / static_cast<double>(seen);
  return result;
}

}  // namespace

Check verify(Shape& shape, const Output& output, const Safeguards& rules) {
  const Shape::Truth& truth = shape.truth();
  const View view = output.view();
  const DType dtype = shape.problem().dtype;
  const bool heads = !layer_scope(shape.problem(), shape.family());
  Check check;
  check.mode = truth.mode;
  check.rows_checked = static_cast<std::int64_t>(truth.rows.size());
  check.err_bound = truth.bound;
  if (output.bytes() == 0) {
    check.rows_checked = 0;
    return check;
  }
  const auto fail = [&](Check::Verdict verdict, Safeguard rule, std::string reason) {
    check.verdict = verdict;
    check.finding = {rule, std::move(reason)};
    return check;
  };

  std::vector<float> got(static_cast<std::size_t>(truth.width));
  const auto read = [&](const RowId& id) {
    read_row(dtype, row_at(dtype, view, id.batch, id.head, id.token), truth.width, got.data());
  };

  const Scan found =
      with_element(dtype, [&]<class Element>(Element) { return scan<Element>(shape, output); });
  if (found.not_finite >= 0 && rules.has(Safeguard::finite_scan)) {
    const std::int64_t token = found.not_finite / truth.width;
    const std::int64_t per_head = view.head_stride / truth.width;
    const std::int64_t per_item = view.batch_stride / truth.width;
    const RowId row{token / per_item, token % per_item / per_head, token % per_head};
    check.err_max_abs = check.err_scaled = std::numeric_limits<double>::infinity();
    read(row);
    const auto c = static_cast<std::size_t>(found.not_finite % truth.width);
    return fail(
        Check::Verdict::mismatch, Safeguard::finite_scan,
        fmt::format("{}, element {} is {}", place(row, heads), c,
                    std::isnan(got[c]) ? "NaN: never written, or a NaN was computed" : "infinite"));
  }

  std::size_t worst = 0;
  for (std::size_t r = 0; r < truth.rows.size(); ++r) {
    read(truth.rows[r]);
    const double* expected = truth.row(r);
    for (std::size_t c = 0; c < got.size(); ++c) {
      const double error = std::abs(static_cast<double>(got[c]) - expected[c]);
      if (error <= check.err_max_abs) continue;
      check.err_max_abs = error;
      worst = r * got.size() + c;
    }
  }
  check.err_scaled = truth.rms > 0 ? check.err_max_abs / truth.rms : check.err_max_abs;
  // A reference of zeros (every row masked, or inputs of zeros) has no scale: zeros are demanded.
  const bool near = truth.rms > 0 ? check.err_scaled <= truth.bound : check.err_max_abs == 0;
  if (!near && rules.has(Safeguard::reference_rows)) {
    const RowId& id = truth.rows[worst / got.size()];
    const std::size_t c = worst % got.size();
    read(id);
    return fail(Check::Verdict::mismatch, Safeguard::reference_rows,
                fmt::format("{}, element {}: got {:.8g}, expected {:.8g} (error {:.2e} of the RMS, "
                            "bound {:.2e})",
                            place(id, heads), c, got[c], truth.values[worst], check.err_scaled,
                            truth.bound));
  }
  if (truth.rms > 0 && rules.has(Safeguard::lazy_answers)) {
    const auto [least, most] = std::minmax_element(truth.values.begin(), truth.values.end());
    const double zeros_off = std::max(-*least, *most) / truth.rms;
    // Nearer than 1e-9 the mean of v is the answer (one visible key, scale 0) and nothing is wrong.
    const auto would_pass = [&](double off) { return off > 1e-9 && off <= truth.bound; };
    const char* const lazy = would_pass(zeros_off)                ? "an output of zeros"
                             : would_pass(truth.visible_mean_off) ? "the mean of the visible v"
                             : would_pass(truth.mean_off)         ? "the mean of v"
                                                                  : nullptr;
    if (lazy != nullptr) {
      return fail(Check::Verdict::mistrusted, Safeguard::lazy_answers,
                  fmt::format("{} would also pass: the bound of {:.2e} of the RMS proves nothing",
                              lazy, truth.bound));
    }
  }
  if (found.zero_share > zero_share && truth.zero_share <= zero_share &&
      rules.has(Safeguard::exact_zeros)) {
    return fail(Check::Verdict::mistrusted, Safeguard::exact_zeros,
                fmt::format("{:.0f} % of the output are exact zeros that no mask explains",
                            100 * found.zero_share));
  }
  return check;
}

}  // namespace attn
