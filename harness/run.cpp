// SPDX-License-Identifier: MIT
#include "harness/run.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <filesystem>
#include <map>
#include <regex>

#include "generated/identity.hpp"
#include "harness/csv.hpp"
#include "harness/results.hpp"
#include "harness/supervisor.hpp"
#include "harness/text.hpp"

namespace attn {
namespace {

void filter_points(std::vector<Point>& points, const std::string& pattern) {
  // As Google Benchmark reads it: a minus in front keeps what does not match.
  const bool inverted = pattern.starts_with('-');
  try {
    const std::regex expression(pattern.substr(inverted ? 1 : 0));
    std::erase_if(points, [&](const Point& point) {
      return std::regex_search(point.label(), expression) == inverted;
    });
  } catch (const std::regex_error&) {
    usage_error(fmt::format(
        "--benchmark_filter: \"{}\" is no regular expression; use one like 'gqa.*n:128/'",
        pattern));
  }
  if (points.empty()) {
    usage_error(fmt::format(
        "--benchmark_filter: no point matches \"{}\"; --benchmark_list_tests names them", pattern));
  }
}

RunRequest parse_run(Words args) {
  RunRequest request;
  request.benchmark = take_benchmark_flags(args);
  CLI::App app{
      "Checks every chosen backend against a float64 reference, times it and writes CSV.\n"
      "Without axes it is the default sweep; with any it is one grid of the given axes.",
      "attnbench run"};
  add_run_options(app, request);
  app.footer(
      "Example: attnbench run --only 'cpu.*' --n 128:1k --heads 1 --threads 1 --out out/first\n"
      "Then:    attnplot report out/first\n"
      "Of Google Benchmark: --benchmark_filter=REGEX, --benchmark_list_tests, "
      "--benchmark_format=json\n"
      "and --benchmark_out=FILE.");
  parse(app, args);
  return request;
}

// What run.json says of a run that may be resumed.
struct Record {
  std::string env_id;
  std::string build_id;
  std::string run_id;
  std::string started_utc;
  Words argv;
};

Record read_record(const std::string& path) {
  try {
    const auto json = nlohmann::json::parse(read_file(path));
    return {json.at("env_id"), json.at("build_id"), json.at("run_id"), json.at("started_utc"),
            json.at("argv").get<Words>()};
  } catch (const nlohmann::json::exception&) {
    file_error(fmt::format("{} is not the record of a run", path));
  }
}

}  // namespace

std::string compact_utc() {
  return fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(std::time(nullptr)));
}

Sweep open_run(RunRequest& request, const Words& args) {
  Sweep sweep;
  sweep.machine = read_machine();
  // What is wrong with the words comes before what is wrong with the folder.
  finish_request(request, sweep.machine);
  sweep.points = make_plan(request.plan);
  sweep.argv = measuring_arguments(args);
  sweep.dir = request.out.value_or("out/" + compact_utc());
  sweep.started_utc = utc_now();
  sweep.run_id = fmt::format("{}-{:06x}", compact_utc(),
                             random_bits(static_cast<std::uint64_t>(std::time(nullptr)),
                                         static_cast<std::uint64_t>(getpid())) >>
                                 40);
  const std::string journal = sweep.dir + "/samples.csv";
  const bool has_record = std::filesystem::exists(sweep.dir + "/run.json");
  // Without its record a journal counts as long as it holds anything.
  const bool exists =
      std::filesystem::exists(journal) && (has_record || !read_journal(journal).empty());
  const bool has_results = std::filesystem::exists(sweep.dir + "/results.csv");
  if (request.resume) {
    if (!request.out) usage_error("--resume: say which run with --out DIR");
    if (!exists || !has_record) {
      usage_error(
          fmt::format("--resume: {} holds no run; leave out --resume to start one", sweep.dir));
    }
    const Record stored = read_record(sweep.dir + "/run.json");
    if (stored.env_id != env_id(sweep.machine) || stored.build_id != ATTN_BUILD_ID) {
      usage_error(fmt::format(
          "--resume: {} was measured on machine {} with build {}, here they are {} and "
          "{}; start a new run",
          sweep.dir, stored.env_id, stored.build_id, env_id(sweep.machine), ATTN_BUILD_ID));
    }
    if (!sweep.argv.empty() && sweep.argv != stored.argv) {
      usage_error(
          "--resume: the other options differ from those the run was started with; leave them out");
    }
    const RunRequest given = request;
    request = parse_run(stored.argv);
    request.out = given.out;
    request.quiet = given.quiet;
    request.resume = true;
    request.benchmark.out = given.benchmark.out;
    request.benchmark.json = given.benchmark.json;
    finish_request(request, sweep.machine);
    sweep.points = make_plan(request.plan);
    sweep.argv = stored.argv;
    sweep.run_id = stored.run_id;
    sweep.started_utc = stored.started_utc;
  } else if (request.out && (exists || has_results)) {
    usage_error(fmt::format("--out: {} holds a run already; add --resume or choose another folder",
                            sweep.dir));
  }
  note_oversubscription(request, sweep.machine);
  if (request.benchmark.filter) filter_points(sweep.points, *request.benchmark.filter);
  sweep.options = request.measure;
  sweep.seed = request.plan.seed;
  sweep.tags = fmt::format("{}", fmt::join(request.tags, ";"));
  sweep.quiet = request.quiet;
  return sweep;
}

void make_folder(const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) file_error(fmt::format("cannot create the folder {}: {}", dir, error.message()));
}

// A folder named by the time may be there already: a second run of that second, a clock set back.
std::string make_folder_of_its_own(const std::string& wanted) {
  make_folder(std::filesystem::path(wanted).parent_path());
  std::string dir = wanted;
  for (int number = 2;; ++number) {
    std::error_code error;
    if (std::filesystem::create_directory(dir, error)) return dir;
    if (error) file_error(fmt::format("cannot create the folder {}: {}", dir, error.message()));
    dir = fmt::format("{}-{}", wanted, number);
  }
}

void print_summary(const Sweep& sweep, const RunState& state) {
  std::map<std::string_view, int> counts;
  int open = 0;
  for (const Point& point : sweep.points) {
    const auto found = state.points.find(point.id);
    if (found == state.points.end() || !found->second.finished()) {
      ++open;
      continue;
    }
    const Status status = found->second.status();
    ++counts[name_of(status)];
    if (status == Status::ok || status == Status::unsupported || status == Status::unavailable)
      continue;
    fmt::print("{:<14} {}: {}\n", name_of(status), point.label(),
               found->second.finish->detail.value("reason", ""));
  }
  std::string text;
  for (const auto& [status, count] : counts) text += fmt::format(", {} {}", count, status);
  if (open > 0) text += fmt::format(", {} not finished", open);
  fmt::print("{} points{}\n{}/results.csv\n", sweep.points.size(), text, sweep.dir);
}

Exit command_run(const Words& args) {
  RunRequest request = parse_run(args);
  Sweep sweep = open_run(request, args);
  if (request.benchmark.list_tests) {
    for (const Point& point : sweep.points) fmt::print("{}\n", point.label());
    return Exit::good;
  }
  if (request.dry_run) {
    for (const Point& point : sweep.points) {
      fmt::print("{}  {}{}\n", point.id, point.label(), point.fitted ? "  fitted" : "");
    }
    fmt::print("{} points\n", sweep.points.size());
    return Exit::good;
  }
  if (request.benchmark.out)
    overwrite_file(*request.benchmark.out, "");  // now, not after the sweep
  if (request.out) {
    make_folder(sweep.dir);
  } else {
    sweep.dir = make_folder_of_its_own(sweep.dir);
  }
  const SweepResult result = run_sweep(sweep, request.resume);
  if (request.benchmark.json) {
    fmt::print("{}\n", google_benchmark_json(sweep, result.state).dump(2));
  } else {
    print_summary(sweep, result.state);
  }
  if (result.code == Exit::interrupted || result.code == Exit::terminated) {
    warn(fmt::format(
        "interrupted; what was measured is kept, go on with `attnbench run --resume --out {}`",
        shell_word(sweep.dir)));
  }
  // Last: it may fail, and a file that could not be written wins over all that is known by now.
  if (request.benchmark.out) {
    overwrite_file(*request.benchmark.out,
                   google_benchmark_json(sweep, result.state).dump(2) + "\n");
  }
  return result.code;
}

}  // namespace attn
