// SPDX-License-Identifier: MIT
// What `attnbench list` says.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace attn {

std::string list_text(const std::string& what);  // backends, presets, columns or statuses
nlohmann::json list_json();                      // all of them, with the identity of the build

}  // namespace attn
