// SPDX-License-Identifier: MIT
// A device backend on one problem, with plain buffers of the device: what the harness needs to run
// and time it. Without CUDA in the build there is no device and every function says so.
#pragma once

#include <memory>
#include <string>

#include "impls/attention.hpp"

namespace attn {

class DevicePoint {
 public:
  virtual ~DevicePoint() = default;
  // Inputs and outputs of the host to the device: a poisoned output is poisoned there too.
  virtual void upload() = 0;
  // One call between two events on a stream of its own, in seconds; waits for its end.
  virtual double timed_run() = 0;
  // Evicts the device's last-level cache by writing a buffer twice its size.
  virtual void flush_cache() = 0;
  // Outputs of the device to the host.
  virtual void download() = 0;
};

// `host_io` has the inputs and the outputs in host memory, at any strides, and must outlive the
// point; on the device they lie without gaps. `host_state` is what prepare filled, copied once.
// Throws std::bad_alloc when the device's memory is not enough, CudaError on any other failure, and
// std::logic_error for a layer around a core, which `refuses` excludes.
std::unique_ptr<DevicePoint> make_device_point(const Backend& backend, const Problem& problem,
                                               const Io& host_io, const void* host_state = nullptr);

std::string device_name();  // of the current device; empty when there is none

}  // namespace attn
