// SPDX-License-Identifier: MIT
// The options of `run` and `compare`, from words to values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/plan.hpp"
#include "harness/sweep.hpp"

namespace CLI {
class App;
}

namespace attn {

// Google Benchmark's own flags that are honoured.
struct BenchmarkFlags {
  std::optional<std::string> filter;  // regular expression over point labels
  bool list_tests = false;
  bool json = false;               // --benchmark_format=json: on stdout, instead of the summary
  std::optional<std::string> out;  // --benchmark_out: the same into a file
};

struct RunRequest {
  PlanOptions plan;
  MeasureOptions measure;
  std::string mem_limit = "60%";
  std::optional<int> rounds;
  std::optional<std::string> out;
  std::vector<std::string> tags;
  bool resume = false;
  bool quiet = false;
  bool dry_run = false;
  BenchmarkFlags benchmark;
};

// Adds the options to `app`; the request is complete after app.parse() and finish_request().
void add_run_options(CLI::App& app, RunRequest& request);

// Takes --benchmark_* flags out of `args`; throws CommandError (usage) for those not honoured.
BenchmarkFlags take_benchmark_flags(std::vector<std::string>& args);

// Fills what depends on the machine: all threads, the memory limit.
void finish_request(RunRequest& request, const Machine& machine);

// Says on stderr when --threads asks for more than there is.
void note_oversubscription(const RunRequest& request, const Machine& machine);

// The arguments of a run that decide what is measured: without those that say where it goes or what
// is printed. Nor do paths of the machine belong into run.json, which keeps them.
std::vector<std::string> measuring_arguments(const std::vector<std::string>& args);

// "2%" or "0.02" (1 may mean either: only as 1% or 100%); "5", "5s", "200ms" or "2m"; "60%" of what is
// available (0: unknown, then there is no limit), or "8G".
double parse_share(const std::string& option, const std::string& text);
double parse_seconds(const std::string& option, const std::string& text);
std::int64_t parse_bytes(const std::string& option, const std::string& text,
                         std::int64_t available);

}  // namespace attn
