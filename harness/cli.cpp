// SPDX-License-Identifier: MIT
#include "harness/cli.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "harness/error.hpp"
#include "harness/ranges.hpp"

namespace attn {
namespace {

// The number that `text` starts with and what follows it.
std::optional<std::pair<double, std::string>> leading_number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value) || value < 0) return std::nullopt;
  return std::pair{value, std::string(end, text.data() + text.size())};
}

// An axis option keeps its text; the plan parses it, so that presets and options share one grammar.
void add_axis(CLI::App& app, RunRequest& request, const std::string& name,
              const std::string& help) {
  app.add_option_function<std::string>(
         "--" + name, [&request, name](const std::string& text) { request.plan.axes[name] = text; },
         help)
      ->group("Axes")
      ->type_name("VALUES");
}

template <class E>
void add_word(CLI::App& app, const std::string& name, E& target, const std::string& help,
              const std::string& group) {
  app.add_option_function<std::string>(
         "--" + name,
         [&target, name](const std::string& text) {
           const auto value = parse_name<E>(text);
           if (!value) {
             std::string choices;
             for (const auto& [unused, word] : Names<E>::table) choices += fmt::format(" {}", word);
             usage_error(fmt::format("--{}: \"{}\" is none of{}", name, text, choices));
           }
           target = *value;
         },
         help)
      ->group(group)
      ->type_name("WORD");
}

void add_share(CLI::App& app, RunRequest& request) {
  app.add_option_function<std::string>(
         "--max-ci",
         [&request](const std::string& text) {
           request.measure.max_ci = parse_share("--max-ci", text);
           request.measure.max_ci_given = true;
         },
         "stop a point at this half-width of its 95 % interval (2%); a noisier row is exit code 5")
      ->group("Measurement")
      ->type_name("SHARE");
}

void add_seconds(CLI::App& app, const std::string& name, const std::function<void(double)>& set,
                 const std::string& help) {
  app.add_option_function<std::string>(
         "--" + name,
         [name, set](const std::string& text) { set(parse_seconds("--" + name, text)); }, help)
      ->group("Measurement")
      ->type_name("TIME");
}

}  // namespace

double parse_share(const std::string& option, const std::string& text) {
  if (const auto parsed = leading_number(text);
      parsed && (parsed->second == "%" || parsed->second.empty())) {
    const double share = parsed->second == "%" ? parsed->first / 100 : parsed->first;
    if (share > 0 && share <= 1) return share;
  }
  usage_error(fmt::format("{}: \"{}\" is no share; use one like 2% or 0.02", option, text));
}

double parse_seconds(const std::string& option, const std::string& text) {
  constexpr std::array<std::pair<std::string_view, double>, 4> units = {
      {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"m", 60}}};
  if (const auto parsed = leading_number(text); parsed && parsed->first < 1e9) {
    for (const auto& [unit, factor] : units) {
      const double seconds = parsed->first * factor;
      if (parsed->second == unit && seconds > 0) return seconds;
    }
  }
  usage_error(fmt::format("{}: \"{}\" is no time; use one like 5, 5s, 200ms or 2m", option, text));
}

std::int64_t parse_bytes(const std::string& option, const std::string& text,
                         std::int64_t available) {
  constexpr std::array<std::pair<std::string_view, double>, 4> units = {
      {{"", 1}, {"K", 1024.0}, {"M", 1024.0 * 1024}, {"G", 1024.0 * 1024 * 1024}}};
  if (const auto parsed = leading_number(text);
      parsed && parsed->first > 0 && parsed->first < 1e15) {
    if (parsed->second == "%" && parsed->first <= 100) {
      return static_cast<std::int64_t>(parsed->first / 100 * static_cast<double>(available));
    }
    for (const auto& [unit, factor] : units) {
      const double bytes = std::min(parsed->first * factor, 9e18);
      if (parsed->second == unit && bytes >= 1) return static_cast<std::int64_t>(bytes);
    }
  }
  usage_error(fmt::format("{}: \"{}\" is no size; use one like 60% (of what is available) or 8G",
                          option, text));
}

void add_run_options(CLI::App& app, RunRequest& request) {
  PlanOptions& plan = request.plan;
  MeasureOptions& measure = request.measure;

  app.add_option("--only", plan.selection.only, "backends to measure, as globs: 'cpu.*,blas.gqa'")
      ->delimiter(',')
      ->group("Selection")
      ->type_name("GLOBS");
  app.add_option("--skip", plan.selection.skip, "backends to leave out, as globs")
      ->delimiter(',')
      ->group("Selection")
      ->type_name("GLOBS");

  app.add_option("--preset", plan.presets, "a sweep or a model's shape; `attnbench list presets`")
      ->delimiter(',')
      ->group("Axes")
      ->type_name("NAMES");
  add_axis(app, request, "n",
           "tokens, both n_q and n_kv: 128:8192 (doubling), 1024:8192:xsqrt2, 1,17,2k");
  add_axis(app, request, "n-q", "queries, where they differ from n");
  add_axis(app, request, "n-kv", "keys, where they differ from n");
  add_axis(app, request, "batch", "sequences (1)");
  add_axis(app, request, "heads", "query heads (4)");
  add_axis(app, request, "heads-kv", "key and value heads, a divisor of --heads (as many)");
  add_axis(app, request, "head-dim", "elements of a query and key (64)");
  add_axis(app, request, "head-dim-v", "elements of a value (as head-dim)");
  add_axis(app, request, "d-model", "elements of a token, layer scope (heads x head-dim)");
  add_axis(app, request, "output-projection", "true (default) or false: the layer ends with W_O");
  add_axis(app, request, "dtype", "f32, bf16 or f16 (f32)");
  add_axis(app, request, "threads", "a list, or all: the usable cores (all)");
  add_axis(app, request, "causal", "true, false or both (false)");
  add_axis(app, request, "scale", "factor of the scores (1/sqrt(head-dim))");
  add_axis(app, request, "scope", "core: q, k, v -> out; layer: x -> y (core)");
  add_axis(app, request, "regime",
           "prefill: n queries; decode: one query on n cached keys (prefill)");

  app.add_option("--min-samples", measure.min_samples, "least samples of a point (3)")
      ->check(CLI::Range(1, 1000000))
      ->group("Measurement");
  app.add_option("--max-samples", measure.max_samples, "most samples of a point (30)")
      ->check(CLI::Range(1, 1000000))
      ->group("Measurement");
  add_share(app, request);
  add_seconds(
      app, "timeout", [&](double s) { measure.timeout_s = s; },
      "a call is hung after this, or after 5 times its prediction (60s)");
  add_seconds(
      app, "cutoff-time", [&](double s) { plan.cutoff_s = s; },
      "do not make calls predicted to take longer (5s; 15s in the Complexity part)");
  app.add_option("--mem-limit", request.mem_limit,
                 "do not start what is predicted to need more (60%)")
      ->group("Measurement")
      ->type_name("SIZE");
  app.add_option("--rounds", request.rounds,
                 "samples of every point of a fitted curve (6, or 2 per process)")
      ->check(CLI::Range(1, 1000000))
      ->group("Measurement");
  app.add_option("--processes", measure.processes,
                 "spread the rounds over this many worker processes (1; 5 for publication)")
      ->check(CLI::Range(1, 1000))
      ->group("Measurement");
  add_word(app, "order", measure.order, "random or block: the order of points in a round",
           "Measurement");
  add_word(app, "cache", plan.cache,
           "warm: one or two untimed calls before each; cold: caches flushed", "Measurement");
  add_word(app, "input-dist", plan.dist, "normal, uniform or zeros", "Measurement");
  app.add_option_function<std::string>(
         "--seed",
         [&plan](const std::string& text) {
           const char* const end = text.data() + text.size();
           const auto result = std::from_chars(text.data(), end, plan.seed);
           if (result.ec != std::errc{} || result.ptr != end) {
             usage_error(
                 fmt::format("--seed: \"{}\" is no whole number from 0 up to 2^64 - 1", text));
           }
         },
         "seed of inputs, order and choices (1)")
      ->group("Measurement")
      ->type_name("NUMBER");

  app.add_option("--out", request.out, "folder of the run (out/<UTC time>)")->group("Output");
  app.add_flag("--resume", request.resume, "go on with the run in --out: same machine, same build")
      ->group("Output");
  app.add_option("--tag", request.tags, "k=v, kept in every row; may be repeated")->group("Output");
  app.add_flag("--quiet", request.quiet, "no progress")->group("Output");
  app.add_flag("--dry-run", request.dry_run, "print the points and stop")->group("Output");
}

BenchmarkFlags take_benchmark_flags(std::vector<std::string>& args) {
  BenchmarkFlags flags;
  std::vector<std::string> rest;
  for (const std::string& arg : args) {
    if (!arg.starts_with("--benchmark_")) {
      rest.push_back(arg);
      continue;
    }
    const std::size_t equals = arg.find('=');
    const std::string name = arg.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : arg.substr(equals + 1);
    if (name == "--benchmark_filter") {
      flags.filter = value;
    } else if (name == "--benchmark_list_tests") {
      flags.list_tests = value != "false";
    } else if (name == "--benchmark_out" && !value.empty()) {
      flags.out = value;
    } else if ((name == "--benchmark_format" || name == "--benchmark_out_format") &&
               value == "json") {
      flags.json = flags.json || name == "--benchmark_format";
    } else {
      const std::map<std::string, std::string> ours = {
          {"--benchmark_repetitions", "--rounds"},
          {"--benchmark_min_time", "--min-samples"},
          {"--benchmark_format", "results.csv"},
          {"--benchmark_out_format", "results.csv"},
          {"--benchmark_out", "--benchmark_out=FILE"},
          {"--benchmark_enable_random_interleaving", "--order random"}};
      const auto found = ours.find(name);
      usage_error(fmt::format("{} is not honoured here; {}", arg,
                              found == ours.end() ? "`attnbench run --help` lists our own options"
                                                  : "use " + found->second));
    }
  }
  args = rest;
  return flags;
}

void finish_request(RunRequest& request, const Machine& machine) {
  // OMP_THREAD_LIMIT binds the teams of everybody here.
  request.plan.most_threads =
      std::min(static_cast<int>(machine.cpus.size()), omp_get_thread_limit());
  request.plan.all_threads = std::min(machine.default_threads(), request.plan.most_threads);
  request.measure.mem_limit_bytes =
      parse_bytes("--mem-limit", request.mem_limit, machine.memory_available_bytes);
  // Six samples are the least that carry an interval; each of several processes brings two.
  MeasureOptions& measure = request.measure;
  measure.rounds = request.rounds.value_or(measure.processes >= 3 ? 2 * measure.processes : 6);
  if (measure.rounds % measure.processes != 0) {
    usage_error(fmt::format(
        "--rounds: {} cannot be shared out evenly over --processes {}; use a multiple of it",
        measure.rounds, measure.processes));
  }
  if (request.measure.max_samples < request.measure.min_samples) {
    usage_error(fmt::format("--max-samples: {} is less than --min-samples {}; raise it",
                            request.measure.max_samples, request.measure.min_samples));
  }
  for (const std::string& tag : request.tags) {
    const bool plain =
        std::all_of(tag.begin(), tag.end(), [](char c) { return c >= ' ' && c <= '~'; });
    if (!plain || tag.find('=') == std::string::npos || tag.starts_with('=') ||
        tag.find(';') != std::string::npos) {
      usage_error("--tag: a tag is k=v in printable ASCII without semicolons");
    }
  }
  const auto threads = request.plan.axes.find("threads");
  if (threads != request.plan.axes.end() && threads->second != "all") {
    const auto counts = parse_range("--threads", threads->second, 1);
    if (*std::max_element(counts.begin(), counts.end()) > request.plan.most_threads) {
      fmt::print(stderr,
                 "attnbench: note: --threads {} asks for more than the {} usable cores; "
                 "those points run on {}\n",
                 threads->second, request.plan.most_threads, request.plan.most_threads);
    }
  }
}

std::vector<std::string> measuring_arguments(const std::vector<std::string>& args) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--out") {
      ++i;
    } else if (args[i] != "--resume" && args[i] != "--quiet" && !args[i].starts_with("--out=")) {
      rest.push_back(args[i]);
    }
  }
  return rest;
}

}  // namespace attn
