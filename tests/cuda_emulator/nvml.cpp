// SPDX-License-Identifier: MIT
// A libnvidia-ml.so.1 of one device, the emulated one, throttled as NVML_EMULATOR_REASONS says.
#include <cstdlib>
#include <cstring>

namespace {
constexpr int success = 0, invalid_argument = 2, not_found = 6;
int the_device = 0;
}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the vendor's names
extern "C" {
int nvmlInit_v2() { return success; }
const char* nvmlErrorString(int error) { return error == not_found ? "Not Found" : "an error"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  if (std::strcmp(id, "0000:65:00.0") != 0) return not_found;
  *device = &the_device;
  return success;
}
int nvmlDeviceGetClockInfo(void* device, int type, unsigned* mhz) {
  if (device != &the_device || type != 1) return invalid_argument;
  *mhz = 1410;
  return success;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  if (device != &the_device) return invalid_argument;
  const char* const given = std::getenv("NVML_EMULATOR_REASONS");
  *reasons = given == nullptr ? 0 : std::strtoull(given, nullptr, 0);
  return success;
}
}
// NOLINTEND(readability-identifier-naming)
