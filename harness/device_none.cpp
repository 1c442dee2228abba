// SPDX-License-Identifier: MIT
#include <stdexcept>

#include "harness/device.hpp"

namespace attn {

std::unique_ptr<DevicePoint> make_device_point(const Backend& /*backend*/,
                                               const Problem& /*problem*/, const Io& /*host_io*/,
                                               const void* /*host_state*/) {
  throw std::logic_error("this build has no device backends");
}

std::string device_name() { return {}; }

}  // namespace attn
