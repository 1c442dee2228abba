// SPDX-License-Identifier: MIT
#include "harness/cli.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "harness/error.hpp"
#include "harness/ranges.hpp"
#include "harness/text.hpp"

namespace attn {
namespace {

constexpr std::int64_t most_rounds = 1000000;

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
E value_of(const std::optional<E>&);
template <class E>
E value_of(const E&);

// The target is one of our enumerations or an optional one.
template <class Target>
void add_word(CLI::App& app, const std::string& name, Target& target, const std::string& help,
              const std::string& group) {
  using E = decltype(value_of(target));
  app.add_option_function<std::string>(
         "--" + name,
         [&target, name](const std::string& text) { target = parse_word<E>("--" + name, text); },
         help)
      ->group(group)
      ->type_name("WORD");
}

void add_count(CLI::App& app, const std::string& name, std::int64_t most,
               const std::function<void(int)>& set, const std::string& help) {
  app.add_option_function<std::string>(
         "--" + name,
         [name, most, set](const std::string& text) {
           set(static_cast<int>(parse_whole("--" + name, text, 1, most)));
         },
         help)
      ->group("Measurement")
      ->type_name("NUMBER");
}

// Items separated by commas; the option may be repeated.
void add_list(CLI::App& app, const std::string& name, std::vector<std::string>& items,
              const std::string& help, const std::string& group, const std::string& type) {
  app.add_option_function<std::vector<std::string>>(
         "--" + name,
         [&items, name](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             for (std::string& item : split(text, ',')) {
               if (item.empty()) {
                 usage_error(
                     fmt::format("--{}: \"{}\" has an empty item; use names like a,b", name, text));
               }
               items.push_back(std::move(item));
             }
           }
         },
         help)
      ->allow_extra_args(false)
      ->group(group)
      ->type_name(type);
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
    // A bare 1 is as likely to mean 1 % as all.
    if (share > 0 && (share < 1 || (share == 1 && parsed->second == "%"))) return share;
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
    const auto whole = [](double bytes) {
      return static_cast<std::int64_t>(std::clamp(bytes, 1.0, 9e18));
    };
    if (parsed->second == "%" && parsed->first <= 100) {
      if (available == 0) return std::numeric_limits<std::int64_t>::max();
      return whole(parsed->first / 100 * static_cast<double>(available));
    }
    for (const auto& [unit, factor] : units) {
      if (parsed->second == unit) return whole(parsed->first * factor);
    }
  }
  usage_error(fmt::format("{}: \"{}\" is no size; use one like 60% (of what is available) or 8G",
                          option, text));
}

void add_run_options(CLI::App& app, RunRequest& request) {
  PlanOptions& plan = request.plan;
  MeasureOptions& measure = request.measure;

  add_list(app, "only", plan.selection.only,
           "backends to measure, as globs: 'cpu.*,blas.gqa' (all but peers)", "Selection", "GLOBS");
  add_list(app, "skip", plan.selection.skip, "backends to leave out, as globs", "Selection",
           "GLOBS");

  add_list(app, "preset", plan.presets, "a sweep or a model's shape; `attnbench list presets`",
           "Axes", "NAMES");
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
  add_axis(app, request, "dtype", "f32, bf16, f16 or several of them (f32)");
  add_axis(app, request, "threads", "a list, or all: the usable cores (all)");
  add_axis(app, request, "causal", "true, false or both (false)");
  add_axis(app, request, "scale", "factor of the scores (1/sqrt(head-dim))");
  add_axis(app, request, "scope", "core: q, k, v -> out; layer: x -> y (core)");
  add_axis(app, request, "regime",
           "prefill: n queries; decode: one query on n cached keys (prefill)");

  add_count(
      app, "min-samples", most_rounds, [&](int count) { measure.min_samples = count; },
      "least samples of a point (3)");
  add_count(
      app, "max-samples", most_rounds, [&](int count) { measure.max_samples = count; },
      "most samples of a point (30)");
  add_share(app, request);
  add_seconds(
      app, "timeout", [&](double s) { measure.timeout_s = s; },
      "a call is hung after this, or after 5 times its prediction (60s)");
  add_seconds(
      app, "cutoff-time", [&](double s) { plan.cutoff_s = s; },
      "do not make calls predicted to take longer (5s; 15s in the Complexity part)");
  app.add_option(
         "--mem-limit", request.mem_limit,
         "do not start what is predicted to need more (60%; of a device only a share counts)")
      ->group("Measurement")
      ->type_name("SIZE");
  add_count(
      app, "rounds", most_rounds, [&](int count) { request.rounds = count; },
      "samples of every point of a fitted curve (6, or 2 per process)");
  add_count(
      app, "processes", 1000, [&](int count) { measure.processes = count; },
      "spread the rounds over this many worker processes (1; 5 for publication)");
  add_word(app, "order", measure.order, "random or block: the order of points in a round",
           "Measurement");
  add_word(
      app, "cache", plan.cache,
      "warm: one or two untimed calls before each; cold: caches flushed (warm; on a device both)",
      "Measurement");
  add_word(app, "input-dist", plan.dist, "normal, uniform or zeros", "Measurement");
  app.add_option_function<std::string>(
         "--seed",
         [&plan](const std::string& text) {
           const char* const end = text.data() + text.size();
           const auto result = std::from_chars(text.data(), end, plan.seed);
           if (result.ec != std::errc{} || result.ptr != end) {
             usage_error(fmt::format(
                 "--seed: \"{}\" is no seed; use a whole number from 0 up to 2^64 - 1", text));
           }
         },
         "seed of inputs, order and choices (1)")
      ->group("Measurement")
      ->type_name("NUMBER");

  app.add_option_function<std::string>(
         "--out",
         [&request](const std::string& text) {
           if (text.empty()) usage_error("--out: \"\" is no folder; use one like out/first");
           request.out = text;
         },
         "folder of the run (out/<UTC time>)")
      ->group("Output")
      ->type_name("DIR");
  app.add_flag("--resume", request.resume, "go on with the run in --out: same machine, same build")
      ->group("Output");
  app.add_option("--tag", request.tags, "k=v, kept in every row; may be repeated")
      ->allow_extra_args(false)
      ->group("Output")
      ->type_name("K=V");
  app.add_flag("--quiet", request.quiet, "no progress")->group("Output");
  app.add_flag("--dry-run", request.dry_run, "print the points and stop")->group("Output");
}

BenchmarkFlags take_benchmark_flags(std::vector<std::string>& args) {
  BenchmarkFlags flags;
  std::vector<std::string> rest;
  std::set<std::string> given;
  for (const std::string& arg : args) {
    if (!arg.starts_with("--benchmark_")) {
      rest.push_back(arg);
      continue;
    }
    const std::size_t equals = arg.find('=');
    const std::string name = arg.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : arg.substr(equals + 1);
    if (!given.insert(name).second)
      usage_error(fmt::format("{} is given twice; give it once", name));
    if (name == "--benchmark_filter" && !value.empty()) {
      flags.filter = value;
    } else if (name == "--benchmark_list_tests" && (arg == name || value == "true")) {
      flags.list_tests = true;
    } else if (name == "--benchmark_list_tests" && value == "false") {
      flags.list_tests = false;
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
          {"--benchmark_filter", "--benchmark_filter=REGEX"},
          {"--benchmark_list_tests", "--benchmark_list_tests=true"},
          {"--benchmark_enable_random_interleaving", "--order random"}};
      const auto found = ours.find(name);
      usage_error(fmt::format("{} is not honoured here; {}", arg,
                              found == ours.end() ? "`attnbench run --help` lists our own options"
                                                  : "use " + found->second));
    }
  }
  args = std::move(rest);
  return flags;
}

void finish_request(RunRequest& request, const Machine& machine) {
  request.plan.most_threads = machine.most_threads();
  request.plan.all_threads = std::min(machine.default_threads(), request.plan.most_threads);
  request.measure.mem_limit_bytes =
      parse_bytes("--mem-limit", request.mem_limit, machine.memory_available_bytes);
  // A limit in bytes is the host's.
  if (request.mem_limit.ends_with('%')) {
    request.measure.device_mem_share = parse_share("--mem-limit", request.mem_limit);
  }
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
  std::set<std::string> keys;
  for (const std::string& tag : request.tags) {
    const bool plain =
        std::all_of(tag.begin(), tag.end(), [](char c) { return c >= ' ' && c <= '~'; });
    // A spreadsheet would execute a cell that begins with =, +, - or @.
    if (!plain || tag.find('=') == std::string::npos || tag.find_first_of("=+-@") == 0 ||
        tag.find(';') != std::string::npos) {
      usage_error(
          fmt::format("--tag: \"{}\" is no tag; use k=v in printable ASCII without semicolons that "
                      "begins with none of + - @",
                      tag));
    }
    if (!keys.insert(tag.substr(0, tag.find('='))).second) {
      usage_error(fmt::format("--tag: {} gives its key a second value; use one", tag));
    }
  }
}

void note_oversubscription(const RunRequest& request, const Machine& machine) {
  const auto threads = request.plan.axes.find("threads");
  if (threads == request.plan.axes.end() || threads->second == "all") return;
  const auto counts = parse_range("--threads", threads->second, 1);
  const std::int64_t wanted = *std::max_element(counts.begin(), counts.end());
  const int most = request.plan.most_threads;
  if (wanted > most) {
    const bool limited = most < static_cast<int>(machine.cpus.size());
    warn(fmt::format("note: --threads {} asks for more than {}; those points run on {}",
                     threads->second,
                     limited ? fmt::format("OMP_THREAD_LIMIT, which is {}", most)
                             : fmt::format("the {} usable CPUs", most),
                     most));
  }
  if (std::min<std::int64_t>(wanted, most) > machine.default_threads()) {
    warn(fmt::format(
        "note: --threads {} shares {} core(s){} between more threads; expect noise",
        threads->second, machine.cores,
        machine.cpu_quota ? fmt::format(" and a quota of {:.3g} CPUs", *machine.cpu_quota) : ""));
  }
}

std::vector<std::string> measuring_arguments(const std::vector<std::string>& args) {
  const std::set<std::string> outputs = {"--out",
                                         "--resume",
                                         "--quiet",
                                         "--benchmark_out",
                                         "--benchmark_out_format",
                                         "--benchmark_format"};
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--out") {
      ++i;
    } else if (!outputs.contains(args[i].substr(0, args[i].find('=')))) {
      rest.push_back(args[i]);
    }
  }
  return rest;
}

}  // namespace attn
