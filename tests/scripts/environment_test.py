# SPDX-License-Identifier: MIT
"""Whatever the environment is, results stay right and run.json says what was in force."""

import contextlib
import json
import os
import pty
import resource
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from attnplot.table import load
from binary import Ended, attnbench, binary, environment, german_locale, rows

# Two backends, one of them threaded; a second on a quiet machine.
TINY = ["--only", "cpu.naive,blas.three_step", "--n", "48", "--heads", "2"]
TINY += ["--min-samples", "3", "--max-samples", "3", "--quiet"]


def machine(folder: Path) -> dict[str, Any]:
    """What run.json says of the machine."""
    answer: dict[str, Any] = json.loads((folder / "run.json").read_text())["machine"]
    return answer


# What other programs alone can do to a right result: one closing call after the other is slow.
SLOWED = "the slowest sample"


def good(folder: Path) -> list[dict[str, str]]:
    """The rows, of which each is right."""
    table = rows(folder)
    assert table
    wrong = [r["status_reason"] for r in table if r["status"] != "ok"]
    assert not [reason for reason in wrong if SLOWED not in reason]
    assert not load(folder).notes
    return table


def run_as(
    cwd: Path,
    arguments: list[str],
    prefix: list[str] | None = None,
    env: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
    code: int = 0,
) -> Ended:
    """attnbench behind another command (`taskset -c 0`), or with a limit set before it starts."""
    done = subprocess.run(
        [*(prefix or []), str(binary()), *arguments],
        cwd=cwd,
        env=environment() if env is None else env,
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        preexec_fn=before,
        timeout=120,
        check=False,
    )
    slowed = code == 0 and done.returncode == 1 and SLOWED in done.stdout
    assert done.returncode == code or slowed, f"{done.returncode}: {done.stdout}{done.stderr}"
    return Ended(done.returncode, done.stdout, done.stderr)


def usable() -> int:
    return len(os.sched_getaffinity(0))


# ---- threads -------------------------------------------------------------------------------------

# (variable, value, the most threads that it leaves)
THREAD_VARIABLES = [
    *[("OMP_NUM_THREADS", value, None) for value in ("banana", "0", "-1", "1", "1000", "1,2,3")],
    *[("OPENBLAS_NUM_THREADS", value, None) for value in ("1", "banana", "0", "1000")],
    *[("GOTO_NUM_THREADS", value, None) for value in ("1", "banana")],
    ("MKL_NUM_THREADS", "1", None),
    ("OMP_THREAD_LIMIT", "1", 1),
    ("OMP_THREAD_LIMIT", "banana", None),
    ("OMP_DYNAMIC", "true", None),
    ("OMP_SCHEDULE", "dynamic,1", None),
    ("OMP_SCHEDULE", "banana", None),
    ("OMP_PROC_BIND", "true", None),
    ("OMP_PROC_BIND", "master", None),
    ("OMP_PLACES", "cores", None),
    ("OMP_PLACES", "banana", None),
    ("OMP_MAX_ACTIVE_LEVELS", "0", None),
    ("OMP_NESTED", "true", None),
    ("GOMP_SPINCOUNT", "0", None),
]


@pytest.mark.parametrize(("variable", "value", "most"), THREAD_VARIABLES)
def test_variables_of_libraries_change_no_point(
    tmp_path: Path, variable: str, value: str, most: int | None
) -> None:
    arguments = ["run", *TINY, "--threads", "2", "--out", "run"]
    ended = run_as(tmp_path, arguments, env=environment({variable: value}))
    threads = {r["backend"]: int(r["threads"]) for r in good(tmp_path / "run")}
    wanted = min(2, usable(), most or 2)
    assert threads == {"cpu.naive": 1, "blas.three_step": wanted}
    assert machine(tmp_path / "run")["thread_settings"][variable] == value
    assert ("those points run on" in ended.err) is (wanted < 2)
    if most:
        assert variable in ended.err


def busy_threads(cwd: Path, threads: int, env: Mapping[str, str]) -> list[float]:
    """Seconds of processor time of each thread of the worker, the busiest first."""
    arguments = ["run", "--only", "blas.three_step", "--n", "1024", "--heads", "4", "--quiet"]
    arguments += ["--threads", str(threads), "--min-samples", "12", "--max-samples", "12"]
    process = subprocess.Popen(
        [str(binary()), *arguments, "--out", f"threads{threads}"],
        cwd=cwd,
        env=environment(env),
        stdout=subprocess.DEVNULL,
    )
    seconds: dict[str, float] = {}
    while process.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            pid = process.pid
            (worker,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for task in Path(f"/proc/{worker}/task").iterdir():
                fields = (task / "stat").read_text().rpartition(") ")[2].split()
                used = int(fields[11]) + int(fields[12])
                seconds[task.name] = used / os.sysconf("SC_CLK_TCK")
        time.sleep(0.01)
    assert process.returncode == 0
    return sorted(seconds.values(), reverse=True)


@pytest.mark.skipif(usable() < 2, reason="one CPU has no second thread")
@pytest.mark.parametrize("variable", ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"])
def test_threads_is_the_number_that_works(tmp_path: Path, variable: str) -> None:
    # Shares of processor time, not of wall time: other programs do not change who works.
    first, second, *others = busy_threads(tmp_path, 2, {variable: "1"})
    assert second > 0.15 * first, "the second thread did nothing"
    assert sum(others) < 0.1 * first
    first, *others = busy_threads(tmp_path, 1, {variable: "2"})
    assert sum(others) < 0.1 * first, "more than one thread worked"


def test_more_threads_than_cores_are_said_aloud(tmp_path: Path) -> None:
    ended = run_as(tmp_path, ["run", *TINY, "--threads", "1,1000", "--out", "run"])
    assert f"those points run on {usable()}" in ended.err
    found = {int(r["threads"]) for r in good(tmp_path / "run") if r["backend"] != "cpu.naive"}
    assert found == {1, usable()}


def test_one_core_of_affinity(tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    ended = run_as(
        tmp_path,
        ["run", *TINY, "--threads", "2", "--out", "run"],
        before=lambda: os.sched_setaffinity(0, {cpu}),
    )
    assert "those points run on 1" in ended.err
    assert {r["threads"] for r in good(tmp_path / "run")} == {"1"}
    assert machine(tmp_path / "run")["cpus"] == [cpu]
    assert machine(tmp_path / "run")["cores"] == 1


# ---- limits --------------------------------------------------------------------------------------


def limited(which: int, soft: int, hard: int | None = None) -> Callable[[], None]:
    return lambda: resource.setrlimit(which, (soft, soft if hard is None else hard))


@pytest.mark.parametrize(
    ("which", "value"),
    [
        (resource.RLIMIT_NOFILE, 16),
        (resource.RLIMIT_STACK, 128 << 10),
        (resource.RLIMIT_STACK, resource.RLIM_INFINITY),
        (resource.RLIMIT_CORE, 0),
    ],
    ids=["files", "small stack", "unlimited stack", "no core"],
)
def test_a_limit_that_is_not_reached_changes_nothing(
    tmp_path: Path, which: int, value: int
) -> None:
    hard = resource.getrlimit(which)[1]
    if value == resource.RLIM_INFINITY != hard:
        pytest.skip("the hard limit is lower")
    arguments = ["run", *TINY, "--threads", "2", "--out", "run"]
    run_as(tmp_path, arguments, before=limited(which, value, hard))
    good(tmp_path / "run")


def test_no_file_left_to_open_is_said(tmp_path: Path) -> None:
    arguments = ["run", *TINY, "--out", "run"]
    ended = run_as(tmp_path, arguments, before=limited(resource.RLIMIT_NOFILE, 4), code=6)
    assert ended.err.startswith("attnbench: ")
    assert ended.err.count("\n") == 1


def test_a_small_address_space_is_an_answer(tmp_path: Path) -> None:
    # The libraries alone take some 300 MB of addresses, the roofs' buffers four times the cache.
    limit = 3 << 30
    big = ["run", "--only", "cpu.naive", "--n", "32,32k", "--heads", "1", "--quiet"]
    run_as(tmp_path, [*big, "--out", "run"], before=limited(resource.RLIMIT_AS, limit), code=0)
    small, large = rows(tmp_path / "run")
    assert (small["status"], large["status"]) == ("ok", "oom_predicted")
    assert machine(tmp_path / "run")["memory_available_bytes"] < limit
    assert "--mem-limit" in large["status_reason"]


# ---- locale, time, folders -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return german_locale(tmp_path_factory.mktemp("german"))


def test_run_resume_and_compare_across_locales(tmp_path: Path, german: dict[str, str]) -> None:
    given = ["--scale", "0.125", "--timeout", "59.5s"]
    attnbench(tmp_path, "run", *TINY, *given, "--out", "run", env=german)
    assert {r["scale"] for r in good(tmp_path / "run")} == {"0.125"}
    assert machine(tmp_path / "run")["numeric_locale"] == "C"
    before = (tmp_path / "run/results.csv").read_text()
    for env in ({"LC_ALL": "C"}, german):
        (tmp_path / "run/results.csv").unlink()
        attnbench(tmp_path, "run", "--resume", "--out", "run", env=env)
        assert (tmp_path / "run/results.csv").read_text() == before
    pair = ["cpu.naive", "blas.three_step", "--n", "32", "--heads", "1", "--rounds", "6"]
    ended = attnbench(tmp_path, "compare", *pair, "--threshold", "2.5%", "--quiet", env=german)
    assert "threshold 2.5 %" in ended.out


@pytest.mark.parametrize(
    "name",
    ["with spaces", "größe/日本", 'it\'s "quoted"', "new\nline", "-dash", "$HOME;*", "a" * 200],
)
def test_any_name_of_a_folder(tmp_path: Path, name: str) -> None:
    attnbench(tmp_path, "run", *TINY, f"--out={name}")
    table = good(tmp_path / name)
    for row in table:
        words = shlex.split(row["repro_cmd"])
        said = attnbench(tmp_path, *words[1:], "--dry-run").out
        assert said.startswith(row["point_id"])
    for file in (tmp_path / name).iterdir():
        assert name not in file.read_text()
    again = attnbench(tmp_path, "run", *TINY, f"--out={name}", code=2)
    assert again.err.count("\n") == 1


def test_a_path_longer_than_any_is_refused(tmp_path: Path) -> None:
    ended = attnbench(tmp_path, "run", *TINY, "--out", "/".join(["d" * 100] * 50), code=6)
    assert ended.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_interruption_names_a_folder_that_can_be_typed(tmp_path: Path) -> None:
    folder = "it's\nmine"
    process = start_long(tmp_path, "--out", folder)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said.count("\n") == 1
    hint = said[said.index("`") + 1 : said.rindex("`")]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {hint}"], capture_output=True, encoding="utf-8", check=True
    ).stdout.split("\0")
    assert words == ["attnbench", "run", "--resume", "--out", folder, ""]


def test_no_home_and_no_folder_for_temporary_files(tmp_path: Path) -> None:
    bare = {"OMP_WAIT_POLICY": "passive"}
    run_as(tmp_path, ["run", *TINY, "--out", "run"], env=bare)
    good(tmp_path / "run")
    assert machine(tmp_path / "run")["thread_settings"] == bare


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "XYZ+23:59:59", ":/dev/null", "größe", ""])
def test_times_are_utc_whatever_the_zone(tmp_path: Path, zone: str) -> None:
    before = time.time()
    attnbench(tmp_path, "run", *TINY, "--out", "run", env={"TZ": zone})
    stamp = good(tmp_path / "run")[0]["timestamp_utc"]
    started = subprocess.run(
        ["date", "-u", "-d", stamp, "+%s"], capture_output=True, encoding="utf-8", check=True
    )
    assert before - 2 <= int(started.stdout) <= time.time()


def test_files_obey_the_umask(tmp_path: Path) -> None:
    run_as(tmp_path, ["run", *TINY, "--out", "run"], before=lambda: ignore(os.umask(0o077)))
    good(tmp_path / "run")
    for path in [tmp_path / "run", *(tmp_path / "run").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path.name


def ignore(value: object) -> None:
    """For a call whose answer does not matter."""


def test_nice_and_fixed_addresses_are_recorded(tmp_path: Path) -> None:
    setarch = [shutil.which("setarch") or pytest.skip("no setarch"), "-R"]
    if subprocess.run([*setarch, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("personality() is not allowed here")
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    arguments = ["run", *TINY, "--out", "run"]
    run_as(tmp_path, arguments, prefix=[*setarch, "nice", "-n", "3"])
    good(tmp_path / "run")
    assert machine(tmp_path / "run")["nice"] == min(niceness + 3, 19)
    assert machine(tmp_path / "run")["address_randomization"] is False
    attnbench(tmp_path, "run", *TINY, "--out", "plain")
    assert machine(tmp_path / "plain")["nice"] == niceness


# ---- what the kernel may not say -----------------------------------------------------------------

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* Opening a path that starts with one of the words in HIDE fails. */
static int hidden(const char* path) {
  char list[256], *word, *rest = list;
  snprintf(list, sizeof list, "%s", getenv("HIDE") ? getenv("HIDE") : "");
  while ((word = strsep(&rest, " ")) != 0)
    if (*word && strncmp(path, word, strlen(word)) == 0) return 1;
  return 0;
}
#define OPEN(name)                                                    \
  int name(const char* path, int flags, ...) {                        \
    va_list args;                                                     \
    va_start(args, flags);                                            \
    int mode = va_arg(args, int);                                     \
    va_end(args);                                                     \
    if (hidden(path)) { errno = EACCES; return -1; }                  \
    return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
#define FOPEN(name)                                                   \
  FILE* name(const char* path, const char* mode) {                    \
    if (hidden(path)) { errno = EACCES; return 0; }                   \
    return ((FILE * (*)(const char*, const char*)) dlsym(RTLD_NEXT, #name))(path, mode); \
  }
FOPEN(fopen)
FOPEN(fopen64)
"""


@pytest.fixture(scope="module")
def hide(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """Variables under which files whose names start so cannot be opened."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the shim")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", "shim.so", "shim.c", "-ldl"], cwd=folder, check=True
    )
    return lambda paths: {"LD_PRELOAD": str(folder / "shim.so"), "HIDE": paths}


def test_a_peak_that_cannot_be_reset_is_empty_and_not_zero(
    tmp_path: Path, hide: Callable[[str], dict[str, str]]
) -> None:
    attnbench(tmp_path, "run", *TINY, "--out", "run", env=hide("/proc/self/clear_refs"))
    assert {r["mem_peak_bytes"] for r in good(tmp_path / "run")} == {""}
    assert "clear_refs" in machine(tmp_path / "run")["peak_memory"]
    attnbench(tmp_path, "run", *TINY, "--out", "plain")
    if machine(tmp_path / "plain")["peak_memory"] == "known":
        assert "" not in {r["mem_peak_bytes"] for r in good(tmp_path / "plain")}


def test_without_proc_and_sys_results_stay_right(
    tmp_path: Path, hide: Callable[[str], dict[str, str]]
) -> None:
    hidden = hide("/proc/ /sys/ /etc/")
    attnbench(tmp_path, "run", *TINY, "--threads", "1", "--out", "run", env=hidden)
    assert {r["mem_peak_bytes"] for r in good(tmp_path / "run")} == {""}
    told = machine(tmp_path / "run")
    assert told["memory_total_bytes"] == 0
    assert told["memory_total_from"] == ""


# ---- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_a_closed_stream_is_no_data_file(tmp_path: Path, closed: tuple[int, ...]) -> None:
    """What is printed to a stream that is closed at the start must not land in a file."""

    def close() -> None:
        for fd in closed:
            os.close(fd)

    noisy = [x for x in TINY if x != "--quiet"]
    process = subprocess.Popen(
        [str(binary()), "run", *noisy, "--threads", "1000", "--out", "run"],
        cwd=tmp_path,
        env=environment(),
        stdin=None if 0 in closed else subprocess.DEVNULL,
        stdout=None if 1 in closed else subprocess.DEVNULL,
        stderr=None if 2 in closed else subprocess.DEVNULL,
        preexec_fn=close,
    )
    # A summary that nobody can read is a file that could not be written.
    assert process.wait(timeout=120) == (6 if 1 in closed else 0)
    good(tmp_path / "run")
    journal = (tmp_path / "run/samples.csv").read_text().splitlines()
    run_id = good(tmp_path / "run")[0]["run_id"]
    assert all(line.startswith(run_id + ",") for line in journal[1:])
    json.loads((tmp_path / "run/run.json").read_text())


@pytest.mark.parametrize("full", ["stderr of a run", "stderr of an error"])
def test_a_full_stderr_ends_nothing(tmp_path: Path, full: str) -> None:
    arguments = ["runn"] if "error" in full else ["run", *TINY, "--threads", "1000", "--out", "run"]
    with Path("/dev/full").open("w") as stderr:
        done = subprocess.run(
            [str(binary()), *arguments],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            timeout=120,
            check=False,
        )
    assert done.returncode == (2 if "error" in full else 0)


def start_long(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    """A run that is under way and takes longer than anybody waits."""
    command = ["run", "--only", "cpu.naive", "--n", "64", "--heads", "1", "--quiet"]
    command += ["--min-samples", "1000000", "--max-samples", "1000000", *arguments]
    process = subprocess.Popen(
        [str(binary()), *command],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    folder = cwd / arguments[arguments.index("--out") + 1]
    deadline = time.monotonic() + 60
    while not ((folder / "samples.csv").exists() and (folder / "results.csv").exists()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def terminal_says(cwd: Path, term: str | None) -> str:
    """What a run writes to a terminal that is its stderr."""
    mine, its = pty.openpty()
    said: list[bytes] = []

    def listen() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(mine, 4096):
                said.append(data)

    listener = threading.Thread(target=listen)
    listener.start()
    env = {k: v for k, v in environment().items() if k != "TERM"}
    if term is not None:
        env["TERM"] = term
    noisy = [x for x in TINY if x != "--quiet"]
    folder = f"terminal {term}"
    done = subprocess.run(
        [str(binary()), "run", *noisy, "--out", folder],
        cwd=cwd,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=its,
        timeout=120,
        check=False,
    )
    os.close(its)
    listener.join(timeout=60)
    os.close(mine)
    assert done.returncode == 0
    good(cwd / folder)
    return b"".join(said).decode()


def test_progress_erases_lines_only_where_that_works(tmp_path: Path) -> None:
    assert "\x1b[K" in terminal_says(tmp_path, "xterm")
    dumb = terminal_says(tmp_path, "dumb")
    assert dumb.replace("\r\n", "").isprintable()


def test_without_a_terminal_nothing_is_erased(tmp_path: Path) -> None:
    noisy = [x for x in TINY if x != "--quiet"]
    said = attnbench(tmp_path, "run", *noisy, "--out", "run").err
    assert said.replace("\n", "").isprintable()


# ---- company -------------------------------------------------------------------------------------


@pytest.fixture
def company() -> Iterator[None]:
    """A program on every usable CPU that computes all the time."""
    busy = [
        subprocess.Popen(["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"])
        for cpu in os.sched_getaffinity(0)
    ]
    yield
    for process in busy:
        process.kill()
        process.wait()


def test_a_busy_machine_is_seen_in_the_numbers(tmp_path: Path, company: None) -> None:
    # The schedulers' turns are milliseconds: some calls wait for one, most do not.
    arguments = ["run", "--only", "cpu.naive", "--n", "256", "--heads", "1", "--quiet"]
    arguments += ["--min-samples", "25", "--max-samples", "25", "--max-ci", "0.01%"]
    attnbench(tmp_path, *arguments, "--out", "run", code=5)
    (row,) = rows(tmp_path / "run")
    assert row["noisy"] == "true"
    told = json.loads((tmp_path / "run/run.json").read_text())
    assert told["noise"]["largest_half_width"] > 0.0001
    assert told["machine"]["load_average"] >= 0


def test_a_team_that_spins_convicts_nobody(tmp_path: Path) -> None:
    """Threads that wait for work by spinning have done none for the one-thread points beside."""
    arguments = ["--only", "cpu.naive,blas.three_step", "--n", "64,512,1024", "--threads", "1,2"]
    spinning = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "2000000"}
    arguments += ["--max-samples", "6", "--quiet", "--out", "run"]
    attnbench(tmp_path, "run", *arguments, env=spinning)
    assert ",offence," not in (tmp_path / "run" / "samples.csv").read_text()
