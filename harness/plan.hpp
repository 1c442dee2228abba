// SPDX-License-Identifier: MIT
// Which points a sweep measures: presets are data (presets.json), everything else is axes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/names.hpp"
#include "harness/registry.hpp"
#include "impls/attention.hpp"

namespace attn {

// One row to be: a backend on a problem, under one cache mode.
struct Point {
  const Entry* entry = nullptr;
  Problem problem;
  CacheMode cache = CacheMode::warm;
  InputDist dist = InputDist::normal;
  std::uint64_t seed = 1;
  bool fitted = false;  // takes every round and never stops early
  double cutoff_s = 5;  // a call predicted to take longer is not made
  std::string key;      // canonical text of everything that makes two points different
  std::string id;       // 12 hex digits of its hash

  [[nodiscard]] Family family() const { return entry->backend.family; }
  // 'cpu.naive/core/n1024/...': Google Benchmark's name of the point.
  [[nodiscard]] std::string label() const;
  // What `attnbench run` needs to measure this point alone.
  [[nodiscard]] std::string repro_command() const;
};

// The values of the axis options; an empty optional was not given.
using Axes = std::map<std::string, std::string>;  // option name without dashes -> text

struct Selection {
  std::vector<std::string> only;  // globs over backend names; empty: all but peers
  std::vector<std::string> skip;
};

struct PlanOptions {
  Selection selection;
  Axes axes;
  std::vector<std::string> presets;  // names of sweeps or shapes
  std::optional<double> cutoff_s;    // holds everywhere when given
  std::optional<CacheMode> cache;    // not given: warm, on a device warm and cold
  InputDist dist = InputDist::normal;
  std::uint64_t seed = 1;
  int all_threads = 1;   // what "all" means here
  int most_threads = 1;  // more are not to be had: larger values are measured on this many
};

// The points in the order of the parts, duplicates removed; throws CommandError (usage) for unknown
// names and empty selections. Does not ask backends whether they refuse.
std::vector<Point> make_plan(const PlanOptions& options);

void name_point(Point& point);  // sets key and id from all the rest

struct PresetInfo {
  std::string name;
  std::string about;
  bool sweep;               // else a shape: axis values
  std::int64_t layers = 0;  // of the model that a shape is one layer of; 0: of none
  std::string source = {};  // where that model's numbers are published
};
std::vector<PresetInfo> list_presets();

// The shape of exactly this name; throws CommandError (usage) that names the nearest one, or says
// why a model that people ask for is none.
PresetInfo shape_called(std::string_view name);
// The value of --scale, which backends compute with in f32: a larger one would make every score
// infinite. Throws CommandError (usage).
double parse_scale(const std::string& text);

// The backend of exactly this name; throws CommandError (usage) that names the nearest one.
const Entry& entry_called(std::string_view context, std::string_view name);

bool matches_glob(const std::string& pattern, std::string_view text);  // the shell's: * ? [...]
std::uint64_t hash_text(std::string_view text);                        // FNV-1a, 64 bits

}  // namespace attn
