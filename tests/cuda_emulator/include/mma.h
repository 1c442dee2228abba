// SPDX-License-Identifier: MIT
// nvcuda::wmma for tiles of 16 x 16 x 16 in half or bf16 with sums in float. Which lane holds which
// element is nobody's business on a device, so here the elements are scattered, differently for each
// use: code that relies on a layout gives wrong values.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "tests/cuda_emulator/include/tiles.hpp"

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  static constexpr bool sums = std::is_same_v<Use, accumulator>;
  static_assert(m == 16 && n == 16 && k == 16, "only tiles of 16 x 16 x 16 are emulated");
  static_assert(sums ? std::is_same_v<T, float>
                     : std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>,
                "only products of __half or __nv_bfloat16 with sums in float are emulated");
  static_assert(sums == std::is_void_v<Layout>, "matrices have a layout, sums have none");
  static constexpr int num_elements = 8;
  T x[num_elements];

  // Where in the tile, counted by rows, element i of a lane lies: an odd factor makes a permutation.
  static constexpr unsigned place(unsigned lane, unsigned i) {
    constexpr unsigned factor = sums ? 149 : std::is_same_v<Use, matrix_a> ? 37 : 101;
    return ((32 * i + lane) * factor + 7) % 256;
  }
};

template <class Fragment, class T>
void fill_fragment(Fragment& all, T value) {
  for (auto& element : all.x) element = value;
}

}  // namespace nvcuda::wmma

namespace cuda_emulator {

constexpr unsigned all_lanes = 0xFFFFFFFFU;

// Calls f(element, address) for what the calling lane holds of a tile in memory.
template <class Fragment, class T, class F>
void for_each_element(Fragment& tile, T* memory, unsigned stride, bool by_rows, const Site& site,
                      const F& f) {
  if (reinterpret_cast<std::uintptr_t>(memory) % 32 != 0) {
    fail(site, "the tile does not start at a multiple of 32 bytes");
  }
  if (stride * sizeof(T) % 16 != 0) fail(site, "the stride is no multiple of 16 bytes");
  for (unsigned i = 0; i < Fragment::num_elements; ++i) {
    const unsigned place = Fragment::place(lane(), i), row = place / 16, column = place % 16;
    f(tile.x[i], memory + (by_rows ? row * stride + column : column * stride + row));
  }
}

// Lanes read before they meet, and write after it: that the others have come orders no memory.
template <class Fragment, class T>
void load_tile(Fragment& tile, const T* from, unsigned stride, bool by_rows, const Site& site) {
  for_each_element(tile, from, stride, by_rows, site,
                   [](auto& element, const T* address) { element = *address; });
  warp_operation(all_lanes, site, nullptr, nullptr, nullptr);
}

}  // namespace cuda_emulator

namespace nvcuda::wmma {

template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& tile, const T* from, unsigned stride,
                      CUDA_EMULATOR_SITE) {
  static_assert(!std::is_same_v<Use, accumulator>, "loading sums takes a layout");
  cuda_emulator::load_tile(tile, from, stride, std::is_same_v<Layout, row_major>,
                           {"load_matrix_sync", file, line});
}

inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, float>& tile, const float* from,
                             unsigned stride, layout_t layout, CUDA_EMULATOR_SITE) {
  cuda_emulator::load_tile(tile, from, stride, layout == mem_row_major,
                           {"load_matrix_sync", file, line});
}

inline void store_matrix_sync(float* to, const fragment<accumulator, 16, 16, 16, float>& tile,
                              unsigned stride, layout_t layout, CUDA_EMULATOR_SITE) {
  const cuda_emulator::Site site{"store_matrix_sync", file, line};
  cuda_emulator::warp_operation(cuda_emulator::all_lanes, site, nullptr, nullptr, nullptr);
  cuda_emulator::for_each_element(tile, to, stride, layout == mem_row_major, site,
                                  [](float element, float* address) { *address = element; });
}

template <class T, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& d,
              const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b,
              const fragment<accumulator, 16, 16, 16, float>& c, CUDA_EMULATOR_SITE) {
  using A = std::remove_cvref_t<decltype(a)>;
  using B = std::remove_cvref_t<decltype(b)>;
  using C = std::remove_cvref_t<decltype(c)>;
  struct Operand {
    A a;
    B b;
    C sums;
  } operand{a, b, c};
  cuda_emulator::warp_operation(cuda_emulator::all_lanes, {"mma_sync", file, line}, &operand,
                                [](cuda_emulator::Operands& operands) {
                                  float left[256], right[256], sums[256];
                                  for (unsigned l = 0; l < 32; ++l) {
                                    const auto& mine = *static_cast<Operand*>(operands[l]);
                                    for (unsigned i = 0; i < A::num_elements; ++i) {
                                      left[A::place(l, i)] = cuda_emulator::to_float(mine.a.x[i]);
                                      right[B::place(l, i)] = cuda_emulator::to_float(mine.b.x[i]);
                                      sums[C::place(l, i)] = mine.sums.x[i];
                                    }
                                  }
                                  cuda_emulator::multiply_add<16, 16, 16>(left, right, sums);
                                  for (unsigned l = 0; l < 32; ++l) {
                                    auto& mine = *static_cast<Operand*>(operands[l]);
                                    for (unsigned i = 0; i < C::num_elements; ++i)
                                      mine.sums.x[i] = sums[C::place(l, i)];
                                  }
                                });
  d = operand.sums;
}

}  // namespace nvcuda::wmma
