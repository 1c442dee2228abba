// SPDX-License-Identifier: MIT
#include "harness/results.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>

#include "generated/identity.hpp"
#include "harness/csv.hpp"
#include "harness/layer.hpp"
#include "harness/stats.hpp"
#include "harness/work.hpp"

namespace attn {
namespace {

using nlohmann::json;

// Everything a column may need of one point.
struct Row {
  const Sweep& sweep;
  const RunState& run;
  const Point& point;
  const PointState& state;
  const Problem& p;
  Family family;
  bool built;
  Cost work;  // zeros where the backend is not built
  std::vector<double> times;
  std::optional<double> time;
  json check;  // of the last check

  Row(const Sweep& s, const RunState& r, const Point& pt, const PointState& st)
      : sweep(s),
        run(r),
        point(pt),
        state(st),
        p(pt.problem),
        family(pt.family()),
        built(pt.entry->built()),
        times(st.times()) {
    if (built) work = cost(point.entry->backend, p);
    if (status() == Status::ok && !times.empty()) time = median(times);
    check = state.checks.empty() ? json::object() : state.checks.rbegin()->second.detail;
  }

  [[nodiscard]] Status status() const { return state.status(); }
  [[nodiscard]] bool heads() const { return !built || has_heads(family); }
  [[nodiscard]] bool layer() const { return p.scope == Scope::layer; }
  [[nodiscard]] std::string stop() const {
    if (!time) return "";
    return stop_reason(point, state, sweep.options).value_or("");
  }
  [[nodiscard]] std::string cache() const {
    if (times.empty()) return std::string(name_of(point.cache));
    const bool mixed = std::any_of(state.samples.begin(), state.samples.end(),
                                   [](const Sample& s) { return s.cache == "mixed"; });
    return mixed ? "mixed" : state.samples.front().cache;
  }
  [[nodiscard]] std::string check_text(const char* name) const {
    const json value = check.value(name, json());
    if (value.is_null()) return "";  // absent, or an error that was not finite
    return value.is_string() ? value.get<std::string>() : csv_number(value.get<double>());
  }

  [[nodiscard]] std::optional<double> gflops() const {
    if (!time) return std::nullopt;
    return static_cast<double>(flops_model(p, family)) / *time / 1e9;
  }
  [[nodiscard]] std::optional<double> gbps() const {
    if (!time) return std::nullopt;
    return static_cast<double>(work.bytes) / *time / 1e9;
  }
  [[nodiscard]] std::optional<double> peak() const { return roof_value(run, peak_of(p)); }
  [[nodiscard]] std::optional<double> pct_peak() const {
    const auto rate = gflops();
    const auto roof = peak();
    if (!rate || !roof) return std::nullopt;
    return 100 * *rate / *roof;
  }
  // Against the lower of peak and bandwidth at the problem's intensity. Where bandwidth is the
  // lower one, only if the data cannot lie in the caches.
  [[nodiscard]] std::optional<double> pct_roof() const {
    const auto rate = gflops();
    const auto roof = peak();
    const auto bandwidth = roof_value(run, bandwidth_of(p));
    if (!rate || !roof || !bandwidth) return std::nullopt;
    const double intensity =
        static_cast<double>(flops_model(p, family)) / static_cast<double>(bytes_min(p, family));
    const double memory_bound = intensity * *bandwidth;
    const bool in_cache = bytes_min(p, family) < 4 * last_level_cache();
    if (memory_bound < *roof && in_cache && cache() != "cold") return std::nullopt;
    return 100 * *rate / std::min(*roof, memory_bound);
  }
  [[nodiscard]] std::int64_t last_level_cache() const {
    if (p.memory == Memory::host) return sweep.machine.llc_total_bytes;
    const json bytes = check.value("device_l2_bytes", json());
    return bytes.is_number() ? bytes.get<std::int64_t>() : 0;
  }
  [[nodiscard]] std::int64_t tensors() const {
    const TensorElements elements = tensor_elements(p, family);
    return (elements.inputs() + elements.outputs()) * bytes_per_element(p.dtype);
  }
};

std::string number(std::optional<double> value) { return value ? csv_number(*value) : ""; }
std::string integer(std::int64_t value) { return fmt::format("{}", value); }
std::string boolean(bool value) { return value ? "true" : "false"; }
std::string when(bool applies, std::string text) { return applies ? std::move(text) : ""; }

struct Column {
  ColumnInfo info;
  std::string (*value)(const Row&);
};

std::string noisy(const Row& r) {
  if (!r.time) return "";
  const auto width = relative_half_width(r.times);
  const double limit = r.sweep.options.max_ci_given ? r.sweep.options.max_ci : 0.02;
  return boolean(!width || *width > limit);
}

std::string interval_end(const Row& r, bool high) {
  const auto interval = r.time ? median_interval(r.times) : std::nullopt;
  if (!interval) return "";
  return csv_number(high ? interval->second : interval->first);
}

std::string distinct(const Row& r, int Sample::*member) {
  if (!r.time) return "";
  std::set<int> values;
  for (const Sample& sample : r.state.samples) values.insert(sample.*member);
  return integer(static_cast<std::int64_t>(values.size()));
}

// The options that decide a row's statistics, where they are not the defaults. Alone a point of a
// fitted curve is on none: as many samples over as many processes are asked for by their number.
std::string sampling(const Row& r) {
  const MeasureOptions& options = r.sweep.options;
  const MeasureOptions defaults;
  const bool fitted = r.point.fitted;
  const int least = fitted ? options.rounds : options.min_samples;
  const int most = fitted ? options.rounds : options.max_samples;
  std::string text;
  if (least != defaults.min_samples) text += fmt::format(" --min-samples {}", least);
  if (most != defaults.max_samples) text += fmt::format(" --max-samples {}", most);
  if (options.processes > 1) {
    text += fmt::format(" --rounds {} --processes {}", options.rounds, options.processes);
  }
  if (options.max_ci_given) text += fmt::format(" --max-ci {:.10g}%", 100 * options.max_ci);
  return text;
}

const std::vector<Column>& columns() {
  static const std::vector<Column> table = {
      {{"identity", "schema_version", "version of these columns"},
       [](const Row&) { return integer(schema_version); }},
      {{"identity", "run_id", "the run that made the row"},
       [](const Row& r) { return r.sweep.run_id; }},
      {{"identity", "point_id", "hash of the point's key; joins samples.csv and phases.csv"},
       [](const Row& r) { return r.point.id; }},
      {{"identity", "env_id", "hash of the machine"},
       [](const Row& r) { return env_id(r.sweep.machine); }},
      {{"identity", "build_id", "hash of sources, compiler, flags and libraries"},
       [](const Row&) { return std::string(ATTN_BUILD_ID); }},
      {{"identity", "timestamp_utc", "start of the run"},
       [](const Row& r) { return r.sweep.started_utc; }},
      {{"identity", "tags", "what --tag gave, k=v separated by ;"},
       [](const Row& r) { return r.sweep.tags; }},

      {{"what", "backend", "folder.stem of the implementation"},
       [](const Row& r) { return std::string(r.point.entry->name); }},
      {{"what", "resolved_impl", "which code ran, where that can vary"},
       [](const Row& r) { return r.check_text("resolved_impl"); }},
      {{"what", "family", "attention (exact), sparse, linear, rnn, gru, lstm or convolution"},
       [](const Row& r) { return when(r.built, std::string(name_of(r.family))); }},
      {{"what", "sharing", "mha, gqa or mqa: query heads per KV head"},
       [](const Row& r) -> std::string {
         if (!r.heads()) return "";
         return r.p.heads_kv == r.p.heads ? "mha" : r.p.heads_kv == 1 ? "mqa" : "gqa";
       }},
      {{"what", "scope", "core (q, k, v -> out) or layer (x -> y)"},
       [](const Row& r) { return std::string(name_of(r.p.scope)); }},
      {{"what", "regime", "prefill or decode"},
       [](const Row& r) { return std::string(name_of(r.p.regime)); }},
      {{"what", "device", "cpu or cuda:0; empty when the backend is not built"},
       [](const Row& r) -> std::string {
         if (!r.built) return "";
         return r.p.memory == Memory::device ? "cuda:0" : "cpu";
       }},
      {{"what", "device_name", "model of the processor or device"},
       [](const Row& r) -> std::string {
         if (!r.built) return "";
         return r.p.memory == Memory::device ? r.check_text("device_name")
                                             : r.sweep.machine.cpu_model;
       }},
      {{"what", "threads", "host threads of a call"},
       [](const Row& r) { return integer(r.p.threads); }},
      {{"what", "acc_dtype", "type that sums are kept in"},
       [](const Row& r) {
         return when(r.built, std::string(name_of(r.point.entry->backend.accumulator)));
       }},
      {{"what", "projection_impl", "what multiplies by the attention layer's weights"},
       [](const Row& r) {
         return when(r.built && r.layer(), projection_impl(r.point.entry->backend, r.p));
       }},

      {{"shape", "n_q", "queries (tokens)"}, [](const Row& r) { return integer(r.p.n_q); }},
      {{"shape", "n_kv", "keys (tokens)"}, [](const Row& r) { return integer(r.p.n_kv); }},
      {{"shape", "batch", "sequences"}, [](const Row& r) { return integer(r.p.batch); }},
      {{"shape", "heads", "query heads"},
       [](const Row& r) { return when(r.heads(), integer(r.p.heads)); }},
      {{"shape", "heads_kv", "key and value heads"},
       [](const Row& r) { return when(r.heads(), integer(r.p.heads_kv)); }},
      {{"shape", "head_dim", "elements of a query and of a key"},
       [](const Row& r) { return when(r.heads(), integer(r.p.head_dim)); }},
      {{"shape", "head_dim_v", "elements of a value"},
       [](const Row& r) { return when(r.heads(), integer(r.p.head_dim_v)); }},
      {{"shape", "d_model", "elements of a token; the hidden size of recurrences"},
       [](const Row& r) { return when(r.layer(), integer(r.p.d_model)); }},
      {{"shape", "output_projection", "whether the attention layer ends with W_O"},
       [](const Row& r) { return when(r.layer() && r.heads(), boolean(r.p.output_projection)); }},
      {{"shape", "width", "kernel, window, rank or features, by family"},
       [](const Row& r) { return when(r.p.width != 0, integer(r.p.width)); }},
      {{"shape", "causal", "whether a query sees only keys up to its own position"},
       [](const Row& r) { return when(r.heads(), boolean(r.p.mask == Mask::causal)); }},
      {{"shape", "scale", "factor of the scores"},
       [](const Row& r) { return when(r.heads(), csv_number(r.p.effective_scale())); }},
      {{"shape", "dtype", "type of the tensors"},
       [](const Row& r) { return std::string(name_of(r.p.dtype)); }},
      {{"shape", "input_dist", "distribution of the inputs"},
       [](const Row& r) { return std::string(name_of(r.point.dist)); }},
      {{"shape", "seed", "seed of the inputs"},
       [](const Row& r) { return fmt::format("{}", r.point.seed); }},

      {{"outcome", "status", "see `attnbench list statuses`"},
       [](const Row& r) { return std::string(name_of(r.status())); }},
      {{"outcome", "status_reason", "one sentence unless ok"},
       [](const Row& r) {
         return when(r.status() != Status::ok,
                     csv_words(r.state.finish->detail.value("reason", "")));
       }},

      {{"timing", "samples", "timed calls that count"},
       [](const Row& r) {
         return when(r.time.has_value(), integer(static_cast<std::int64_t>(r.times.size())));
       }},
      {{"timing", "processes", "worker processes they come from"},
       [](const Row& r) { return distinct(r, &Sample::process); }},
      {{"timing", "rounds", "rounds they come from"},
       [](const Row& r) { return distinct(r, &Sample::round); }},
      {{"timing", "time_median_s", "median of the samples, seconds a call"},
       [](const Row& r) { return number(r.time); }},
      {{"timing", "ci95_lo_s",
        "lower end of the median's 95 % interval (order statistics, >= 6 samples)"},
       [](const Row& r) { return interval_end(r, false); }},
      {{"timing", "ci95_hi_s", "upper end of it"},
       [](const Row& r) { return interval_end(r, true); }},
      {{"timing", "time_min_s", "fastest sample"},
       [](const Row& r) {
         return when(r.time.has_value(), r.time ? csv_number(quantile(r.times, 0)) : "");
       }},
      {{"timing", "time_q1_s", "first quartile"},
       [](const Row& r) { return r.time ? csv_number(quantile(r.times, 0.25)) : ""; }},
      {{"timing", "time_q3_s", "third quartile"},
       [](const Row& r) { return r.time ? csv_number(quantile(r.times, 0.75)) : ""; }},
      {{"timing", "outliers", "samples beyond 1.5 interquartile ranges; they count all the same"},
       [](const Row& r) { return when(r.time.has_value(), integer(count_outliers(r.times))); }},
      {{"timing", "noisy", "interval wider than +-2 % (or --max-ci), or none"}, noisy},
      {{"timing", "stop_reason", "rounds, precision, samples or budget"},
       [](const Row& r) { return r.stop(); }},
      {{"timing", "timer", "steady_clock, cuda_event, or child: another process made the call"},
       [](const Row& r) -> std::string {
         if (!r.time) return "";
         if (r.point.entry->backend.own_clock) return "child";
         return r.p.memory == Memory::device ? "cuda_event" : "steady_clock";
       }},
      {{"timing", "cache_mode",
        "warm: one or two calls right before; mixed: too slow to be warmed; cold"},
       [](const Row& r) { return r.cache(); }},
      {{"timing", "order", "order of the points within a round"},
       [](const Row& r) { return std::string(name_of(r.sweep.options.order)); }},

      {{"work", "flops_model", "what the problem needs, by formula"},
       [](const Row& r) { return when(r.built, integer(flops_model(r.p, r.family))); }},
      {{"work", "flops_executed", "what the algorithm does"},
       [](const Row& r) { return when(r.built, integer(r.work.flops)); }},
      {{"work", "exps", "calls of exp, tanh and sigmoid (at least, where it depends on the data)"},
       [](const Row& r) { return when(r.built, integer(r.work.exps)); }},
      {{"work", "bytes_min", "every input read once, the output written once"},
       [](const Row& r) { return when(r.built, integer(bytes_min(r.p, r.family))); }},
      {{"work", "bytes_model", "what the loops as written move"},
       [](const Row& r) { return when(r.built, integer(r.work.bytes)); }},
      {{"work", "seq_steps", "longest chain of dependent steps"},
       [](const Row& r) { return when(r.built, integer(r.work.sequential_steps)); }},
      {{"work", "gflops", "flops_model / time_median_s / 1e9"},
       [](const Row& r) { return number(r.gflops()); }},
      {{"work", "gbps", "bytes_model / time_median_s / 1e9"},
       [](const Row& r) { return number(r.gbps()); }},
      {{"work", "pct_peak", "share of the FMA peak measured in this run, per cent"},
       [](const Row& r) { return number(r.pct_peak()); }},
      {{"work", "pct_roof",
        "share of min(peak, intensity x read bandwidth; on a device copy), per cent"},
       [](const Row& r) { return number(r.pct_roof()); }},

      {{"memory", "mem_scratch_bytes", "scratch of a call, exact"},
       [](const Row& r) { return when(r.built, integer(r.work.scratch_bytes)); }},
      {{"memory", "mem_state_bytes", "kept between calls, exact"},
       [](const Row& r) { return when(r.built, integer(r.work.state_bytes)); }},
      {{"memory", "mem_tensors_bytes", "inputs, parameters and output, exact"},
       [](const Row& r) { return when(r.built, integer(r.tensors())); }},
      {{"memory", "mem_kv_cache_bytes", "keys and values of all KV heads"},
       [](const Row& r) {
         return when(r.built && r.heads(), integer(kv_cache_bytes(r.p, r.family)));
       }},
      {{"memory", "mem_peak_bytes", "resident memory that the verifying call added"},
       [](const Row& r) { return r.check_text("peak_bytes"); }},

      {{"check", "verify_mode", "all rows, sampled rows or windows"},
       [](const Row& r) { return r.check_text("mode"); }},
      {{"check", "rows_checked", "rows compared with the float64 reference"},
       [](const Row& r) { return r.check_text("rows_checked"); }},
      {{"check", "err_max_abs", "largest difference"},
       [](const Row& r) { return r.check_text("err_max_abs"); }},
      {{"check", "err_scaled", "the same over the RMS of the reference"},
       [](const Row& r) { return r.check_text("err_scaled"); }},
      {{"check", "err_bound", "what err_scaled may be"},
       [](const Row& r) { return r.check_text("err_bound"); }},
      {{"check", "err_vs_exact", "approximate families: error against exact attention"},
       [](const Row&) { return std::string(); }},

      {{"reproduce", "repro_cmd", "measures this point alone"},
       [](const Row& r) { return r.point.repro_command() + sampling(r); }},
      {{"reproduce", "git_sha", "commit the sources stood on"},
       [](const Row&) { return std::string(ATTN_GIT_SHA); }},
      {{"reproduce", "git_dirty", "whether they had uncommitted changes"},
       [](const Row&) { return boolean(ATTN_GIT_DIRTY); }},
  };
  return table;
}

template <class Visit>
void each_row(const Sweep& sweep, const RunState& state, const Visit& visit) {
  for (const Point& point : sweep.points) {
    const auto found = state.points.find(point.id);
    if (found == state.points.end() || !found->second.finished()) continue;
    visit(Row(sweep, state, point, found->second));
  }
}

}  // namespace

std::vector<ColumnInfo> list_columns() {
  std::vector<ColumnInfo> list;
  for (const Column& column : columns()) list.push_back(column.info);
  return list;
}

void write_results(const Sweep& sweep, const RunState& state) {
  std::vector<std::string> fields;
  for (const Column& column : columns()) fields.emplace_back(column.info.name);
  std::string text = csv_line(fields);
  each_row(sweep, state, [&](const Row& row) {
    for (std::size_t i = 0; i < fields.size(); ++i) fields[i] = columns()[i].value(row);
    text += csv_line(fields);
  });
  replace_file(sweep.dir + "/results.csv", text);
}

void write_phases(const Sweep& sweep, const std::vector<PhaseRow>& rows) {
  std::string text = csv_line({"run_id", "point_id", "phase", "calls", "time_median_s"});
  for (const PhaseRow& row : rows) {
    text += csv_line({sweep.run_id, row.point_id, row.phase, std::to_string(row.seconds.size()),
                      csv_number(median(row.seconds))});
  }
  replace_file(sweep.dir + "/phases.csv", text);
}

bool phases_written(const Sweep& sweep) {
  return std::filesystem::exists(sweep.dir + "/phases.csv");
}

std::optional<double> roof_value(const RunState& state, const Roof& roof) {
  const auto found = state.roof_samples.find(roof_id(roof));
  if (found == state.roof_samples.end() || found->second.empty()) return std::nullopt;
  return *std::max_element(found->second.begin(), found->second.end());
}

void write_run_json(const Sweep& sweep, const RunState& state, std::string_view ending) {
  json run;
  run["schema_version"] = schema_version;
  run["run_id"] = sweep.run_id;
  run["argv"] = sweep.argv;
  run["started_utc"] = sweep.started_utc;
  run["finished_utc"] = ending == "finished" ? json(utc_now()) : json(nullptr);
  run["interrupted"] = ending != "finished";  // also while it goes on: a kill leaves it so
  run["build_id"] = ATTN_BUILD_ID;
  run["source_id"] = ATTN_SOURCE_ID;
  run["env_id"] = env_id(sweep.machine);
  run["git_sha"] = ATTN_GIT_SHA;
  run["git_dirty"] = ATTN_GIT_DIRTY;
  run["machine"] = to_json(sweep.machine);
  run["machine"]["limits"] = {{"mem_limit_bytes", sweep.options.mem_limit_bytes}};
  json flags = json::object();
  for (const FolderFlags& folder : folder_flags()) flags[folder.folder] = folder.flags;
  flags["harness"] = ATTN_HARNESS_FLAGS;
  run["compiler"] = {
      {"toolchain", ATTN_TOOLCHAIN}, {"flags", flags}, {"libraries", ATTN_LIBRARIES}};
  // What a worker loads, and what the device is, comes from the workers: asking here would start
  // the driver before a fork.
  const auto own = thread_runtimes();
  std::set<std::string> runtimes(own.begin(), own.end());
  run["cuda"] = {{"toolkit", ATTN_CUDA_VERSION}};
  constexpr std::string_view of_device = "device_";
  for (const auto& [id, point] : state.points) {
    for (const auto& [process, check] : point.checks) {
      for (const auto& [key, value] : check.detail.items()) {
        if (key.starts_with(of_device)) run["cuda"][key.substr(of_device.size())] = value;
      }
      std::istringstream names(check.detail.value("thread_runtimes", ""));
      for (std::string name; names >> name;) runtimes.insert(name);
    }
  }
  run["thread_runtimes"] = runtimes;
  const auto blas = blas_info();
  run["blas"] = blas ? to_json(*blas) : json(nullptr);
  run["roofs"] = json::array();
  for (const Roof& roof : roofs_of(sweep)) {
    const auto value = roof_value(state, roof);
    if (!value) continue;
    if (roof.memory == Memory::device) {
      run["cuda"][fmt::format("{}_{}", name(roof.kind), unit(roof.kind))] = *value;
      continue;
    }
    run["roofs"].push_back({{"kind", name(roof.kind)},
                            {"dtype", name_of(roof.dtype)},
                            {"threads", roof.threads},
                            {"value", *value},
                            {"unit", unit(roof.kind)},
                            {"samples", state.roof_samples.at(roof_id(roof)).size()}});
  }
  std::vector<double> widths;
  each_row(sweep, state, [&](const Row& row) {
    if (const auto width = row.time ? relative_half_width(row.times) : std::nullopt) {
      widths.push_back(*width);
    }
  });
  if (!widths.empty()) {
    run["noise"] = {{"median_half_width", median(widths)},
                    {"largest_half_width", quantile(widths, 1)}};
  }
  replace_file(sweep.dir + "/run.json",
               run.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

json google_benchmark_json(const Sweep& sweep, const RunState& state) {
  json document;
  document["context"] = {{"date", sweep.started_utc},
                         {"executable", "attnbench"},
                         {"num_cpus", sweep.machine.cpus.size()},
                         {"library_build_type", "release"}};
  document["benchmarks"] = json::array();
  each_row(sweep, state, [&](const Row& row) {
    json entry = {{"name", row.point.label()},
                  {"run_name", row.point.label()},
                  {"run_type", "iteration"},
                  {"repetitions", 1},
                  {"threads", 1}};
    if (row.time) {
      entry["iterations"] = row.times.size();
      entry["real_time"] = *row.time * 1e9;
      entry["cpu_time"] = *row.time * 1e9;
      entry["time_unit"] = "ns";
    } else {
      entry["error_occurred"] = true;
      entry["error_message"] =
          row.state.finish ? row.state.finish->detail.value("reason", "") : std::string();
    }
    document["benchmarks"].push_back(entry);
  });
  return document;
}

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

}  // namespace attn
