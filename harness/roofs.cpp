// SPDX-License-Identifier: MIT
#include "harness/roofs.hpp"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <vector>

#include "harness/machine.hpp"

#ifdef ATTN_HAVE_BLAS
#include <cblas.h>
#endif

namespace attn {
namespace {

constexpr std::int64_t mebi = 1024 * 1024;
// 12 MiB of matrices, 18 ms on a core of 118 GFLOP/s; unused without a BLAS.
[[maybe_unused]] constexpr std::int64_t gemm_n = 1024;
constexpr int windows = 4;

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// What `work(thread)` returned, summed over all threads, per second. Every thread works until its
// time is up, so that none waits for the slowest.
template <class Work>
double rate(int threads, double seconds, const Work& work) {
  struct alignas(64) Slot {
    double begin, end, amount;
  };
  std::vector<Slot> slots(static_cast<std::size_t>(threads));
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    Slot slot{};
#pragma omp barrier
    slot.begin = now();
    do {
      slot.amount += work(thread);
      slot.end = now();
    } while (slot.end - slot.begin < seconds);
    slots[static_cast<std::size_t>(thread)] = slot;
  }
  double begin = slots[0].begin;
  double end = slots[0].end;
  double amount = 0;
  for (const Slot& slot : slots) {
    begin = std::min(begin, slot.begin);
    end = std::max(end, slot.end);
    amount += slot.amount;
  }
  return amount / (end - begin);
}

// ---- fma ---------------------------------------------------------------------------------------
// One block of assembly with fixed registers: from intrinsics clang 14 left some of the
// multiply-adds out (128.8 "GFLOP/s" where the hardware does 118.2), and g++ 12 moved its operands
// about (39.9). 24 accumulators (AVX2: 12 of 16 registers) cover two pipes of latency 4 or 5. acc =
// acc / 2 + 1 / 2 stays at 1: neither denormal nor infinite.
constexpr std::int64_t fma_steps =
    2048;  // of the loop: 10 to 20 microseconds between looks at the clock

#define ATTN_TIMES_4(f, a, b, c, d) f(a) f(b) f(c) f(d)
#define ATTN_TIMES_12(f)              \
  ATTN_TIMES_4(f, "0", "1", "2", "3") \
  ATTN_TIMES_4(f, "4", "5", "6", "7") \
  ATTN_TIMES_4(f, "8", "9", "10", "11")
#define ATTN_TIMES_24(f)                  \
  ATTN_TIMES_12(f)                        \
  ATTN_TIMES_4(f, "12", "13", "14", "15") \
  ATTN_TIMES_4(f, "16", "17", "18", "19") \
  ATTN_TIMES_4(f, "20", "21", "22", "23")

#if defined(__AVX512F__)
#define ATTN_START(r) "vmovaps %%zmm31, %%zmm" r "\n\t"
#define ATTN_CLOBBERS                                                                           \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",      \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", \
      "xmm21", "xmm22", "xmm23", "xmm31", "cc"

double fma_f32_chunk() {
  std::int64_t steps = fma_steps;
  const float half = 0.5F;
#define ATTN_FMA(r) "vfmadd213ps %%zmm31, %%zmm31, %%zmm" r "\n\t"
  asm volatile("vbroadcastss %1, %%zmm31\n\t" ATTN_TIMES_24(
                   ATTN_START) ".p2align 5\n1:\n\t" ATTN_TIMES_24(ATTN_FMA) "dec %0\n\tjnz 1b"
               : "+r"(steps)
               : "m"(half)
               : ATTN_CLOBBERS);
#undef ATTN_FMA
  return static_cast<double>(fma_steps) * 24 * 16 * 2;
}
#elif defined(__AVX2__) && defined(__FMA__)
double fma_f32_chunk() {
  std::int64_t steps = fma_steps;
  const float half = 0.5F;
#define ATTN_START(r) "vmovaps %%ymm15, %%ymm" r "\n\t"
#define ATTN_FMA(r) "vfmadd213ps %%ymm15, %%ymm15, %%ymm" r "\n\t"
  asm volatile("vbroadcastss %1, %%ymm15\n\t" ATTN_TIMES_12(
                   ATTN_START) ".p2align 5\n1:\n\t" ATTN_TIMES_12(ATTN_FMA) "dec %0\n\tjnz 1b"
               : "+r"(steps)
               : "m"(half)
               : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                 "xmm10", "xmm11", "xmm15", "cc");
#undef ATTN_FMA
#undef ATTN_START
  return static_cast<double>(fma_steps) * 12 * 8 * 2;
}
#else
// Anything else: 128-bit vectors, every accumulator a recurrence of its own from a value that the
// compiler does not know, so that none can be left out or merged with another.
double fma_f32_chunk() {
  using Vec = float __attribute__((vector_size(16)));
#if defined(__aarch64__)
  constexpr int accumulators = 24;  // four pipes of latency 4, 32 registers
#else
  constexpr int accumulators = 12;
#endif
  static volatile float unknown = 0.5F;
  const float half = unknown;
  const Vec h = {half, half, half, half};
  Vec acc[accumulators];
  for (Vec& a : acc) a = h + Vec{unknown, unknown, unknown, unknown};
  for (std::int64_t step = 0; step < fma_steps; ++step) {
#pragma GCC unroll 24
    for (Vec& a : acc) a = a * h + h;
  }
  Vec sum = h;
  for (const Vec& a : acc) sum += a;
  unknown = half + 0 * sum[0];
  return static_cast<double>(fma_steps) * accumulators * 4 * 2;
}
#endif

// Where there are tiles (AMX), the dot product of vectors is not the peak.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
#define ATTN_BF16_PEAK
double fma_bf16_chunk() {
  std::int64_t steps = fma_steps;
  const float zero = 0;
  // Products of zeros: the rate of vdpbf16ps does not depend on the values.
#define ATTN_DOT(r) "vdpbf16ps %%zmm31, %%zmm31, %%zmm" r "\n\t"
  asm volatile("vbroadcastss %1, %%zmm31\n\t" ATTN_TIMES_24(
                   ATTN_START) ".p2align 5\n1:\n\t" ATTN_TIMES_24(ATTN_DOT) "dec %0\n\tjnz 1b"
               : "+r"(steps)
               : "m"(zero)
               : ATTN_CLOBBERS);
#undef ATTN_DOT
  return static_cast<double>(fma_steps) * 24 * 32 * 2;
}
#endif

double measure_fma(int threads, double (*chunk)(), double seconds) {
  double best = 0;
  for (int window = 0; window < windows; ++window) {
    best = std::max(best, rate(threads, seconds / windows, [&](int) { return chunk(); }));
  }
  return best;
}

// ---- memory ------------------------------------------------------------------------------------
// The buffer is four quarters. A chunk is one piece of each, at the same place in all four; thread
// t of T takes chunks t, t + T, ... of one position that all loops, thread counts and calls move
// forward. So no byte is touched again before the whole buffer has gone through the caches.
constexpr std::int64_t piece = 128 * 1024 / static_cast<std::int64_t>(sizeof(float));  // elements

struct Buffers {
  float* stream = nullptr;
  std::int64_t quarter = 0;   // elements
  std::int64_t position = 0;  // chunks since the beginning
  float* matrices = nullptr;
};

std::int64_t stream_bytes() {
  static const std::int64_t bytes = [] {
    const Machine machine = read_machine();
    const std::int64_t llc = machine.llc_total_bytes != 0 ? machine.llc_total_bytes : 32 * mebi;
    std::int64_t wanted = std::clamp(6 * llc, 64 * mebi, 1024 * mebi);
    const std::int64_t available = machine.memory_available_bytes;
    if (available != 0) wanted = std::min(wanted, available / 8);
    constexpr std::int64_t chunk = 4 * piece * static_cast<std::int64_t>(sizeof(float));
    return std::max(chunk, wanted / chunk * chunk);
  }();
  return bytes;
}

std::int64_t matrix_bytes() {
#ifdef ATTN_HAVE_BLAS
  return 3 * gemm_n * gemm_n * static_cast<std::int64_t>(sizeof(float));
#else
  return 0;
#endif
}

Buffers allocate() {
  const std::int64_t bytes = stream_bytes() + matrix_bytes();
  void* memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // may fail: slower, still right
  Buffers buffers;
  buffers.stream = static_cast<float*>(memory);
  buffers.quarter = stream_bytes() / static_cast<std::int64_t>(sizeof(float)) / 4;
  buffers.matrices = buffers.stream + 4 * buffers.quarter;
  // First touch by the thread that reads the chunk while the position is at its start.
  const std::int64_t chunks = buffers.quarter / piece;
#pragma omp parallel for schedule(static, 1)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int q = 0; q < 4; ++q) {
      std::fill_n(buffers.stream + q * buffers.quarter + chunk * piece, piece, 1.0F);
    }
  }
  std::fill_n(buffers.matrices, matrix_bytes() / static_cast<std::int64_t>(sizeof(float)), 0.5F);
  return buffers;
}

Buffers& buffers() {
  static Buffers all = allocate();
  return all;
}

// Runs `loop(first element of the chunk in the first quarter)` over chunks; it returns bytes.
template <class Loop>
double stream_rate(int threads, double seconds, const Loop& loop) {
  Buffers& all = buffers();
  const std::int64_t chunks = all.quarter / piece;
  std::vector<std::int64_t> done(static_cast<std::size_t>(threads) * 8);  // 8: a cache line each
  const double result = rate(threads, seconds, [&](int thread) {
    std::int64_t& mine = done[static_cast<std::size_t>(thread) * 8];
    const std::int64_t chunk = (all.position + thread + mine * threads) % chunks;
    ++mine;
    return loop(all.stream + chunk * piece);
  });
  all.position += *std::max_element(done.begin(), done.end()) * threads;
  return result;
}

using Vec = float __attribute__((vector_size(64), may_alias));
constexpr std::int64_t lanes = 16;

// `streams` quarters at a time, in lines of 64 bytes; prefetching to L2 some lines ahead of each,
// or not. Which of them wins differs between machines and days: one stream gave 35.6 GB/s where two
// with prefetch gave 39.8 (two cores of Zen 4).
template <int streams, bool prefetch>
double read_chunk(const float* chunk, std::int64_t quarter) {
  constexpr std::int64_t ahead = 64 * lanes;
  Vec acc[8] = {};
  for (int first = 0; first < 4; first += streams) {
    for (std::int64_t i = 0; i < piece; i += lanes * (8 / streams)) {
#pragma GCC unroll 8
      for (int line = 0; line < 8; ++line) {
        const float* at = chunk + (first + line % streams) * quarter + i + (line / streams) * lanes;
        if constexpr (prefetch) __builtin_prefetch(at + ahead, 0, 2);
        acc[line] += *reinterpret_cast<const Vec*>(at);
      }
    }
  }
  for (const Vec& a : acc) asm volatile("" : : "m"(a));
  return static_cast<double>(4 * piece) * sizeof(float);
}

double measure_read(int threads, double seconds) {
  const std::int64_t quarter = buffers().quarter;
  constexpr std::array<double (*)(const float*, std::int64_t), windows> loops = {
      read_chunk<1, false>, read_chunk<2, false>, read_chunk<2, true>, read_chunk<4, false>};
  double best = 0;
  for (const auto loop : loops) {
    best = std::max(best, stream_rate(threads, seconds / windows,
                                      [&](const float* chunk) { return loop(chunk, quarter); }));
  }
  return best;
}

double measure_triad(int threads, double seconds) {
  const std::int64_t quarter = buffers().quarter;
  double best = 0;
  for (int window = 0; window < windows; ++window) {
    best = std::max(best, stream_rate(threads, seconds / windows, [&](const float* chunk) {
                      float* a = const_cast<float*>(chunk);
                      const float* b = chunk + quarter;
                      const float* c = chunk + 2 * quarter;
                      for (std::int64_t i = 0; i < piece; ++i) a[i] = b[i] + 0.5F * c[i];
                      asm volatile("" : : "r"(a) : "memory");
                      return static_cast<double>(piece) * 3 * sizeof(float);
                    }));
  }
  return best;
}

// ---- gemm --------------------------------------------------------------------------------------
#ifdef ATTN_HAVE_BLAS
// OpenBLAS keeps the packed rows of the taller operand, up to 32 MiB a thread, only when the other side
// exceeds its own block (768 or less): so both are large here. [8192, 256] x [256, 1024] touches 8 MiB.
void multiply_tall() {
  constexpr int m = 20480;
  constexpr int n = 1024;
  constexpr int k = 256;
  const std::vector<float> a(std::size_t{m} * k);
  const std::vector<float> b(std::size_t{k} * n);
  std::vector<float> c(std::size_t{m} * n);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0F, a.data(), k, b.data(), n,
              0.0F, c.data(), n);
}

double measure_gemm(int threads, double seconds) {
  constexpr int n = static_cast<int>(gemm_n);
  float* a = buffers().matrices;
  float* b = a + gemm_n * gemm_n;
  float* c = b + gemm_n * gemm_n;
  const auto multiply = [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0F, a, n, b, n, 0.0F, c, n);
  };
  static int warmed = 0;  // OpenBLAS maps its packing buffers at the first call of a team
  if (warmed != threads) multiply();
  warmed = threads;
  double best = 0;
  double spent = 0;
  while (spent < seconds) {
    const double begin = now();
    multiply();
    const double took = now() - begin;
    best = std::max(best, 2.0 * gemm_n * gemm_n * gemm_n / took);
    spent += took;
  }
  return best;
}
#endif

}  // namespace

std::string_view name(Roof::Kind kind) {
  switch (kind) {
    case Roof::Kind::fma:
      return "fma";
    case Roof::Kind::gemm:
      return "gemm";
    case Roof::Kind::read:
      return "read";
    case Roof::Kind::triad:
      return "triad";
    case Roof::Kind::copy:
      return "copy";
  }
  return "";
}

std::string_view unit(Roof::Kind kind) {
  return kind == Roof::Kind::fma || kind == Roof::Kind::gemm ? "gflops" : "gbps";
}

bool roof_available(const Roof& roof) {
#ifdef ATTN_BF16_PEAK
  constexpr bool bf16_dot_product = true;
#else
  constexpr bool bf16_dot_product = false;
#endif
#ifdef ATTN_HAVE_BLAS
  constexpr bool blas = true;
#else
  constexpr bool blas = false;
#endif
  const bool f32 = roof.dtype == DType::f32;
  if (roof.kind == Roof::Kind::fma) return f32 || (bf16_dot_product && roof.dtype == DType::bf16);
  if (roof.kind == Roof::Kind::gemm) return blas && f32;
  return roof.kind == Roof::Kind::read || roof.kind == Roof::Kind::triad;  // copy is a device's
}

double measure_roof(const Roof& roof, double seconds) {
  if (!roof_available(roof)) return 0;
  const int threads = set_threads(roof.threads);
  switch (roof.kind) {
    case Roof::Kind::fma:
#ifdef ATTN_BF16_PEAK
      if (roof.dtype == DType::bf16) return measure_fma(threads, fma_bf16_chunk, seconds) / 1e9;
#endif
      return measure_fma(threads, fma_f32_chunk, seconds) / 1e9;
    case Roof::Kind::gemm:
#ifdef ATTN_HAVE_BLAS
      return measure_gemm(threads, seconds) / 1e9;
#else
      return 0;
#endif
    case Roof::Kind::read:
      return measure_read(threads, seconds) / 1e9;
    case Roof::Kind::triad:
      return measure_triad(threads, seconds) / 1e9;
    case Roof::Kind::copy:
      return 0;
  }
  return 0;
}

void warm_gemm(int threads) {
  set_threads(threads);
#ifdef ATTN_HAVE_BLAS
  multiply_tall();
#endif
}

std::int64_t roof_buffer_bytes() { return stream_bytes() + matrix_bytes(); }

}  // namespace attn
