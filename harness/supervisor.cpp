// SPDX-License-Identifier: MIT
#include "harness/supervisor.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>

#include "harness/results.hpp"
#include "harness/stats.hpp"
#include "harness/worker.hpp"

namespace attn {
namespace {

using Clock = std::chrono::steady_clock;

// Workers that end without having done anything, in a row, before the supervisor gives up.
constexpr int idle_workers_limit = 3;

// These signals are waited for, never handled. A closed terminal (SIGHUP) ends a run like SIGTERM.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set_, signal);
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~Signals() { restore(); }
  void restore() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }

  // The signal that arrived within the time, or 0.
  [[nodiscard]] int wait(std::chrono::milliseconds time) const {
    const timespec limit{time.count() / 1000, (time.count() % 1000) * 1000000};
    const int signal = sigtimedwait(&set_, nullptr, &limit);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

// How often the kernel has killed for want of memory, as far as it tells.
std::int64_t oom_kills() {
  std::ifstream file("/proc/vmstat");
  std::string name;
  for (std::int64_t value = 0; file >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return 0;
}

std::string duration(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  return fmt::format("{:.0f} min {:02.0f} s", std::floor(seconds / 60), std::fmod(seconds, 60));
}

// One line that is rewritten on a terminal, a plain line now and then elsewhere.
class Progress {
 public:
  explicit Progress(const Sweep& sweep) : sweep_(sweep), terminal_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;

  void show(const Board& board, int process) {
    if (sweep_.quiet) return;
    const auto stage = static_cast<Stage>(board.stage.load());
    const int round = board.round;
    const bool news = board.stage != last_stage_ || round != last_round_;
    const auto now = Clock::now();
    if (!terminal_ && !(news && now - last_ > std::chrono::seconds(2)) &&
        now - last_ < std::chrono::seconds(20)) {
      return;
    }
    last_ = now;
    last_stage_ = board.stage;
    last_round_ = round;
    std::string line = fmt::format("[{}] {}", duration(seconds_since_start()), stage_name(stage));
    if (stage == Stage::rounds) line += fmt::format(" {} of {}", round + 1, planned_rounds(round));
    if (board.steps_planned > 0)
      line += fmt::format(", {}/{}", board.steps_done.load(), board.steps_planned.load());
    if (board.seconds_left > 0)
      line += fmt::format(", about {} left", duration(board.seconds_left));
    if (process > 0) line += fmt::format(", process {}", process + 1);
    const std::int64_t point = board.point;
    if (point >= 0 && terminal_) {
      line += fmt::format("  {}", sweep_.points[static_cast<std::size_t>(point)].label());
    }
    if (terminal_) {
      fmt::print(stderr, "\r\x1b[K{:.{}}", line, 119);
    } else {
      fmt::print(stderr, "{}\n", line);
    }
    std::fflush(stderr);
  }

  void clear() const {
    if (terminal_ && !sweep_.quiet) fmt::print(stderr, "\r\x1b[K");
  }

 private:
  [[nodiscard]] double seconds_since_start() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }
  [[nodiscard]] int planned_rounds(int round) const {
    return round < sweep_.options.rounds ? sweep_.options.rounds : sweep_.options.max_samples;
  }

  const Sweep& sweep_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_ - std::chrono::hours(1);
  int last_stage_ = -1;
  int last_round_ = -2;
};

class Supervisor {
 public:
  Supervisor(const Sweep& sweep, bool resume)
      : sweep_(sweep), journal_(sweep.dir + "/samples.csv", sweep.run_id), progress_(sweep) {
    void* memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    board_ = new (memory) Board;
    reload();
    if (resume) reopen();
  }
  ~Supervisor() { munmap(board_, sizeof(Board)); }
  Supervisor(const Supervisor&) = delete;

  SweepResult run() {
    write_run_json(sweep_, state_, "");
    int idle = 0;
    while (work_left() && !interrupted_by_) {
      const std::size_t before = events_;
      supervise_one();
      reload();
      idle = events_ > before ? 0 : idle + 1;
      if (failed_) break;
      if (idle >= idle_workers_limit) {
        if (!points_left()) {
          write_phases(sweep_, {});  // the points are good without them
          continue;
        }
        file_error("the worker ended three times without measuring anything; see the lines above");
      }
    }
    write_results(sweep_, state_);
    write_run_json(sweep_, state_, interrupted_by_ || failed_ ? "interrupted" : "finished");
    SweepResult result{std::move(state_), Exit::good, cost_};
    result.code = failed_                      ? Exit::file
                  : interrupted_by_ == SIGINT  ? Exit::interrupted
                  : interrupted_by_ == SIGTERM ? Exit::terminated
                                               : judge(result.state);
    return result;
  }

 private:
  void reload() {
    const auto events = read_journal(sweep_.dir + "/samples.csv");
    events_ = events.size();
    state_ = replay(events);
  }

  // error, timeout and oom may have been the machine's doing: they, and open offences, start
  // afresh.
  void reopen() {
    for (const Point& point : sweep_.points) {
      PointState& state = state_.points[point.id];
      const bool retry =
          state.finished() && (state.status() == Status::error ||
                               state.status() == Status::timeout || state.status() == Status::oom);
      if (!retry && (state.finished() || state.offences + state.kills == 0)) continue;
      Event event{.point_id = point.id,
                  .kind = Event::Kind::finish,
                  .process = std::max(0, state_.processes - 1)};
      event.detail = {{"status", "resumed"}};
      journal_.append(event);
    }
    reload();
  }

  [[nodiscard]] bool points_left() {
    return std::any_of(sweep_.points.begin(), sweep_.points.end(),
                       [&](const Point& point) { return !state_.points[point.id].finished(); });
  }
  [[nodiscard]] bool work_left() {
    if (points_left()) return true;
    const bool any_ok = std::any_of(
        sweep_.points.begin(), sweep_.points.end(),
        [&](const Point& point) { return state_.points[point.id].status() == Status::ok; });
    return any_ok && sweep_.options.phases && !phases_written(sweep_);
  }

  // Starts a worker, waits for its end and says whose offence that was.
  void supervise_one() {
    const int process = state_.processes;
    new (board_) Board;
    const std::int64_t kills_before = oom_kills();
    const pid_t parent = getpid();
    std::fflush(nullptr);  // or the worker prints the parent's buffers, too
    const pid_t worker = fork();
    if (worker < 0) file_error(fmt::format("cannot start a worker: {}", std::strerror(errno)));
    if (worker == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) std::_Exit(1);
      signal(SIGINT, SIG_IGN);  // a terminal sends it to the whole group; the supervisor decides
      signal(SIGTERM, SIG_DFL);
      signals_.restore();
      std::_Exit(static_cast<int>(work(sweep_, state_, journal_, *board_, process)));
    }
    int status = 0;
    bool hung = false;
    while (waitpid(worker, &status, WNOHANG) == 0) {
      const int signal = signals_.wait(std::chrono::milliseconds(100));
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
        interrupted_by_ = signal == SIGINT ? SIGINT : SIGTERM;
        kill(worker, SIGKILL);
      }
      const std::int64_t deadline = board_->deadline_ns;
      if (!hung && deadline != 0 &&
          Clock::now().time_since_epoch() > std::chrono::nanoseconds(deadline)) {
        hung = true;
        kill(worker, SIGKILL);
      }
      progress_.show(*board_, process);
    }
    journal_.cut_torn_line();
    reload();
    cost_.samples += board_->samples;
    cost_.seconds_in_rounds += board_->seconds_in_rounds;
    cost_.seconds_in_calls += board_->seconds_in_calls;
    if (interrupted_by_) return;
    if (WIFEXITED(status)) {
      const auto exit = static_cast<WorkerExit>(WEXITSTATUS(status));
      failed_ = exit == WorkerExit::failed;
      if (failed_ || exit == WorkerExit::share_done || exit == WorkerExit::offence) return;
    }
    blame(process, status, hung, oom_kills() > kills_before);
  }

  // Whose offence the end of a worker was, and which.
  void blame(int process, int status, bool hung, bool out_of_memory) {
    const std::int64_t index = board_->point;
    if (index < 0) return;
    const Point& point = sweep_.points[static_cast<std::size_t>(index)];
    std::string kind = "crash";
    std::string reason;
    std::optional<Safeguard> rule;
    if (hung) {
      kind = "hang";
      reason = fmt::format("a call did not end within max({} s, 5 x its prediction)",
                           sweep_.options.timeout_s);
    } else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      kind = out_of_memory ? "oom" : "kill";
      reason = out_of_memory ? "killed by the kernel for want of memory"
                             : "the worker was killed (signal 9)";
    } else if (WIFSIGNALED(status) && board_->past_the_end) {
      reason = "crashed: it read or wrote outside a tensor";
      rule = Safeguard::protected_pages;
    } else if (WIFSIGNALED(status)) {
      reason =
          fmt::format("crashed with signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
      reason = fmt::format("ended the process with exit code {}", WEXITSTATUS(status));
    }
    const int round = board_->round;
    record_offence(journal_, state_, point, process,
                   round >= 0 ? std::optional(round) : std::nullopt, kind, reason, rule);
  }

  [[nodiscard]] Exit judge(RunState& state) const {
    bool wrong = false;
    bool noisy = false;
    bool measured = false;
    for (const Point& point : sweep_.points) {
      const PointState& mine = state.points[point.id];
      const Status status = mine.status();
      wrong = wrong || status == Status::mismatch || status == Status::mistrusted ||
              status == Status::error || status == Status::timeout;
      if (status != Status::ok) continue;
      measured = true;
      const auto width = relative_half_width(mine.times());
      noisy = noisy || !width || *width > sweep_.options.max_ci;
    }
    if (wrong) return Exit::wrong;
    if (!measured) return Exit::nothing_measured;
    if (noisy && sweep_.options.max_ci_given) return Exit::noisy;
    return Exit::good;
  }

  const Sweep& sweep_;
  Signals signals_;
  Journal journal_;
  Progress progress_;
  Board* board_ = nullptr;
  RunState state_;
  HarnessCost cost_;
  std::size_t events_ = 0;
  int interrupted_by_ = 0;
  bool failed_ = false;
};

}  // namespace

SweepResult run_sweep(const Sweep& sweep, bool resume) { return Supervisor(sweep, resume).run(); }

}  // namespace attn
