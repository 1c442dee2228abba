// SPDX-License-Identifier: MIT
// Clocks of one device and what slows it down, from NVML, which is looked for at run time: it comes
// with the driver, and a build must not need one.
#pragma once

#include <string>

#include "harness/device.hpp"

namespace attn {

class Nvml {
 public:
  // The device of this PCI bus id ("0000:65:00.0"): NVML counts devices otherwise than CUDA.
  // The library stays loaded until the process ends.
  explicit Nvml(const std::string& pci_bus_id, const std::string& library = "libnvidia-ml.so.1");

  // Why there are no clocks; empty when there are.
  [[nodiscard]] const std::string& missing() const { return missing_; }
  // Now. What NVML does not say is empty.
  [[nodiscard]] DeviceClocks read() const;

 private:
  void* device_ = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
  int (*reasons_)(void*, unsigned long long*) = nullptr;
  std::string missing_;
};

}  // namespace attn
