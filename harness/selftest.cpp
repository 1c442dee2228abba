// SPDX-License-Identifier: MIT
// attnbench selftest: dishonest backends through the pipeline of `run`, beside honest ones.
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>

#include "harness/command.hpp"
#include "harness/liars/honest.hpp"
#include "harness/machine.hpp"
#include "harness/results.hpp"
#include "harness/supervisor.hpp"
#include "harness/text.hpp"

namespace attn {
namespace {

// Signals wait until the folder is gone; run_sweep, which waits for them, says when one has come.
class FolderForNow {
 public:
  FolderForNow() {
    std::error_code error;
    const auto place = std::filesystem::temp_directory_path(error);
    if (error) file_error("TMPDIR names no folder; set it to one that can be written");
    path_ = (place / "attnbench-selftest-XXXXXX").string();
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, &before_);
    if (mkdtemp(path_.data()) == nullptr) {
      const int reason = errno;
      sigprocmask(SIG_SETMASK, &before_, nullptr);
      file_error(fmt::format("cannot create a folder like {}: {}; TMPDIR names another place",
                             path_, std::strerror(reason)));
    }
  }
  ~FolderForNow() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  FolderForNow(const FolderForNow&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  sigset_t before_{};
};

// A point to be, and the lie it tells; a control tells none.
struct Trial {
  std::string_view name;
  Entry* entry;
  Problem problem;
  const Liar* liar = nullptr;
  Safeguard rule = Safeguard::reference_rows;  // that is to catch it
  Safeguard found_by = rule;
};

// Owns what points refer to.
struct Cast {
  std::deque<std::string> names;
  std::deque<Entry> entries;
  std::vector<Trial> trials;

  Entry* add(const std::string& name, Backend backend) {
    backend.name = names.emplace_back(name);
    return &entries.emplace_back(Entry{backend.name, {}, backend});
  }
};

std::string at(const Problem& p) {
  return fmt::format("{}n = {}", p.scope == Scope::layer ? "layer, " : "", p.n_q);
}

Cast choose(const std::vector<std::string>& only) {
  std::vector<std::string> names;
  for (const NamedLiar& liar : liars()) names.emplace_back(liar.name);
  for (const std::string& glob : only) {
    if (std::none_of(names.begin(), names.end(),
                     [&](const auto& name) { return matches_glob(glob, name); }))
      usage_error(fmt::format("--only: no liar is called \"{}\"; the nearest is {}", glob,
                              nearest(glob, names)));
  }
  Cast cast;
  bool layer = false;
  bool recurrence = false;
  for (const NamedLiar& named : liars()) {
    const std::string_view name = named.name;
    const Liar& liar = named.liar;
    const bool chosen =
        only.empty() || std::any_of(only.begin(), only.end(),
                                    [&](const auto& glob) { return matches_glob(glob, name); });
    if (!chosen) continue;
    Entry* entry = cast.add(fmt::format("liar.{}", name), liar.backend);
    for (const Liar::Lie& lie : liar.lies) {
      cast.trials.push_back(
          {name, entry, lie.problem, &liar, lie.caught_by, lie.found_by.value_or(lie.caught_by)});
      const bool in_heads = has_heads(liar.backend.family);
      layer = layer || (in_heads && lie.problem.scope == Scope::layer);
      recurrence = recurrence || !in_heads;
    }
  }
  Entry* control = cast.add("control.attention", honest::backend(honest::run));
  cast.trials.push_back({"control", control, honest::problem(128)});
  if (layer) cast.trials.push_back({"control", control, honest::layer_problem(64)});
  if (recurrence) {
    const auto run = [](const Problem& p, const Io& io, void*, void*) {
      honest::run_rnn(p, io, 0, 0);
    };
    cast.trials.push_back(
        {"control", cast.add("control.rnn", honest::rnn(run)), honest::recurrence_problem(96, 32)});
  }
  return cast;
}

Safeguard rule_called(const std::string& name) {
  std::vector<std::string> names;
  for (const SafeguardInfo& info : safeguards) {
    if (info.name == name) return info.rule;
    names.emplace_back(info.name);
  }
  usage_error(fmt::format("--without: no rule is called \"{}\"; the nearest is {}", name,
                          nearest(name, names)));
}

std::string rules_text() {
  std::string text = "Rules:\n";
  for (const SafeguardInfo& info : safeguards) {
    text += fmt::format("  {:<17} {}\n", info.name, info.catches);
  }
  return text +
         "Exit code 0 when every liar was caught and every control was ok, 1 when not, 2 usage.\n"
         "Example: attnbench selftest --only keeps_v --without guard-value";
}

Sweep plan(const Cast& cast, const Safeguards& rules, const std::string& dir, bool quiet) {
  Sweep sweep;
  sweep.machine = read_machine();
  sweep.dir = dir;
  sweep.run_id = "selftest";
  sweep.started_utc = utc_now();
  sweep.quiet = quiet;
  sweep.options.max_samples = 4;
  sweep.options.phases = false;
  sweep.options.mem_limit_bytes = default_mem_limit();
  sweep.options.rules = rules;
  for (const Trial& trial : cast.trials) {
    Point point{.entry = trial.entry, .problem = trial.problem};
    name_point(point);
    sweep.points.push_back(std::move(point));
  }
  return sweep;
}

struct Tally {
  std::vector<std::string> passed;  // liars
  std::vector<std::string> failed;  // controls, and liars that could not be tried
  int caught = 0;
  int skipped = 0;
};

void judge(const Trial& trial, const PointState& state, const Safeguards& rules, bool quiet,
           Tally& tally) {
  const Status status = state.status();
  const std::string rule = state.finish->detail.value("rule", "");
  const std::string reason = state.finish->detail.value("reason", "");
  const std::string name = fmt::format("{} ({})", trial.name, at(trial.problem));
  const std::string said = fmt::format("{}{}{}{}{}", name_of(status), rule.empty() ? "" : ", ",
                                       rule, reason.empty() ? "" : ": ", reason);
  std::string verdict;
  bool bad = true;
  if (trial.liar == nullptr) {
    bad = status != Status::ok;
    if (bad) tally.failed.push_back(name + " is honest, but was " + said);
  } else if (status == Status::ok) {
    tally.passed.emplace_back(trial.name);
    verdict = fmt::format(", not caught by {}{}", name_of(trial.rule),
                          rules.has(trial.rule) ? "" : ", which is off");
  } else if (status == Status::mismatch || status == Status::mistrusted ||
             status == Status::error || status == Status::timeout) {
    bad = false;
    ++tally.caught;
    if (rules.has(trial.rule) && rule != name_of(trial.found_by)) {
      verdict = fmt::format(" (expected of {})", name_of(trial.rule));
    } else if (rules.has(trial.rule) && trial.found_by != trial.rule) {
      verdict = fmt::format(" (thanks to {})", name_of(trial.rule));
    }
  } else {
    tally.failed.push_back(name + " could not be tried: " + said);
  }
  if (quiet && !bad) return;
  fmt::print("{:<38} {}\n    {}{}\n", name,
             trial.liar == nullptr ? "an honest backend" : trial.liar->says, said, verdict);
}

}  // namespace

Exit command_selftest(const Words& args) {
  std::vector<std::string> only;
  std::string without;
  bool quiet = false;
  CLI::App app{
      "Runs dishonest backends, and honest ones beside them, through the pipeline of `run` and "
      "says\n"
      "which rule caught each. A measurement is worth as much as the liars it catches.",
      "attnbench selftest"};
  app.add_option("--only", only, "liars by name, * and ? allowed; separate several by commas")
      ->delimiter(',');
  app.add_option("--without", without, "one rule that is taken away, to see who passes then");
  app.add_flag("--quiet", quiet, "print only what went wrong, and the last line");
  app.footer(rules_text());
  parse(app, args);

  Safeguards rules;
  if (!without.empty()) rules.remove(rule_called(without));
  Cast cast = choose(only);
  Tally tally;
  // Where the kernel does not tell the peak of one call, no rule can be broken.
  if (!reset_peak_rss()) {
    std::erase_if(cast.trials, [&](const Trial& trial) {
      const bool untold = trial.liar != nullptr && trial.rule == Safeguard::memory_peak;
      tally.skipped += untold ? 1 : 0;
      return untold;
    });
  }
  const FolderForNow folder;
  const Sweep sweep = plan(cast, rules, folder.path(), quiet);
  const SweepResult result = run_sweep(sweep, false);
  if (result.code == Exit::interrupted || result.code == Exit::terminated) {
    warn("interrupted; a selftest has to run to its end to say anything");
    return result.code;
  }
  for (std::size_t i = 0; i < cast.trials.size(); ++i) {
    judge(cast.trials[i], result.state.points.at(sweep.points[i].id), rules, quiet, tally);
  }
  for (const std::string& sentence : tally.failed) fmt::print("{}\n", sentence);
  fmt::print("{} lies were caught", tally.caught);
  if (!without.empty()) fmt::print(" without {}", without);
  if (tally.skipped > 0) fmt::print(", {} not tried: the kernel tells no peaks", tally.skipped);
  if (!tally.passed.empty()) {
    fmt::print("; not caught: {}", fmt::join(tally.passed, ", "));
  } else if (tally.failed.empty()) {
    fmt::print(", and the honest backends were ok");
  }
  fmt::print("\n");
  return tally.passed.empty() && tally.failed.empty() ? Exit::good : Exit::wrong;
}

}  // namespace attn
