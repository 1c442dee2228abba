// SPDX-License-Identifier: MIT
// attnbench: the command line.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "generated/identity.hpp"
#include "harness/cli.hpp"
#include "harness/compare.hpp"
#include "harness/csv.hpp"
#include "harness/error.hpp"
#include "harness/list.hpp"
#include "harness/results.hpp"
#include "harness/supervisor.hpp"

namespace attn {
namespace {

using Words = std::vector<std::string>;

std::string compact_utc() {
  return fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(std::time(nullptr)));
}

void filter_points(std::vector<Point>& points, const std::string& pattern) {
  try {
    const std::regex expression(pattern);
    std::erase_if(
        points, [&](const Point& point) { return !std::regex_search(point.label(), expression); });
  } catch (const std::regex_error&) {
    usage_error(fmt::format("--benchmark_filter: \"{}\" is no regular expression", pattern));
  }
  if (points.empty()) {
    usage_error(fmt::format(
        "--benchmark_filter: no point matches \"{}\"; --benchmark_list_tests names them", pattern));
  }
}

// Parses; --help prints the text and ends the command well.
struct HelpShown {};
void parse(CLI::App& app, Words args) {
  std::reverse(args.begin(), args.end());
  try {
    app.parse(std::move(args));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    throw HelpShown{};
  } catch (const CLI::ParseError& error) {
    std::string sentence = error.what();
    std::replace(sentence.begin(), sentence.end(), '\n', ' ');
    usage_error(fmt::format("{}; `{} --help` lists the options", sentence, app.get_name()));
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
      "Then:    attnplot report out/first");
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

// Opens the run's folder: fresh, or with --resume the one that is there, whose arguments then
// count.
Sweep open_run(RunRequest& request, const Words& args) {
  Sweep sweep;
  sweep.machine = read_machine();
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
    sweep.argv = stored.argv;
    sweep.run_id = stored.run_id;
    sweep.started_utc = stored.started_utc;
  } else if (exists || has_results) {
    usage_error(fmt::format("--out: {} holds a run already; add --resume or choose another folder",
                            sweep.dir));
  }
  finish_request(request, sweep.machine);
  sweep.points = make_plan(request.plan);
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
  make_folder(sweep.dir);
  const SweepResult result = run_sweep(sweep, request.resume);
  if (request.benchmark.out) {
    overwrite_file(*request.benchmark.out,
                   google_benchmark_json(sweep, result.state).dump(2) + "\n");
  }
  if (request.benchmark.json) {
    fmt::print("{}\n", google_benchmark_json(sweep, result.state).dump(2));
  } else {
    print_summary(sweep, result.state);
  }
  if (result.code == Exit::interrupted || result.code == Exit::terminated) {
    fmt::print(stderr,
               "attnbench: interrupted; what was measured is kept, go on with `attnbench run "
               "--resume --out {}`\n",
               sweep.dir);
  }
  return result.code;
}

Exit command_compare(const Words& args) {
  RunRequest request;
  std::string a;
  std::string b;
  std::string threshold_text = "2%";
  std::string fail_on;
  CLI::App app{
      "Times two backends on the same problems in the same rounds and pairs them:\n"
      "the ratio is time of A over time of B, its interval comes from the rounds' ratios.",
      "attnbench compare"};
  app.add_option("A", a, "backend")->required();
  app.add_option("B", b, "backend it is held against")->required();
  add_run_options(app, request);
  app.add_option("--threshold", threshold_text, "differences below this are undecided (2%)");
  app.add_option("--fail-on", fail_on, "slower: exit with 3 when A is slower anywhere")
      ->check(CLI::IsMember({"slower"}));
  parse(app, args);
  if (!request.plan.selection.only.empty() || !request.plan.selection.skip.empty()) {
    usage_error("compare takes its two backends by name; leave out --only and --skip");
  }
  const int processes = request.measure.processes;
  if (!request.rounds) request.rounds = (20 + processes - 1) / processes * processes;
  if (request.resume || request.dry_run)
    usage_error("compare takes neither --resume nor --dry-run");
  for (const std::string& name : {a, b}) entry_called("compare", name);
  if (a == b) usage_error(fmt::format("compare: A and B are both {}; name two backends", a));
  const double threshold = parse_share("--threshold", threshold_text);
  if (request.plan.axes.empty() && request.plan.presets.empty())
    request.plan.axes["n"] = "128,512,2048";
  const bool keep = request.out.has_value();
  if (!keep) request.out = fmt::format("out/compare-{}-{}", compact_utc(), getpid());

  // A first: compare_points takes the first point's backend for A.
  request.plan.selection.only = {a};
  Sweep sweep = open_run(request, args);
  request.plan.selection.only = {b};
  std::vector<Point> others = make_plan(request.plan);
  sweep.points.insert(sweep.points.end(), others.begin(), others.end());
  for (Point& point : sweep.points) point.fitted = true;  // every round, so that rounds pair up
  sweep.options.phases = false;
  make_folder(sweep.dir);
  const SweepResult result = run_sweep(sweep, request.resume);

  const auto comparisons = compare_points(sweep, result.state, threshold);
  fmt::print("{:<52} {:>11} {:>11} {:>9} {:>18}  {}\n", "problem", "A, s", "B, s", "A/B",
             "95 % interval", "A is");
  bool slower = false;
  for (const Comparison& c : comparisons) {
    fmt::print("{:<52} {:>11.4g} {:>11.4g} {:>9.3f} {:>18}  {}\n", c.label, c.seconds_a,
               c.seconds_b, c.ratio,
               c.ratio_lo > 0 ? fmt::format("[{:.3f}, {:.3f}]", c.ratio_lo, c.ratio_hi) : "none",
               c.verdict);
    slower = slower || c.verdict == "slower";
  }
  const auto threads_of = [&](const std::string& name) {
    std::set<int> counts;
    for (const Point& point : sweep.points) {
      if (point.entry->name == name) counts.insert(point.problem.threads);
    }
    return fmt::format("{} on {} thread(s)", name, fmt::join(counts, ", "));
  };
  fmt::print("A = {}, B = {}; {} rounds, threshold {:.1f} %\n", threads_of(a), threads_of(b),
             sweep.options.rounds, 100 * threshold);
  if (comparisons.empty() || result.code != Exit::good) print_summary(sweep, result.state);
  if (!keep && result.code == Exit::good && !comparisons.empty()) {
    std::filesystem::remove_all(sweep.dir);
  }
  const bool interrupted = result.code == Exit::interrupted || result.code == Exit::terminated;
  if (interrupted || result.code == Exit::file || result.code == Exit::wrong) return result.code;
  if (slower && fail_on == "slower") return Exit::regression;
  return comparisons.empty() ? Exit::nothing_measured : result.code;
}

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

constexpr std::string_view usage =
    "attnbench measures implementations of attention: checked first, then timed.\n\n"
    "  attnbench list [backends|presets|columns|statuses] [--json]   what exists, what is built, "
    "why not\n"
    "  attnbench run [options]                                       a sweep; `run --help` teaches "
    "it\n"
    "  attnbench compare A B [options]                               faster, slower or undecided\n"
    "  attnbench --version\n\n"
    "Exit codes: 0 good, 1 wrong result, 2 usage, 3 regression, 4 nothing measured, 5 too noisy,\n"
    "6 file trouble, 130 and 143 interrupted (what was measured is kept).\n"
    "attnplot reads what run writes.\n";

Exit dispatch(const Words& words) {
  if (words.empty())
    usage_error("say what to do: list, run or compare; `attnbench --help` explains");
  const Words rest(words.begin() + 1, words.end());
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    fmt::print("{}", usage);
    return Exit::good;
  }
  if (words[0] == "--version") {
    fmt::print("attnbench build {} of commit {}{}\n", ATTN_BUILD_ID, ATTN_GIT_SHA,
               ATTN_GIT_DIRTY ? " with changes" : "");
    return Exit::good;
  }
  if (words[0] == "list") return command_list(rest);
  if (words[0] == "run") return command_run(rest);
  if (words[0] == "compare") return command_compare(rest);
  usage_error(fmt::format("\"{}\" is no command; use list, run or compare", words[0]));
}

}  // namespace
}  // namespace attn

int main(int argc, char** argv) {
  try {
    const auto code = static_cast<int>(attn::dispatch({argv + 1, argv + argc}));
    if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category(), "stdout");
    return code;
  } catch (const attn::HelpShown&) {
    return static_cast<int>(attn::Exit::good);
  } catch (const attn::CommandError& error) {
    fmt::print(stderr, "attnbench: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::system_error& error) {  // a folder that cannot be looked at, a full stdout
    fmt::print(stderr, "attnbench: {}\n", error.what());
    return static_cast<int>(attn::Exit::file);
  } catch (const std::exception& error) {
    fmt::print(stderr, "attnbench: {}\n", error.what());
    return static_cast<int>(attn::Exit::wrong);
  }
}
