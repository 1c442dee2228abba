// SPDX-License-Identifier: MIT
// A reader with a planted bug, to see the fuzzer find it: the count in a header is believed. Only
// coverage leads there, for no input of random bytes begins with these six.
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view magic = "count:";
  for (std::size_t i = 0; i < magic.size(); ++i) {
    if (i >= size || bytes[i] != magic[i]) return 0;
  }
  if (size < magic.size() + 2) return 0;  // without a value there is no vector to overrun
  const std::vector<std::uint8_t> values(data + magic.size() + 1, data + size);
  const std::size_t count = data[magic.size()];
  unsigned sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += values[i];
  return sum == 0xFFFFFFFF ? -1 : 0;
}
