// SPDX-License-Identifier: MIT
// The device side of the harness: a device backend on one problem, with buffers of the device; what
// the device is, and its roofs. Without CUDA in the build there is no device and every function says
// so. The first call of any of them starts the driver, after which a process must not fork workers.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "harness/roofs.hpp"
#include "impls/attention.hpp"

namespace attn {

// Empty where NVML is missing or does not say.
struct DeviceClocks {
  std::optional<int> sm_mhz;
  std::optional<bool> throttled;  // by power, heat or the hardware, not by a setting
};

struct DeviceTiming {
  double seconds = 0;
  DeviceClocks clocks;  // while the call was under way
};

// The device's memory is not enough; what() says for which call.
class DeviceOutOfMemory : public std::bad_alloc {
 public:
  explicit DeviceOutOfMemory(std::string words) : words_(std::move(words)) {}
  [[nodiscard]] const char* what() const noexcept override { return words_.c_str(); }

 private:
  std::string words_;
};

class DevicePoint {
 public:
  virtual ~DevicePoint() = default;
  // Inputs and outputs of the host to the device: a poisoned output is poisoned there too.
  virtual void upload() = 0;
  // NaN throughout the scratch, whose contents no call may count on, and its fences anew: all points
  // share one scratch.
  virtual void poison_scratch() = 0;
  // One call between two events on a stream of its own; waits for its end.
  virtual DeviceTiming timed_run() = 0;
  // Evicts the device's last-level cache by writing a buffer twice its size.
  virtual void flush_cache() = 0;
  // Outputs of the device to the host.
  virtual void download() = 0;
  // "wrote after the end of a tensor on the device": what a call did to the zones around tensors,
  // state and scratch since poison_scratch; empty when nothing.
  [[nodiscard]] virtual std::string broken_fence() const = 0;
  // Whether an input on the device differs from the host's, as it was at the upload.
  [[nodiscard]] virtual bool inputs_changed() const = 0;
};

// `host_io` has the inputs and the outputs in host memory, at any strides, and must outlive the
// point; on the device they lie without gaps. `host_state` is what prepare filled, copied once.
// Throws DeviceOutOfMemory (as timed_run does), CudaError on any other failure, and std::logic_error
// for a layer around a core, which `refuses` excludes.
std::unique_ptr<DevicePoint> make_device_point(const Backend& backend, const Problem& problem,
                                               const Io& host_io, const void* host_state = nullptr);

struct DeviceInfo {
  std::string name;
  std::string compute_capability;  // "9.0"
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
  int multiprocessors = 0;
  int clock_mhz = 0;  // the highest
  int memory_clock_mhz = 0;
  std::string driver;     // "13.0": the newest CUDA it knows
  std::string runtime;    // "13.0"
  std::string no_clocks;  // why samples have no clock; empty when they have
};
std::optional<DeviceInfo> device_info();  // of the current device

// Bytes of the device's memory that can still be had; 0 without a device.
std::int64_t device_free_bytes();

// Of it go, beside tensors, state and the largest scratch: a zone on either side of each of them, and
// what flush_cache and the roofs write through.
inline constexpr std::int64_t device_fence_bytes = 4096;
std::int64_t device_traffic_bytes();

// A sample of about `seconds`. fma: multiply-adds in registers on the whole device, f32, gflops; copy:
// device to device, bytes read and written, gbps. Throws like make_device_point.
double measure_device_roof(Roof::Kind kind, double seconds);

}  // namespace attn
