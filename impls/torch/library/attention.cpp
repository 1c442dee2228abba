// SPDX-License-Identifier: MIT
// All that is compiled against ATen and linked to PyTorch: a module that impls/support/torch.hpp loads.
// Nothing is thrown across its border, because its exceptions are the wheel's.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <torch/headeronly/version.h>

#include "impls/support/torch.hpp"

namespace attn {
namespace {

template <class V>
at::Tensor tensor(const V& view, std::int64_t batch, std::int64_t heads, std::int64_t tokens,
                  std::int64_t dim, at::ScalarType type) {
  return at::from_blob(
      const_cast<void*>(static_cast<const void*>(view.data)), {batch, heads, tokens, dim},
      {view.batch_stride, view.head_stride, view.token_stride, 1}, at::TensorOptions().dtype(type));
}

// Sets MKL's team too, which would otherwise be the size it had when it was first asked.
void set_threads(int threads) {
  static int in_force = 0;
  if (in_force != threads || at::get_num_threads() != threads) at::set_num_threads(threads);
  in_force = threads;
}

void attend(const Problem& p, const Io& io, TorchPath path) {
  const c10::InferenceMode no_autograd;
  set_threads(p.threads);
  const at::ScalarType type = p.dtype == DType::bf16 ? at::kBFloat16 : at::kFloat;
  const at::Tensor q = tensor(io.q, p.batch, p.heads, p.n_q, p.head_dim, type);
  const at::Tensor k = tensor(io.k, p.batch, p.heads_kv, p.n_kv, p.head_dim, type);
  const at::Tensor v = tensor(io.v, p.batch, p.heads_kv, p.n_kv, p.head_dim_v, type);
  const at::Tensor out = tensor(io.out, p.batch, p.heads, p.n_q, p.head_dim_v, type);
  const bool causal = p.mask == Mask::causal;
  constexpr double no_dropout = 0.0;
  if (path == TorchPath::math) {
    const auto [result, weights] = at::_scaled_dot_product_attention_math(
        q, k, v, {}, no_dropout, causal, {}, p.effective_scale(), p.heads != p.heads_kv);
    out.copy_(result);
    return;
  }
  const auto [result, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
      q, k, v, no_dropout, causal, {}, p.effective_scale());
  out.copy_(result);
  if (io.log_sum_exp) {
    tensor(io.log_sum_exp, p.batch, p.heads, p.n_q, 1, at::kFloat).copy_(log_sum_exp.unsqueeze(-1));
  }
}

}  // namespace
}  // namespace attn

extern "C" {

__attribute__((visibility("default"))) const char* attn_torch_run(const attn::Problem& p,
                                                                  const attn::Io& io,
                                                                  attn::TorchPath path) {
  static std::string message;
  try {
    attn::attend(p, io, path);
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}

__attribute__((visibility("default"))) const char* attn_torch_description() {
  static const std::string text = "PyTorch " TORCH_VERSION ", " + at::get_cpu_capability();
  return text.c_str();
}
}
