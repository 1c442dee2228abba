// SPDX-License-Identifier: MIT
// Stands in for the module that is linked to PyTorch: one that has brought its own OpenMP.
namespace attn {
struct Problem;
struct Io;
enum class TorchPath { flash, math };
}  // namespace attn

extern "C" {
int omp_get_max_threads() { return 1; }

const char* attn_torch_run(const attn::Problem&, const attn::Io&, attn::TorchPath path) {
  return path == attn::TorchPath::flash ? "the flash kernel failed" : nullptr;
}

const char* attn_torch_description() { return "a stub"; }
}
