// SPDX-License-Identifier: MIT
// Idea: the plain loops of cpu.naive with the outer ones turned into threads; S lies in memory.
// Math: S = scale * Q K^T, A = softmax of its rows, in place, Z = A V: three kernels, all heads at
//   once.
// Memory traffic (elements): a pair's score reads q and k and is written (2 d + 1), softmax reads
//   it three times and writes it twice, mixing reads it and v for every output dimension (2 d_v);
//   an output is written once: pairs * (2 d + 2 d_v + 6) + B h n_q d_v. The caches catch most of
//   it.
// Why this shape: none; one thread per score, per row and per output is what a first port looks
//   like. Neighbouring threads read different rows of k (not coalesced); a row of the softmax is
//   one thread.
// Limits: f32, no key lengths, no probabilities; scratch is all of S, B h n_q n_kv.
// Source: llm.c, dev/cuda/attention_forward.cu, kernel 1.
#include <cmath>

#include "impls/attention.hpp"
#include "impls/support/cuda.cuh"

namespace attn {
namespace {

constexpr int block_threads = 256;

// s [batch, heads, n_q, n_kv]; scores behind the mask are not written and later not read.
__global__ void scores_kernel(DeviceShape p, DeviceView<const float> q, DeviceView<const float> k,
                              float* s) {
  const std::int64_t scores = p.batch * p.heads * p.n_q * p.n_kv;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t e = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; e < scores;
       e += step) {
    const std::int64_t j = e % p.n_kv, i = e / p.n_kv % p.n_q;
    const std::int64_t head = e / p.n_kv / p.n_q, b = head / p.heads, h = head % p.heads;
    if (j >= p.visible(i)) continue;
    const float* query = q.row(b, h, i);
    const float* key = k.row(b, h / p.group, j);
    float dot = 0.0F;
    for (std::int64_t c = 0; c < p.head_dim; ++c) dot = fmaf(query[c], key[c], dot);
    s[e] = dot * p.scale;
  }
}

__global__ void softmax_kernel(DeviceShape p, float* s) {
  const std::int64_t rows = p.batch * p.heads * p.n_q;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t e = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; e < rows; e += step) {
    float* row = s + e * p.n_kv;
    const std::int64_t visible = p.visible(e % p.n_q);
    float max = -INFINITY;
    for (std::int64_t j = 0; j < visible; ++j) max = fmaxf(max, row[j]);
    float sum = 0.0F;
    for (std::int64_t j = 0; j < visible; ++j) {
      const float weight = expf(row[j] - max);
      row[j] = weight;
      sum += weight;
    }
    for (std::int64_t j = 0; j < visible; ++j) row[j] /= sum;
  }
}

__global__ void mixing_kernel(DeviceShape p, const float* s, DeviceView<const float> v,
                              DeviceView<float> out) {
  const std::int64_t outputs = p.batch * p.heads * p.n_q * p.head_dim_v;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t e = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; e < outputs;
       e += step) {
    const std::int64_t c = e % p.head_dim_v, row = e / p.head_dim_v, i = row % p.n_q;
    const std::int64_t b = row / p.n_q / p.heads, h = row / p.n_q % p.heads;
    float sum = 0.0F;
    for (std::int64_t j = 0; j < p.visible(i); ++j) {
      sum = fmaf(s[row * p.n_kv + j], v.row(b, h / p.group, j)[c], sum);
    }
    out.row(b, h, i)[c] = sum;
  }
}

std::optional<Refusal> refuses(const Problem& p) { return refuse_unless_plain_device_core(p); }

Cost cost(const Problem& p) {
  const std::int64_t pairs = p.heads * p.pairs();
  const std::int64_t rows = p.batch * p.heads * p.n_q;
  return {.flops = 2 * pairs * (p.head_dim + p.head_dim_v),
          .exps = pairs,
          .bytes = 4 * (pairs * (2 * p.head_dim + 2 * p.head_dim_v + 6) + rows * p.head_dim_v),
          .scratch_bytes = 4 * rows * p.n_kv};
}

void run(const Problem& p, const Io& io, void* /*state*/, void* scratch) {
  const DeviceShape shape(p);
  float* const s = static_cast<float*>(scratch);
  const std::int64_t rows = p.batch * p.heads * p.n_q;
  const DeviceView<const float> q(io.q), k(io.k), v(io.v);
  const DeviceView<float> out(io.out);
  launch(scores_kernel, ceil_div(rows * p.n_kv, block_threads), block_threads, 0, io.stream, shape,
         q, k, s);
  launch(softmax_kernel, ceil_div(rows, block_threads), block_threads, 0, io.stream, shape, s);
  launch(mixing_kernel, ceil_div(rows * p.head_dim_v, block_threads), block_threads, 0, io.stream,
         shape, s, v, out);
}

}  // namespace

Backend cuda_naive() {
  return {
      .name = "cuda.naive", .memory = Memory::device, .refuses = refuses, .cost = cost, .run = run};
}

}  // namespace attn
