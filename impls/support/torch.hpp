// SPDX-License-Identifier: MIT
// What the backends on PyTorch share: the module that is linked to it, loaded when it is first asked
// for. The program starts without PyTorch, and runs that do not name a backend of it never load it.
#pragma once

#include <dlfcn.h>
#include <omp.h>

#include <stdexcept>
#include <string>

#include "impls/attention.hpp"
#include "impls/support/refusals.hpp"

namespace attn {

enum class TorchPath { flash, math };

struct Torch {
  const char* (*run)(const Problem&, const Io&, TorchPath) = nullptr;  // null, or what went wrong
  const char* (*description)() = nullptr;
  std::string missing;  // what keeps it from being used

  // PyTorch and OpenBLAS both define sgemm_ and a hundred others: RTLD_DEEPBIND lets each use its own,
  // else PyTorch would multiply with OpenBLAS. Under it libraries that are loaded already are not
  // loaded again, so both find the OpenMP runtime of this program under the name libgomp.so.1.
  Torch() {
    void* const module = dlopen("libattn_torch.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (module == nullptr) {
      missing = std::string("needs PyTorch's libraries as they were at build time: ") + dlerror();
      return;
    }
    run = reinterpret_cast<decltype(run)>(dlsym(module, "attn_torch_run"));
    description = reinterpret_cast<decltype(description)>(dlsym(module, "attn_torch_description"));
    if (run == nullptr || description == nullptr) missing = "libattn_torch.so is of another build";
    // A second runtime would bring a second pool, whose idle threads spin beside the first one's.
    if (dlsym(module, "omp_get_max_threads") != reinterpret_cast<void*>(&omp_get_max_threads)) {
      missing =
          "PyTorch has brought an OpenMP runtime of its own beside this program's; one of "
          "the soname libgomp.so.1 would be shared";
    }
  }
};

inline const Torch& torch() {
  static const Torch loaded;
  return loaded;
}

// What both paths refuse. PyTorch aligns its causal mask top-left, which is ours where n_q = n_kv.
inline std::optional<Refusal> refuse_unless_torch(const Problem& p) {
  if (p.memory != Memory::host) return Refusal{.sentence = "reads host memory only"};
  if (p.dtype == DType::f16) return Refusal{.sentence = "is asked for f32 and bf16 only"};
  if (!p.key_lengths.empty()) {
    return Refusal{.sentence = "has no key lengths, only masks of n_q x n_kv elements"};
  }
  if (p.mask == Mask::causal && p.n_q != p.n_kv) {
    return Refusal{.sentence = "PyTorch's causal mask is aligned top-left, so n_q must be n_kv"};
  }
  if (torch().missing.empty()) return std::nullopt;
  return Refusal{.kind = Refusal::Kind::unavailable, .sentence = torch().missing};
}

inline void run_torch(const Problem& p, const Io& io, TorchPath path) {
  if (const char* message = torch().run(p, io, path)) throw std::runtime_error(message);
}

inline std::string describe_torch(const char* kernel) {
  return std::string(kernel) + " (" + torch().description() + ")";
}

}  // namespace attn
