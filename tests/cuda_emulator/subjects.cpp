// SPDX-License-Identifier: MIT
#include "tests/cuda_emulator/subjects.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "harness/device.hpp"
#include "harness/layer.hpp"
#include "harness/registry.hpp"
#include "tests/cuda_emulator/emulator.hpp"
#include "tests/cuda_emulator/kernels/kernels.hpp"
#include "tests/impls/cases.hpp"
#include "tests/impls/reference.hpp"
#include "tests/impls/tensors.hpp"

namespace attn::test {
namespace {

constexpr int heads = 2;

std::string compare(const std::vector<float>& values, const std::vector<double>& truth,
                    double tolerance) {
  for (std::size_t e = 0; e < truth.size(); ++e) {
    if (!(std::abs(values[e] - truth[e]) <= tolerance)) {
      return fmt::format("element {} of {} is {}, should be {}", e, truth.size(), values[e],
                         truth[e]);
    }
  }
  return {};
}

template <class F>
std::string fault_of(const F& run) {
  try {
    return run();
  } catch (const cuda_emulator::Error& error) {
    return error.what();
  }
}

Case small_case(int n, bool causal) {
  return core_case("emulated", n, [&](Case& wanted) {
    set_heads(wanted, heads, heads), set_dims(wanted, kernel_dim, kernel_dim);
    wanted.problem.mask = causal ? Mask::causal : Mask::none;
  });
}

// What the test kernels store, and how far from the truth they may be.
template <class T>
struct Storage;
template <>
struct Storage<float> {
  static float make(float value) { return value; }
  static float read(float value) { return value; }
  static constexpr double tolerance = 5e-6;
};
template <>
struct Storage<__half> {
  static __half make(float value) { return __float2half(value); }
  static float read(__half value) { return __half2float(value); }
  static constexpr double tolerance = 2e-3;
};
template <>
struct Storage<__nv_bfloat16> {
  static __nv_bfloat16 make(float value) { return __float2bfloat16(value); }
  static float read(__nv_bfloat16 value) { return __bfloat162float(value); }
  static constexpr double tolerance = 1.6e-2;
};

template <class T>
struct DeviceArray {
  explicit DeviceArray(std::size_t count) {
    static_cast<void>(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T)));
  }
  ~DeviceArray() { static_cast<void>(cudaFree(data)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data = nullptr;
};

// A problem with its tensors and the truth, which many runs are compared with.
struct Prepared {
  Case problem_case;
  Tensors tensors;
  std::vector<double> truth;

  Prepared(int n, bool causal, const std::function<float(float)>& rounded)
      : problem_case(small_case(n, causal)), tensors(problem_case, Backend{}) {
    for (Tensor* tensor : {&tensors.q, &tensors.k, &tensors.v}) {
      tensor->for_each([&](float& value) { value = rounded(value); });
    }
    truth = Plain<double>(problem_case.problem, Family::attention, tensors.io).out;
  }
};

class Preparations {
 public:
  explicit Preparations(std::function<float(float)> rounded) : rounded_(std::move(rounded)) {}
  const Prepared& operator()(int n, bool causal) {
    auto& known = known_[{n, causal}];
    if (known == nullptr) known = std::make_unique<Prepared>(n, causal, rounded_);
    return *known;
  }

 private:
  std::function<float(float)> rounded_;
  std::map<std::pair<int, bool>, std::unique_ptr<Prepared>> known_;
};

template <class T>
Subject kernel(const char* name, void (*run)(const Attention&)) {
  const auto prepared = std::make_shared<Preparations>(
      [](float value) { return Storage<T>::read(Storage<T>::make(value)); });
  return {name, [=](int n, bool causal) {
            const Prepared& given = (*prepared)(n, causal);
            const std::size_t count = given.truth.size();
            const DeviceArray<T> q(count), k(count), v(count);
            const DeviceArray<float> out(count);
            const auto store = [](const Tensor& from, T* to) {
              from.for_each([&](float value) { *to++ = Storage<T>::make(value); });
            };
            store(given.tensors.q, q.data);
            store(given.tensors.k, k.data);
            store(given.tensors.v, v.data);
            return fault_of([&] {
              run({q.data, k.data, v.data, out.data, heads, n, causal});
              return compare({out.data, out.data + count}, given.truth, Storage<T>::tolerance);
            });
          }};
}

}  // namespace

std::vector<Subject> test_kernels() {
  return {kernel<float>("block_softmax", block_softmax),
          kernel<float>("warp_softmax", warp_softmax), kernel<__half>("wmma_flash", wmma_flash),
          kernel<__half>("mma_flash", mma_flash_half),
          kernel<__nv_bfloat16>("mma_flash_bf16", mma_flash_bfloat)};
}

std::vector<Subject> emulated_backends() {
  std::vector<Subject> all;
  for (const Entry& entry : registry()) {
    if (!entry.built() || entry.backend.memory != Memory::device) continue;
    const Backend& backend = entry.backend;
    if (refuses(backend, small_case(8, false).problem)) continue;
    const auto prepared = std::make_shared<Preparations>([](float value) { return value; });
    all.push_back({std::string(entry.name), [=, &backend](int n, bool causal) {
                     const Prepared& given = (*prepared)(n, causal);
                     return fault_of([&] {
                       const auto point =
                           make_device_point(backend, given.problem_case.problem, given.tensors.io);
                       point->upload();
                       point->timed_run();
                       point->download();
                       std::vector<float> values;
                       given.tensors.out.for_each([&](float value) { values.push_back(value); });
                       return compare(values, given.truth, Storage<float>::tolerance);
                     });
                   }});
  }
  return all;
}

}  // namespace attn::test
