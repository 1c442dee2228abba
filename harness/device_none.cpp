// SPDX-License-Identifier: MIT
#include <stdexcept>

#include "harness/device.hpp"

namespace attn {

std::unique_ptr<DevicePoint> make_device_point(const Backend& /*backend*/,
                                               const Problem& /*problem*/, const Io& /*host_io*/,
                                               const void* /*host_state*/) {
  throw std::logic_error("this build has no device backends");
}

std::optional<DeviceInfo> device_info() { return std::nullopt; }
std::int64_t device_free_bytes() { return 0; }
std::int64_t device_traffic_bytes() { return 0; }
double measure_device_roof(Roof::Kind /*kind*/, double /*seconds*/) { return 0; }

}  // namespace attn
