// SPDX-License-Identifier: MIT
// A list of device backends, two of them honest: each of the others has one fault, which costs it its
// row and nobody else theirs.
#include "harness/registry.hpp"
#include "impls/cuda/naive.cu"  // its kernels do the honest work
#include "tests/cuda_emulator/runtime.hpp"

namespace attn {
namespace {

__global__ void add_kernel(float* to, const float* from, float times) { *to += times * *from; }

// Adds a multiple of an element to another: 0 times a number changes nothing, 0 times NaN does.
void add(const Io& io, float* to, const float* from, float times) {
  launch(add_kernel, 1, 1, 0, io.stream, to, from, times);
}

float* out(const Io& io) { return static_cast<float*>(io.out.data); }
std::int64_t size_of_out(const Problem& p) { return p.batch * p.heads * p.n_q * p.head_dim_v; }

void run_past(const Problem& p, const Io& io, void* state, void* scratch) {
  run(p, io, state, scratch);
  add(io, out(io) + size_of_out(p), out(io), 1);
}
void run_before(const Problem& p, const Io& io, void* state, void* scratch) {
  run(p, io, state, scratch);
  add(io, out(io) - 1, out(io), 1);
}
void run_past_scratch(const Problem& p, const Io& io, void* state, void* scratch) {
  run(p, io, state, scratch);
  add(io, static_cast<float*>(scratch) + cost(p).scratch_bytes / 4, out(io), 1);
}
void run_and_poke(const Problem& p, const Io& io, void* state, void* scratch) {
  run(p, io, state, scratch);
  add(io, static_cast<float*>(const_cast<void*>(io.k.data)), out(io), 1);
}

Cost cost_and_one(const Problem& p) {
  Cost more = cost(p);
  more.scratch_bytes += 4;
  return more;
}
// Takes its last element of scratch for 0, as memory often is.
void run_on_zeros(const Problem& p, const Io& io, void* state, void* scratch) {
  run(p, io, state, scratch);
  add(io, out(io), static_cast<float*>(scratch) + cost(p).scratch_bytes / 4, 1);
}

void run_and_fault(const Problem& p, const Io& io, void* state, void* scratch) {
  cuda_emulator::device().faulty = true;
  run(p, io, state, scratch);
}
void run_forever(const Problem& p, const Io& io, void* state, void* scratch) {
  run(p, io, state, scratch);
  cuda_emulator::device().hangs = true;
}
void run_in_no_time(const Problem& p, const Io& io, void* state, void* scratch) {
  run(p, io, state, scratch);
  cuda_emulator::device().hurry = 1e-6;
}

Entry planted(std::string_view name, decltype(Backend::run) body,
              decltype(Backend::cost) declared = cost) {
  Backend backend = cuda_naive();
  backend.name = name;
  backend.run = body;
  backend.cost = declared;
  return {name, {}, backend};
}

}  // namespace

const std::vector<Entry>& registry() {
  static const std::vector<Entry> entries = {
      planted("a.honest", run),
      planted("bad.before", run_before),
      planted("bad.fault", run_and_fault),
      planted("bad.hang", run_forever),
      planted("bad.hurry", run_in_no_time),
      planted("bad.past", run_past),
      planted("bad.poke", run_and_poke),
      planted("bad.scratch", run_past_scratch),
      planted("bad.zeros", run_on_zeros, cost_and_one),
      planted("z.honest", run),
  };
  return entries;
}

const std::vector<FolderFlags>& folder_flags() {
  static const std::vector<FolderFlags> flags;
  return flags;
}

}  // namespace attn
