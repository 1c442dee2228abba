// SPDX-License-Identifier: MIT
// Idea: a peer: the three steps as primitives of oneDNN, as its users without a fused kernel have them.
// Math: S = scale * Q K^T + mask, A = softmax of the rows of S, in place in f32, Z = A V; the mask is 0
//   and -inf, a binary post-operation of the first product.
// Memory traffic (elements, each product counting its operands once): Q and Z once, K and V once for
//   every query head; per pair of all n_q n_kv: S written, read twice and written once by the softmax,
//   read once, and under a causal mask the mask read.
// Why this shape: one product for all KV heads and batch items; query heads that share a KV head
//   differ in the address of Q and Z alone, so they take turns with the same primitives and scratch.
// Limits: f32 and bf16 (from AVX-512 on), no key lengths, at least one key for every query. Under a causal mask
//   every product is made, also those behind it. The mask is the state, 4 n_q n_kv bytes.
// Source: oneDNN 2.6, developer guide, "Matrix Multiplication" and "Softmax".
#include <algorithm>
#include <array>
#include <cstring>
#include <dnnl.hpp>
#include <limits>
#include <map>

#include "impls/attention.hpp"
#include "impls/support/warm_up.hpp"

namespace attn {
namespace {

using dnnl::memory;
using Dims = memory::dims;

std::int64_t pairs(const Problem& p) { return p.n_q * p.n_kv; }

// What the products of one turn are made of; primitives are bound to shapes, strides and threads.
struct Steps {
  memory q, k_transposed, mask, scores, weights, v, out;
  dnnl::matmul score, mix;
  dnnl::softmax_v2_forward softmax;
  std::string kernels;
};

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// Strides of axes of length 1 mean nothing to us; oneDNN wants them where they would lie.
memory without_data(const Dims& dims, Dims strides, memory::data_type type) {
  for (std::size_t axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis] != 1) continue;
    strides[axis] = 1;
    for (std::size_t other = 0; other < dims.size(); ++other) {
      if (dims[other] != 1) strides[axis] = std::max(strides[axis], dims[other] * strides[other]);
    }
  }
  return {memory::desc(dims, type, strides), engine(), nullptr};
}

Steps make_steps(const Problem& p, const Io& io) {
  const auto type = p.dtype == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
  const auto f32 = memory::data_type::f32;
  const std::int64_t group = p.heads / p.heads_kv;
  const auto rows = [&](const auto& view, std::int64_t apart, std::int64_t tokens,
                        std::int64_t dim) {
    return without_data({p.batch, p.heads_kv, tokens, dim},
                        {view.batch_stride, apart * view.head_stride, view.token_stride, 1}, type);
  };
  const Dims all = {p.batch, p.heads_kv, p.n_q, p.n_kv};
  const Dims dense = {p.heads_kv * pairs(p), pairs(p), p.n_kv, 1};
  Steps steps;
  steps.q = rows(io.q, group, p.n_q, p.head_dim);
  steps.k_transposed =
      without_data({p.batch, p.heads_kv, p.head_dim, p.n_kv},
                   {io.k.batch_stride, io.k.head_stride, 1, io.k.token_stride}, type);
  steps.mask = without_data({1, 1, p.n_q, p.n_kv}, dense, f32);
  steps.scores = without_data(all, dense, f32);
  steps.weights = without_data(all, dense, type);
  steps.v = rows(io.v, 1, p.n_kv, p.head_dim_v);
  steps.out = rows(io.out, group, p.n_q, p.head_dim_v);

  dnnl::primitive_attr attributes;
  attributes.set_output_scales(0, {static_cast<float>(p.effective_scale())});
  if (p.mask == Mask::causal) {
    dnnl::post_ops add_mask;
    add_mask.append_binary(dnnl::algorithm::binary_add, steps.mask.get_desc());
    attributes.set_post_ops(add_mask);
  }
  const dnnl::matmul::primitive_desc score(
      {steps.q.get_desc(), steps.k_transposed.get_desc(), steps.scores.get_desc()}, attributes,
      engine());
  const dnnl::softmax_v2_forward::primitive_desc softmax(
      {dnnl::prop_kind::forward_inference, dnnl::algorithm::softmax_accurate,
       steps.scores.get_desc(), steps.weights.get_desc(), 3},
      engine());
  const dnnl::matmul::primitive_desc mix(
      {steps.weights.get_desc(), steps.v.get_desc(), steps.out.get_desc()}, engine());
  steps.score = dnnl::matmul(score);
  steps.softmax = dnnl::softmax_v2_forward(softmax);
  steps.mix = dnnl::matmul(mix);
  steps.kernels = std::string(score.impl_info_str()) + ", " + softmax.impl_info_str() + ", " +
                  mix.impl_info_str();
  return steps;
}

// The problem's part of a key comes first: resolved_impl knows no more.
using Key = std::array<std::int64_t, 23>;
constexpr std::size_t problem_values = 11;

Key key_of(const Problem& p, const Io& io) {
  const double scale = p.effective_scale();
  std::int64_t scale_bits = 0;
  std::memcpy(&scale_bits, &scale, sizeof scale);
  Key key = {p.threads,
             p.batch,
             p.heads,
             p.heads_kv,
             p.n_q,
             p.n_kv,
             p.head_dim,
             p.head_dim_v,
             static_cast<std::int64_t>(p.mask),
             scale_bits,
             static_cast<std::int64_t>(p.dtype)};
  std::size_t at = problem_values;
  const auto add = [&](const auto& view) {
    for (const std::int64_t stride : {view.batch_stride, view.head_stride, view.token_stride}) {
      key[at++] = stride;
    }
  };
  add(io.q), add(io.k), add(io.v), add(io.out);
  return key;
}

// Made at the first call of a shape, which is the verifying one, and kept to the end of the process:
// a state has no destructor, and prepare does not know the strides.
std::map<Key, Steps>& made() {
  static std::map<Key, Steps> steps;
  return steps;
}

std::optional<Refusal> refuses(const Problem& p) {
  if (p.memory != Memory::host) return Refusal{.sentence = "reads host memory only"};
  if (p.dtype == DType::f16) return Refusal{.sentence = "is asked for f32 and bf16 only"};
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto avx512 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  if (p.dtype == DType::bf16 && (isa & avx512) != avx512) {
    return Refusal{.kind = Refusal::Kind::unavailable,
                   .sentence = "oneDNN multiplies bf16 from AVX-512 on only"};
  }
  if (!p.key_lengths.empty()) return Refusal{.sentence = "has no mask for key lengths"};
  if (p.n_kv == 0 || (p.mask == Mask::causal && p.n_q > p.n_kv)) {
    return Refusal{.sentence = "oneDNN's softmax of a row that sees no key is NaN, not 0"};
  }
  return std::nullopt;
}

Cost cost(const Problem& p) {
  const std::int64_t element = bytes_per_element(p.dtype);
  const std::int64_t widths = p.head_dim + p.head_dim_v;
  const std::int64_t all = p.batch * p.heads * pairs(p);
  const std::int64_t scores = p.batch * p.heads_kv * pairs(p);
  const std::int64_t masking = p.mask == Mask::causal ? all : 0;
  return {.flops = 2 * all * widths,
          .exps = all,
          .bytes = element * (p.batch * p.heads * (p.n_q + p.n_kv) * widths + 2 * all) +
                   4 * (3 * all + masking),
          .state_bytes = p.mask == Mask::causal ? 4 * pairs(p) : 0,
          .scratch_bytes = scores * (p.dtype == DType::f32 ? 4 : 6)};
}

void run(const Problem& p, const Io& io, void* state, void* scratch) {
  if (p.batch * p.n_q * p.head_dim_v == 0) return;
  auto found = made().find(key_of(p, io));
  if (found == made().end()) found = made().emplace(key_of(p, io), make_steps(p, io)).first;
  Steps& steps = found->second;
  dnnl::stream stream(engine());

  char* const scores = static_cast<char*>(scratch);
  const bool in_place = p.dtype == DType::f32;
  steps.scores.set_data_handle(scores);
  steps.weights.set_data_handle(in_place ? scores : scores + 4 * p.batch * p.heads_kv * pairs(p));
  steps.k_transposed.set_data_handle(const_cast<void*>(io.k.data));
  steps.v.set_data_handle(const_cast<void*>(io.v.data));
  steps.mask.set_data_handle(state);
  const std::int64_t element = in_place ? 4 : 2;
  for (std::int64_t turn = 0; turn < p.heads / p.heads_kv; ++turn) {
    const auto of_this_turn = [&](const auto& view) {
      return static_cast<char*>(const_cast<void*>(static_cast<const void*>(view.data))) +
             element * turn * view.head_stride;
    };
    steps.q.set_data_handle(of_this_turn(io.q));
    steps.out.set_data_handle(of_this_turn(io.out));
    io.phase("scores");
    steps.score.execute(stream, {{DNNL_ARG_SRC, steps.q},
                                 {DNNL_ARG_WEIGHTS, steps.k_transposed},
                                 {DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, steps.mask},
                                 {DNNL_ARG_DST, steps.scores}});
    io.phase("softmax");
    steps.softmax.execute(stream, {{DNNL_ARG_SRC, steps.scores}, {DNNL_ARG_DST, steps.weights}});
    io.phase("mixing");
    steps.mix.execute(
        stream,
        {{DNNL_ARG_SRC, steps.weights}, {DNNL_ARG_WEIGHTS, steps.v}, {DNNL_ARG_DST, steps.out}});
  }
  stream.wait();
  io.phase("");
}

// The state is the mask [n_q, n_kv].
void prepare(const Problem& p, const Parameters& /*parameters*/, void* state) {
  warm_up<cost, run>(p);
  if (p.mask != Mask::causal) return;
  float* const mask = static_cast<float*>(state);
  for (std::int64_t i = 0; i < p.n_q; ++i) {
    for (std::int64_t j = 0; j < p.n_kv; ++j) {
      mask[i * p.n_kv + j] = j < p.visible(0, i) ? 0.0F : -std::numeric_limits<float>::infinity();
    }
  }
}

std::string resolved_impl(const Problem& p) {
  const dnnl_version_t* const version = dnnl_version();
  std::string text = "oneDNN " + std::to_string(version->major) + "." +
                     std::to_string(version->minor) + "." + std::to_string(version->patch);
  const Key wanted = key_of(p, {});
  for (const auto& [key, steps] : made()) {
    if (std::equal(wanted.begin(), wanted.begin() + problem_values, key.begin())) {
      return text + " (" + steps.kernels + ")";
    }
  }
  return text;
}

}  // namespace

Backend onednn_three_step() {
  return {.name = "onednn.three_step",
          .threaded = true,
          .refuses = refuses,
          .cost = cost,
          .prepare = prepare,
          .run = run,
          .resolved_impl = resolved_impl};
}

}  // namespace attn
