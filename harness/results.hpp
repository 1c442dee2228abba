// SPDX-License-Identifier: MIT
// What a run leaves behind, derived from its journal: results.csv, phases.csv, run.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "harness/journal.hpp"
#include "harness/sweep.hpp"

namespace attn {

inline constexpr int schema_version = 1;

// The dictionary of results.csv, in file order.
struct ColumnInfo {
  std::string_view block;
  std::string_view name;
  std::string_view meaning;
};
std::vector<ColumnInfo> list_columns();

// One row per finished point; replaces DIR/results.csv.
void write_results(const Sweep& sweep, const RunState& state);

struct PhaseRow {
  std::string point_id;
  std::string phase;
  std::vector<double> seconds;  // one per instrumented call
};
void write_phases(const Sweep& sweep, const std::vector<PhaseRow>& rows);
bool phases_written(const Sweep& sweep);

// `ending` is empty while the run goes on, else "finished" or "interrupted".
void write_run_json(const Sweep& sweep, const RunState& state, std::string_view ending);

// What `--benchmark_format=json` and `--benchmark_out` print: Google Benchmark's layout, one entry
// a row with a time.
nlohmann::json google_benchmark_json(const Sweep& sweep, const RunState& state);

// The largest sample of each roof: a roof is what the machine can do.
std::optional<double> roof_value(const RunState& state, const Roof& roof);

std::string utc_now();  // 2026-01-31T23:59:59Z

}  // namespace attn
