// SPDX-License-Identifier: MIT
// The emulated twin of impls/support/ptx.cuh, which says what each word does. Every lane reads and
// writes its own bytes of memory itself, where the sanitizers see it, and reads before it meets the
// others: that they have come orders no memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>
#include <bit>

#include "tests/cuda_emulator/include/tiles.hpp"

// NOLINTBEGIN(bugprone-macro-parentheses): a type and a name
#define ATTN_DYNAMIC_SHARED(type, name)  \
  type* const name = static_cast<type*>( \
      ::cuda_emulator::given_shared({"ATTN_DYNAMIC_SHARED", __FILE__, __LINE__}))
// NOLINTEND(bugprone-macro-parentheses)

namespace cuda_emulator {

constexpr std::size_t row_bytes = 16;  // of a matrix, and of an asynchronous copy

inline void require_aligned(const void* address, const Site& site) {
  if (reinterpret_cast<std::uintptr_t>(address) % row_bytes != 0) {
    fail(site, "the address is no multiple of 16 bytes");
  }
}
inline void require_shared(const void* address, const Site& site) {
  require_aligned(address, site);
  const auto* begin = static_cast<const std::byte*>(given_shared(site));
  const auto* byte = static_cast<const std::byte*>(address);
  if (byte < begin || byte + row_bytes > begin + dynamic_shared_bytes()) {
    fail(site, "the address is not in the block's shared memory");
  }
}

inline void move_bytes(const AsyncCopy& copy) {
  if (copy.from != nullptr) {
    std::memcpy(copy.to, copy.from, row_bytes);
  } else {
    std::memset(copy.to, 0, row_bytes);
  }
}

template <unsigned count>
void load_matrices(unsigned (&matrices)[count], const void* row, bool transposed,
                   const Site& site) {
  struct Operand {
    std::array<std::uint16_t, 8> given;
    std::array<unsigned, count> taken;
  } operand{};
  if (lane() < 8 * count) {
    require_shared(row, site);
    std::memcpy(operand.given.data(), row, row_bytes);
  }
  warp_operation(0xFFFFFFFFU, site, &operand, [&](Operands& operands) {
    for (unsigned l = 0; l < 32; ++l) {
      for (unsigned m = 0; m < count; ++m) {
        const auto element = [&](unsigned i) -> unsigned {
          const unsigned r = transposed ? l % 4 * 2 + i : l / 4;
          const unsigned c = transposed ? l / 4 : l % 4 * 2 + i;
          return static_cast<Operand*>(operands[8 * m + r])->given[c];
        };
        static_cast<Operand*>(operands[l])->taken[m] = element(0) | element(1) << 16;
      }
    }
  });
  for (unsigned m = 0; m < count; ++m) matrices[m] = operand.taken[m];
}

template <class T>
float to_float(unsigned pair, unsigned i) {
  return to_float(std::bit_cast<T>(static_cast<unsigned short>(pair >> 16 * i)));
}

}  // namespace cuda_emulator

namespace attn {

inline void cp_async(void* to, const void* from, bool inside = true, CUDA_EMULATOR_SITE) {
  const cuda_emulator::Site site{"cp_async", file, line};
  cuda_emulator::require_shared(to, site);
  if (inside) cuda_emulator::require_aligned(from, site);
  const cuda_emulator::AsyncCopy copy{to, inside ? from : nullptr};
  if (cuda_emulator::options().async_copies == cuda_emulator::AsyncCopies::eager) {
    cuda_emulator::move_bytes(copy);
  } else {
    cuda_emulator::issue(copy);
  }
}
inline void cp_async_commit() { cuda_emulator::commit_copies(); }
template <unsigned pending>
void cp_async_wait(CUDA_EMULATOR_SITE) {
  if (cuda_emulator::removed({"cp_async_wait", file, line})) return;
  while (const auto copy = cuda_emulator::take_copy(pending)) cuda_emulator::move_bytes(*copy);
}

template <unsigned count>
void ldmatrix(unsigned (&matrices)[count], const void* row, CUDA_EMULATOR_SITE) {
  static_assert(count == 2 || count == 4, "two or four matrices");
  cuda_emulator::load_matrices(matrices, row, false, {"ldmatrix", file, line});
}
template <unsigned count>
void ldmatrix_transposed(unsigned (&matrices)[count], const void* row, CUDA_EMULATOR_SITE) {
  static_assert(count == 2 || count == 4, "two or four matrices");
  cuda_emulator::load_matrices(matrices, row, true, {"ldmatrix_transposed", file, line});
}

template <class T>
void mma_m16n8k16(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                  CUDA_EMULATOR_SITE) {
  struct Operand {
    const unsigned *a, *b;
    float* sums;
  } operand{a, b, sums};
  cuda_emulator::warp_operation(
      0xFFFFFFFFU, {"mma_m16n8k16", file, line}, &operand, [](cuda_emulator::Operands& operands) {
        float left[16 * 16], right[16 * 8], product[16 * 8];
        for (unsigned l = 0; l < 32; ++l) {
          const auto& mine = *static_cast<Operand*>(operands[l]);
          const unsigned g = l / 4, t = l % 4;
          for (unsigned i = 0; i < 2; ++i) {
            for (unsigned r = 0; r < 4; ++r) {
              left[(g + 8 * (r % 2)) * 16 + 2 * t + 8 * (r / 2) + i] =
                  cuda_emulator::to_float<T>(mine.a[r], i);
              product[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2] = mine.sums[r];
            }
            for (unsigned r = 0; r < 2; ++r) {
              right[(2 * t + 8 * r + i) * 8 + g] = cuda_emulator::to_float<T>(mine.b[r], i);
            }
          }
        }
        cuda_emulator::multiply_add<16, 8, 16>(left, right, product);
        for (unsigned l = 0; l < 32; ++l) {
          const unsigned g = l / 4, t = l % 4;
          for (unsigned r = 0; r < 4; ++r) {
            static_cast<Operand*>(operands[l])->sums[r] =
                product[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2];
          }
        }
      });
}

}  // namespace attn
