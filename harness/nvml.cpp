// SPDX-License-Identifier: MIT
#include "harness/nvml.hpp"

#include <dlfcn.h>

namespace attn {
namespace {

// From nvml.h, which the toolkit has and a machine without one has not.
constexpr int success = 0;
constexpr int sm_clock = 1;
// The reasons that make a sample slower than the device is: power cap, hardware slowdown, thermal
// slowdown by software and by hardware, power brake. An idle device and a clock that somebody has set
// are no throttling.
constexpr unsigned long long throttling = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Nvml::Nvml(const std::string& pci_bus_id, const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    missing_ = dlerror();
    return;
  }
  int (*init)() = nullptr;
  int (*by_bus_id)(const char*, void**) = nullptr;
  const char* (*words)(int) = nullptr;
  if (!find(loaded, "nvmlInit_v2", init) || !find(loaded, "nvmlErrorString", words) ||
      !find(loaded, "nvmlDeviceGetHandleByPciBusId_v2", by_bus_id) ||
      !find(loaded, "nvmlDeviceGetClockInfo", clock_) ||
      !find(loaded, "nvmlDeviceGetCurrentClocksThrottleReasons", reasons_)) {
    missing_ = library + " lacks a function";
  } else if (const int error = init(); error != success) {
    missing_ = std::string("nvmlInit_v2: ") + words(error);
  } else if (const int unknown = by_bus_id(pci_bus_id.c_str(), &device_); unknown != success) {
    missing_ = std::string("nvmlDeviceGetHandleByPciBusId_v2: ") + words(unknown);
  }
}

DeviceClocks Nvml::read() const {
  DeviceClocks clocks;
  if (!missing_.empty()) return clocks;
  unsigned mhz = 0;
  if (clock_(device_, sm_clock, &mhz) == success) clocks.sm_mhz = static_cast<int>(mhz);
  unsigned long long reasons = 0;
  if (reasons_(device_, &reasons) == success) clocks.throttled = (reasons & throttling) != 0;
  return clocks;
}

}  // namespace attn
