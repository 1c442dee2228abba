// SPDX-License-Identifier: MIT
// Lines of CSV: what is written reads back, whatever the fields hold, and what was read is written
// as a line that means the same.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "harness/csv.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace attn {
namespace {

using Fields = std::vector<std::string>;

Fields read_back(const Fields& fields) {
  std::string line = csv_line(fields);
  ATTN_DEMAND(line.ends_with('\n'));
  line.pop_back();
  const auto again = parse_csv_line(line);
  ATTN_DEMAND(again.has_value());
  return *again;
}

void any_line(std::string_view line) {
  const auto fields = parse_csv_line(line);
  if (!fields) return;
  ATTN_DEMAND(!fields->empty());
  ATTN_DEMAND(read_back(*fields) == *fields);
  std::size_t bytes = fields->size() - 1;  // the commas between them
  for (const std::string& field : *fields) bytes += field.size();
  ATTN_DEMAND(bytes <= line.size());
}

// A zero byte ends a field here, so that fields hold every other byte.
void any_fields(std::string_view bytes) {
  Fields fields(1);
  for (const char c : bytes) {
    if (c == '\0') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  ATTN_DEMAND(read_back(fields) == fields);
}

void any_number(std::string_view bytes) {
  double value = 0;
  if (bytes.size() < sizeof(value)) return;
  std::memcpy(&value, bytes.data(), sizeof(value));
  const std::string text = csv_number(value);
  ATTN_DEMAND(text.empty() == !std::isfinite(value));
  if (!text.empty()) ATTN_DEMAND(std::strtod(text.c_str(), nullptr) == value);
  ATTN_DEMAND(csv_field(text) == text);
}

}  // namespace
}  // namespace attn

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  attn::any_line(bytes);
  attn::any_fields(bytes);
  attn::any_number(bytes);
  return 0;
}
