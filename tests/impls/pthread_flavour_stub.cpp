// SPDX-License-Identifier: MIT
// Preloaded before OpenBLAS, this answers as its pthread flavour would.
extern "C" int openblas_get_parallel(void) { return 1; }
