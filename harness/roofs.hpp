// SPDX-License-Identifier: MIT
// Roofs: what this machine can do at best, measured by loops that do nothing else. Those of the host
// are measured here, those of a device by measure_device_roof.
#pragma once

#include <cstdint>
#include <string_view>

#include "impls/attention.hpp"

namespace attn {

struct Roof {
  enum class Kind {
    fma,    // gflops: fused multiply-adds (bf16: dot products) in registers, widest native vectors
    gemm,   // gflops: cblas_sgemm, 1024 x 1024 x 1024
    read,   // gbps: the best of four loops that read; bytes read
    triad,  // gbps: a = b + s c with ordinary stores; 12 bytes an element, write-allocate not
            // counted
    copy,   // gbps: device to device; bytes read and written
  };
  Kind kind = Kind::fma;
  DType dtype = DType::f32;  // of fma and gemm; read and triad move f32 and are the same for all
  int threads = 1;
  Memory memory = Memory::host;  // of a device: fma and copy in f32, threads mean nothing
};

std::string_view name(Roof::Kind kind);  // "fma", "gemm", "read", "triad", "copy"
std::string_view unit(Roof::Kind kind);  // "gflops" or "gbps", powers of ten

// Whether this build and the host have it: gemm needs BLAS and f32, fma in bf16 needs AVX512-BF16 and
// no AMX, whose tiles multiply faster and are not measured.
bool roof_available(const Roof& roof);

// One sample of about `seconds` (10 to 20 ms do; a GEMM call is never cut short): the best of
// several windows, because a roof is a limit and what disturbed a window is no part of it. Calls
// set_threads. 0 where roof_available says no. The first call allocates; on a machine with several
// memory nodes it should be the one with the most threads, which then place the pages.
double measure_roof(const Roof& roof, double seconds);

// Multiplies tall and deep matrices once, so that the library has taken and touched its buffers on
// `threads` threads. Nothing without BLAS. Calls set_threads.
void warm_gemm(int threads);

// All memory that measure_roof ever takes, for the planner. The streams run through six last-level
// caches (64 MiB to 1 GiB, and at most an eighth of the memory that was available at the first
// question).
std::int64_t roof_buffer_bytes();

}  // namespace attn
