// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <utility>

#include "generated/identity.hpp"
#include "harness/command.hpp"
#include "harness/layer.hpp"
#include "harness/names.hpp"
#include "harness/plan.hpp"
#include "harness/results.hpp"

namespace attn {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<Status, std::string_view>, 10> status_meanings = {
    {{Status::ok, "checked, timed and checked again"},
     {Status::mismatch, "differs from the float64 reference; never timed"},
     {Status::mistrusted, "passed, but an output that computes nothing would have passed too"},
     {Status::unsupported, "the backend does not do this problem"},
     {Status::unavailable, "this machine or build lacks what the backend needs"},
     {Status::oom_predicted, "would need more memory than --mem-limit"},
     {Status::oom, "ran out of memory"},
     {Status::cutoff, "a call was predicted to take longer than the cut-off"},
     {Status::timeout, "a call did not end in time, twice"},
     {Status::error, "crashed, or broke the contract"}}};

// Why the backend does not run here; empty when it does, in whatever dtype.
std::string why_not(const Entry& entry) {
  if (!entry.built()) return std::string(entry.missing);
  Problem problem;
  problem.scope = has_heads(entry.backend.family) ? Scope::core : Scope::layer;
  problem.n_q = problem.n_kv = 128;
  problem.d_model = 64;
  problem.memory = entry.backend.memory;
  const auto refusal = refuses(entry.backend, problem);
  return refusal && refusal->kind == Refusal::Kind::unavailable ? refusal->sentence : "";
}

std::string flags_of(const Entry& entry) {
  const Backend& backend = entry.backend;
  std::string text = entry.peer ? "peer" : "";
  for (const auto& [set, word] : {std::pair{backend.threaded, "threaded"},
                                  std::pair{backend.exploits_sharing, "exploits_sharing"},
                                  std::pair{backend.layer_default, "layer_default"}}) {
    if (set) text += fmt::format("{}{}", text.empty() ? "" : ",", word);
  }
  return text;
}

std::string backends_text() {
  std::string text = fmt::format("{:<18} {:<10} {:<30} {}\n", "backend", "family", "flags", "here");
  for (const Entry& entry : registry()) {
    const std::string why = why_not(entry);
    text += fmt::format("{:<18} {:<10} {:<30} {}\n", entry.name,
                        entry.built() ? name_of(entry.backend.family) : "", flags_of(entry),
                        !entry.built() ? "not built: " + why
                        : why.empty()  ? "runs"
                                       : "built, unavailable: " + why);
  }
  return text;
}

// `what` is backends, presets, columns or statuses.
std::string list_text(const std::string& what) {
  if (what == "backends") return backends_text();
  std::string text;
  if (what == "presets") {
    for (const PresetInfo& preset : list_presets()) {
      text += fmt::format("{:<14} {:<6} {}\n", preset.name, preset.sweep ? "sweep" : "shape",
                          preset.about);
    }
  } else if (what == "columns") {
    for (const ColumnInfo& column : list_columns()) {
      text += fmt::format("{:<10} {:<20} {}\n", column.block, column.name, column.meaning);
    }
  } else {
    for (const auto& [status, meaning] : status_meanings) {
      text += fmt::format("{:<14} {}\n", name_of(status), meaning);
    }
  }
  return text;
}

// All of them, with the identity of the build.
json list_json() {
  const Machine machine = read_machine();
  json document = {{"build_id", ATTN_BUILD_ID},
                   {"source_id", ATTN_SOURCE_ID},
                   {"git_sha", ATTN_GIT_SHA},
                   {"env_id", env_id(machine)}};
  document["cpu_model"] = machine.cpu_model;
  for (const Entry& entry : registry()) {
    const std::string why = why_not(entry);
    json item = {{"name", entry.name},
                 {"built", entry.built()},
                 {"runs", why.empty()},
                 {"reason", why},
                 {"peer", entry.peer}};
    if (entry.built()) {
      const Backend& backend = entry.backend;
      item["family"] = name_of(backend.family);
      item["threaded"] = backend.threaded;
      item["exploits_sharing"] = backend.exploits_sharing;
      item["layer_default"] = backend.layer_default;
      item["device"] = backend.memory == Memory::device ? "cuda" : "cpu";
    }
    document["backends"].push_back(item);
  }
  for (const PresetInfo& preset : list_presets()) {
    json item = {
        {"name", preset.name}, {"kind", preset.sweep ? "sweep" : "shape"}, {"about", preset.about}};
    if (preset.layers > 0) item.update({{"layers", preset.layers}, {"source", preset.source}});
    document["presets"].push_back(item);
  }
  for (const ColumnInfo& column : list_columns()) {
    document["columns"].push_back(
        {{"block", column.block}, {"name", column.name}, {"meaning", column.meaning}});
  }
  for (const auto& [status, meaning] : status_meanings) {
    document["statuses"].push_back({{"name", name_of(status)}, {"meaning", meaning}});
  }
  return document;
}

}  // namespace

Exit command_list(const Words& args) {
  std::string what = "backends";
  bool json = false;
  CLI::App app{"What exists, what is built, and why not.", "attnbench list"};
  app.add_option("what", what, "backends (default), presets, columns or statuses")
      ->check(CLI::IsMember({"backends", "presets", "columns", "statuses"}));
  app.add_flag("--json", json, "everything about it, for programs");
  parse(app, args);
  fmt::print("{}", json ? list_json().dump(1) + "\n" : list_text(what));
  return Exit::good;
}

}  // namespace attn
