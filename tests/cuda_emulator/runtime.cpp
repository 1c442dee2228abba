// SPDX-License-Identifier: MIT
#include "tests/cuda_emulator/runtime.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>

#include "tests/cuda_emulator/include/cuda_runtime.h"

struct CUstream_st {};
struct CUevent_st {
  std::chrono::steady_clock::time_point when;
};

namespace cuda_emulator {
namespace {

constexpr std::align_val_t alignment{256};
constexpr int l2_bytes = 1 << 20;

Device from_environment() {
  Device device;
  const char* const given = std::getenv("CUDA_EMULATOR_DEVICE");
  const std::string words = "," + std::string(given == nullptr ? "" : given) + ",";
  const auto bytes = [&](const char* name, std::size_t fallback) {
    const std::string start = std::string(",") + name + "=";
    const std::size_t found = words.find(start);
    return found == std::string::npos ? fallback : std::stoull(words.substr(found + start.size()));
  };
  device.no_driver = words.find(",no_driver,") != std::string::npos;
  device.no_device = words.find(",no_device,") != std::string::npos;
  device.memory = bytes("memory", device.memory);
  device.largest = bytes("largest", device.memory);
  return device;
}

std::unordered_map<void*, std::size_t>& allocations() {
  static std::unordered_map<void*, std::size_t> all;
  return all;
}

pid_t owner = 0;                       // the process that made the first call
cudaError_t stuck = cudaSuccess;       // by an error that no call clears
cudaError_t last_error = cudaSuccess;  // what cudaGetLastError clears
std::vector<Operation>* operations = nullptr;

cudaError_t fail(cudaError_t error) { return last_error = error; }

// What every call answers before it does anything: a driver does not survive a fork, and a context
// with a fault is lost.
cudaError_t state() {
  if (device().no_driver) return fail(cudaErrorInsufficientDriver);
  if (device().no_device) return fail(cudaErrorNoDevice);
  if (owner == 0) owner = getpid();
  if (owner != getpid()) return fail(cudaErrorInitializationError);
  return stuck == cudaSuccess ? cudaSuccess : fail(stuck);
}

void note(Operation::Kind kind, std::size_t bytes = 0) {
  if (operations != nullptr) operations->push_back({kind, bytes});
}

// A call whose body is `work`.
template <class Work>
cudaError_t call(const Work& work) {
  const cudaError_t error = state();
  if (error == cudaSuccess) work();
  return error;
}

}  // namespace

Device& device() {
  static Device one = from_environment();
  return one;
}

void renew_device() {
  device() = from_environment();
  stuck = last_error = cudaSuccess;
}

void note_operations(std::vector<Operation>* log) { operations = log; }

std::size_t allocated_bytes() {
  std::size_t bytes = 0;
  for (const auto& [address, size] : allocations()) bytes += size;
  return bytes;
}

bool begin_launch(cudaError_t& error) {
  error = state();
  if (error != cudaSuccess) return false;
  note(Operation::Kind::launch);
  // Kernels run later than their launch: it succeeds, and whoever waits hears of the fault.
  if (!device().faulty) return true;
  stuck = cudaErrorIllegalAddress;
  return false;
}

}  // namespace cuda_emulator

using namespace cuda_emulator;

namespace {

struct ErrorWords {
  cudaError_t error;
  const char* name;
  const char* sentence;
};
constexpr ErrorWords error_words[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};
const ErrorWords& words_of(cudaError_t error) {
  static constexpr ErrorWords unknown = {cudaSuccess, "unrecognized error code",
                                         "unrecognized error code"};
  const auto* const found = std::find_if(std::begin(error_words), std::end(error_words),
                                         [&](const ErrorWords& w) { return w.error == error; });
  return found == std::end(error_words) ? unknown : *found;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) { return words_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return words_of(error).sentence; }
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = stuck;
  return error;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return call([&] { *count = 1; });
}
cudaError_t cudaGetDevice(int* number) {
  return call([&] { *number = 0; });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  return call([&] {
    *properties = {};
    std::strcpy(properties->name, "emulated on the CPU");
    properties->totalGlobalMem = device().memory;
    properties->major = 8;
    properties->minor = 0;
    properties->multiProcessorCount = 1;
    properties->l2CacheSize = l2_bytes;
    properties->maxThreadsPerMultiProcessor = 256;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  return call([&] { *value = attribute == cudaDevAttrL2CacheSize ? l2_bytes : 1'000'000; });
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int /*device*/) {
  return call([&] { std::snprintf(id, static_cast<std::size_t>(length), "0000:65:00.0"); });
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = device().no_driver ? 0 : 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call([&] {
    *total = device().memory;
    *free = device().memory - allocated_bytes();
  });
}
cudaError_t cudaDeviceSynchronize() { return state(); }
cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  if (const cudaError_t error = state(); error != cudaSuccess) return error;
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  int& failing = device().failing_allocation;
  if ((failing > 0 && --failing == 0) || bytes > device().largest ||
      bytes > device().memory - allocated_bytes()) {
    return fail(cudaErrorMemoryAllocation);
  }
  *address = ::operator new(bytes, alignment);
  std::memset(*address, 0, bytes);  // as new memory often is: poison is the harness's business
  allocations()[*address] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  // Memory goes with the process, whatever the state: here it is the host's.
  if (allocations().erase(address) > 0) ::operator delete(address, alignment);
  return state();
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/) {
  return call([&] {
    note(Operation::Kind::copy, bytes);
    std::memcpy(to, from, bytes);
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t /*stream*/) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t width, std::size_t height, cudaMemcpyKind /*kind*/) {
  return call([&] {
    note(Operation::Kind::copy, width * height);
    for (std::size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch,
                  static_cast<const char*>(from) + row * from_pitch, width);
    }
  });
}
cudaError_t cudaMemset(void* address, int value, std::size_t bytes) {
  return cudaMemsetAsync(address, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes, cudaStream_t /*stream*/) {
  return call([&] {
    note(Operation::Kind::set, bytes);
    std::memset(address, value, bytes);
  });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  return call([&] { *stream = new CUstream_st; });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return state();
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return state(); }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return call([&] { *event = new CUevent_st; });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return state();
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t /*stream*/) {
  return call([&] {
    note(Operation::Kind::event);
    event->when = std::chrono::steady_clock::now();
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) {
  while (device().hangs) pause();
  return state();
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  return call([&] {
    const std::chrono::duration<double, std::milli> between = stop->when - start->when;
    *milliseconds = static_cast<float>(between.count() * std::exchange(device().hurry, 1));
  });
}
