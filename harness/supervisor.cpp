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
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <set>
#include <utility>

#include "harness/results.hpp"
#include "harness/stats.hpp"
#include "harness/worker.hpp"

namespace attn {
namespace {

using Clock = std::chrono::steady_clock;

// Workers that end without having done anything, in a row, before the supervisor gives up.
constexpr int idle_workers_limit = 3;
constexpr std::chrono::milliseconds poll_interval{100};

// The worker's own, for its signal handler.
Board* board_of_worker = nullptr;

// SIGINT, SIGTERM, SIGHUP (a closed terminal) and SIGCHLD are waited for, never handled. A pipe that
// nobody reads any more is no reason to end a run.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGCHLD);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction before {};
      sigaction(number, nullptr, &before);
      if (before.sa_handler != SIG_IGN) sigaddset(&set_, number);  // nohup means what it says
    }
    sigprocmask(SIG_BLOCK, &set_, &before_);
    pipe_before_ = signal(SIGPIPE, SIG_IGN);
    child_before_ = signal(SIGCHLD, SIG_DFL);  // whoever ignores it never hears how a child ended
  }
  ~Signals() {
    signal(SIGPIPE, pipe_before_);
    signal(SIGCHLD, child_before_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;

  // In the worker. The supervisor alone decides on a signal that the whole group gets. After a stop
  // the call under way has no honest time: the worker ends before it can record one.
  void become_worker(Board& board) const {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_IGN);
    board_of_worker = &board;
    signal(SIGCONT, [](int) {
      board_of_worker->stopped = true;
      std::_Exit(static_cast<int>(WorkerExit::share_done));
    });
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

  // The signal that arrived within the time, or 0.
  [[nodiscard]] int wait(std::chrono::milliseconds time) const {
    const timespec limit{time.count() / 1000, (time.count() % 1000) * 1000000};
    const int signal = sigtimedwait(&set_, nullptr, &limit);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
  sighandler_t pipe_before_{};
  sighandler_t child_before_{};
};

// Whether the call under way has outlived its deadline. Time in which the worker was stopped, or
// nobody looked because this process was stopped itself (Ctrl-Z stops both), does not count.
class Patience {
 public:
  // To be asked about once every poll_interval.
  bool over(std::int64_t deadline_ns, bool stopped) {
    const auto now = Clock::now();
    const auto since = now - std::exchange(looked_, now);
    if (deadline_ns_ != deadline_ns) granted_ = {};
    deadline_ns_ = deadline_ns;
    granted_ += stopped ? since : std::max(since - poll_interval, Clock::duration{});
    return deadline_ns != 0 &&
           now.time_since_epoch() > std::chrono::nanoseconds(deadline_ns) + granted_;
  }

 private:
  Clock::time_point looked_ = Clock::now();
  Clock::duration granted_{};  // to the call with this deadline
  std::int64_t deadline_ns_ = 0;
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

bool can_erase_lines() {
  const char* terminal = std::getenv("TERM");
  return terminal == nullptr || std::string_view(terminal) != "dumb";
}

// One line that is rewritten on a terminal, a plain line now and then elsewhere.
class Progress {
 public:
  explicit Progress(const Sweep& sweep)
      : sweep_(sweep), terminal_(isatty(STDERR_FILENO) == 1 && can_erase_lines()) {}
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
    line = terminal_ ? fmt::format("\r\x1b[K{:.{}}", line, 119) : line + "\n";
    std::fputs(line.c_str(), stderr);  // fmt::print would throw when nobody reads it any more
    std::fflush(stderr);
  }

  void clear() const {
    if (terminal_ && !sweep_.quiet) std::fputs("\r\x1b[K", stderr);
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
    const std::string journal = sweep.dir + "/samples.csv";
    reload([&](std::size_t line, const std::string& why) {
      warn(fmt::format("{}:{}: {}; it is left out", journal, line, why));
    });
    if (resume && events_ == 0) warn(journal + " holds no samples; all are measured anew");
    if (!resume && events_ > 0) {  // it ended between the first look at the folder and the lock
      usage_error(fmt::format("--out: {} holds a run already; choose another folder", sweep.dir));
    }
    if (resume) reopen();
  }
  ~Supervisor() { munmap(board_, sizeof(Board)); }
  Supervisor(const Supervisor&) = delete;

  SweepResult run() {
    write_run_json(sweep_, state_, "");
    try {
      measure();
      journal_.sync();
      write_results(sweep_, state_);
      write_run_json(sweep_, state_, work_left() ? "interrupted" : "finished");
    } catch (const CommandError& error) {
      progress_.clear();
      throw CommandError(error.code(), fmt::format("{}; what was measured before is kept, "
                                                   "`--resume` goes on",
                                                   error.what()));
    }
    const bool interrupted = this->interrupted();  // also while the last files were written
    SweepResult result{std::move(state_), Exit::good, cost_};
    result.code = !interrupted                ? judge(result.state)
                  : interrupted_by_ == SIGINT ? Exit::interrupted
                                              : Exit::terminated;
    return result;
  }

 private:
  void measure() {
    int idle = 0;
    while (work_left() && !interrupted()) {
      const std::size_t before = events_;
      const bool stopped = supervise_one();
      reload();
      idle = events_ > before || stopped ? 0 : idle + 1;
      if (idle < idle_workers_limit) continue;
      if (points_left()) file_error("the worker ended three times without measuring anything");
      write_phases(sweep_, {});  // the points are good without them
    }
  }

  void reload(const LeftOut& left_out = {}) {
    const auto events = read_journal(sweep_.dir + "/samples.csv", left_out);
    events_ = events.size();
    state_ = replay(events);
  }

  // Whether somebody wants the run to end.
  bool interrupted() {
    while (const int signal = signals_.wait(std::chrono::milliseconds(0))) note(signal);
    return interrupted_by_ != 0;
  }
  void note(int signal) {
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) interrupted_by_ = signal;
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

  // Starts a worker, waits for its end and says whose offence that was. True: it had been stopped.
  bool supervise_one() {
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
      signals_.become_worker(*board_);
      std::_Exit(static_cast<int>(work(sweep_, state_, journal_, *board_, process)));
    }
    int status = 0;
    bool stopped = false;
    bool hung = false;
    Patience patience;
    while (true) {
      if (waitpid(worker, &status, WNOHANG | WUNTRACED | WCONTINUED) == worker) {
        if (WIFEXITED(status) || WIFSIGNALED(status)) break;
        stopped = WIFSTOPPED(status);
      }
      note(signals_.wait(poll_interval));
      hung = patience.over(board_->deadline_ns, stopped) || hung;
      if (interrupted_by_ || hung) kill(worker, SIGKILL);
      progress_.show(*board_, process);
    }
    progress_.clear();
    const auto exit = static_cast<WorkerExit>(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    if (exit == WorkerExit::failed) file_error(board_->failure.data());
    journal_.cut_torn_line();
    reload();
    cost_.samples += board_->samples;
    cost_.seconds_in_rounds += board_->seconds_in_rounds;
    cost_.seconds_in_calls += board_->seconds_in_calls;
    const bool blameless = exit == WorkerExit::share_done || exit == WorkerExit::offence;
    if (!blameless && !interrupted()) blame(process, status, hung, oom_kills() > kills_before);
    return board_->stopped;
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
    std::set<Exit> happened = {Exit::nothing_measured};
    for (const Point& point : sweep_.points) {
      const PointState& mine = state.points[point.id];
      const Status status = mine.status();
      if (status == Status::mismatch || status == Status::mistrusted || status == Status::error ||
          status == Status::timeout) {
        happened.insert(Exit::wrong);
      }
      if (status != Status::ok) continue;
      happened.erase(Exit::nothing_measured);
      const auto width = relative_half_width(mine.times());
      const bool noisy = !width || *width > sweep_.options.max_ci;
      if (noisy && sweep_.options.max_ci_given) happened.insert(Exit::noisy);
    }
    return exit_of(happened);
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
};

}  // namespace

SweepResult run_sweep(const Sweep& sweep, bool resume) { return Supervisor(sweep, resume).run(); }

}  // namespace attn
