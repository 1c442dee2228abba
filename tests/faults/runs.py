# SPDX-License-Identifier: MIT
"""Runs of attnbench to do harm to, and what must be true of their folders afterwards."""

import atexit
import contextlib
import csv
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from attnplot.table import SAMPLE_COLUMNS, load
from binary import binary, environment, rows

# How long to wait for something that takes milliseconds on a quiet machine.
PATIENCE_S = 120.0

# What this process ignores its children would, too: SIGHUP under nohup, SIGINT in the background.
for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


class Running:
    """A run of attnbench in a process group of its own."""

    def __init__(
        self,
        cwd: Path,
        *arguments: str,
        folder: str = "run",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = cwd / folder
        self.journal = self.folder / "samples.csv"
        self.process = subprocess.Popen(
            [str(binary()), "run", *arguments, "--out", folder],
            cwd=cwd,
            env=environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )

    def worker(self, but: int | None = None) -> int | None:
        """The supervisor's child, unless that is `but`; None when the supervisor has ended."""
        pid = self.process.pid
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                if children and int(children[0]) != but:
                    return int(children[0])
            assert time.monotonic() < deadline, "no worker was started"
            time.sleep(0.0005)
        return None

    def lines(self) -> list[str]:
        return whole(self.journal).decode().splitlines()

    def wait_until(self, reached: Callable[[list[str]], bool]) -> bool:
        """Whether the journal came so far before the supervisor ended."""
        deadline = time.monotonic() + PATIENCE_S
        size = -1
        while self.process.poll() is None:
            now = self.journal.stat().st_size if self.journal.exists() else 0
            if now != size:
                size = now
                if reached(self.lines()):
                    return True
            assert time.monotonic() < deadline, "the journal no longer grows"
            time.sleep(0.0005)
        return False

    def wait_for_lines(self, count: int) -> bool:
        """Whether the journal has so many lines before the supervisor ends."""
        return self.wait_until(lambda lines: len(lines) >= count)

    def end(self) -> tuple[int, str]:
        """Exit code and stderr, once it has ended of itself."""
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said

    def abandon(self) -> None:
        """Kills the supervisor alone and does not wait for its worker."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def kill_group(self) -> str:
        """Kills both, waits until they are gone and returns what stderr said."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        _, said = self.process.communicate(timeout=PATIENCE_S)
        # The worker has a group but no parent any more: it is gone when the group is.
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return said
            time.sleep(0.0005)
        raise AssertionError("the process group outlived kill -9")


@functools.cache
def shim() -> Path:
    """The library of shim.cpp, to be preloaded; shim.cpp says what its variables do."""
    folder = tempfile.mkdtemp(prefix="attnbench-faults-")
    atexit.register(shutil.rmtree, folder)
    library = Path(folder) / "shim.so"
    compiler = os.environ.get("CXX", "c++")
    source = Path(__file__).with_name("shim.cpp")
    subprocess.run(
        [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", str(source), "-o", str(library)],
        check=True,
    )
    return library


def fault(folder: Path, **settings: object) -> dict[str, str]:
    """Environment in which the run in `folder` meets a fault: `do="full", at=3` is FAULT_DO …"""
    words = {f"FAULT_{name.upper()}": str(value) for name, value in settings.items()}
    return {"LD_PRELOAD": str(shim()), "FAULT_DIR": str(folder.absolute()), **words}


def whole(journal: Path) -> bytes:
    """The journal up to its last line end."""
    data = journal.read_bytes() if journal.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def parse(line: str) -> dict[str, str]:
    """A line of the journal, by column; ValueError when it is torn or glued."""
    try:
        (fields,) = csv.reader(io.StringIO(line), strict=True)
    except csv.Error as error:
        raise ValueError(f"torn or glued: {line}") from error
    if len(fields) != len(SAMPLE_COLUMNS):
        raise ValueError(f"torn or glued: {line}")
    event = dict(zip(SAMPLE_COLUMNS, fields, strict=True))
    good = event["event"] in ("check", "sample", "finish", "offence")
    if not good or not isinstance(json.loads(event["detail"]), dict):
        raise ValueError(f"no event: {line}")
    if event["event"] == "sample" and not float(event["time_s"]) > 0:
        raise ValueError(f"no time: {line}")
    return event


def events(journal: Path) -> list[dict[str, str]]:
    """All lines of a journal of which none is torn, glued or doubled."""
    data = journal.read_bytes()
    assert data.endswith(b"\n")
    lines = data.decode().splitlines()
    assert lines[0].split(",") == SAMPLE_COLUMNS
    found = [parse(line) for line in lines[1:]]
    assert len({e["run_id"] for e in found}) == 1
    # Of the roofs one more is taken before the first round.
    taken = Counter(
        (e["point_id"], e["round"], e["process"])
        for e in found
        if e["event"] == "sample" and not e["point_id"].startswith("roof:")
    )
    assert not [key for key, count in taken.items() if count > 1]
    return found


def complete(folder: Path, points: set[str], samples: int, damaged: bool = False) -> None:
    """Every point is there once, good, with all its samples; attnplot checks the medians.

    `damaged`: the journal holds lines that somebody else has written, and attnplot names them.
    """
    table = rows(folder)
    assert Counter(r["point_id"] for r in table) == Counter(points)
    assert {r["point_id"]: r["status_reason"] for r in table if r["status"] != "ok"} == {}
    assert [int(r["samples"]) for r in table] == [samples] * len(points)
    run = json.loads((folder / "run.json").read_text())
    assert run["interrupted"] is False
    assert run["finished_utc"] is not None
    notes = load(folder).notes
    assert bool(notes) is damaged, notes
    if not damaged:
        events(folder / "samples.csv")
    assert not list(folder.glob("*.new"))


def good_points(lines: list[str]) -> set[str]:
    """Points whose last end is a good one."""
    ends: dict[str, bool] = {}
    for line in lines:
        if ",finish," in line:
            ends[line.split(",")[1]] = '""status"":""ok""' in line
    return {point for point, good in ends.items() if good}


def sampled_points(lines: list[str], number: int) -> set[str]:
    """Points with a sample of that round."""
    cells = [line.split(",")[:5] for line in lines if ",sample," in line]
    return {c[1] for c in cells if c[4] == str(number) and not c[1].startswith("roof:")}
