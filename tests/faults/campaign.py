# SPDX-License-Identifier: MIT
"""Does harm to runs at random moments, resumes them and counts what was lost; one row a fault."""

import argparse
import concurrent.futures
import contextlib
import datetime
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from binary import Ended, attnbench, binary, environment, planned, rows
from runs import PATIENCE_S, Running, complete, fault, parse, sampled_points, whole

QUIET = ["--heads", "1", "--threads", "1", "--quiet"]
# Four points of 12 samples, whatever their precision: some 110 lines in a second.
SWEEP = ["--only", "cpu.naive,cpu.online", "--n", "32,128", *QUIET]
SWEEP += ["--min-samples", "12", "--max-samples", "12"]
SAMPLES = 12
# One point of 3 samples, for faults that are tried at every operation on a file.
TINY = ["--only", "cpu.naive", "--n", "32", *QUIET, "--min-samples", "3", "--max-samples", "3"]
# A point whose worker was killed twice is an error until the next --resume.
RESUMES = 6


@dataclass
class Row:
    """What one kind of fault did, over all moments it was tried at."""

    fault: str
    moments: int = 0
    finished: int = 0  # samples in the journal when the fault struck, over all moments
    lost: int = 0  # of these, no longer there afterwards
    doubled: int = 0  # samples of one point, process and round, or rows of one point
    glued: int = 0  # lines that are no event although their line end was written
    torn: int = 0  # last lines without a line end, as far as the fault left one to be seen
    named: int = 0  # torn, foreign and repeated lines that stderr names
    resumed: bool = True
    remarks: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Nothing lost, doubled, glued or passed over in silence, and everything resumed."""
        return (
            self.resumed
            and self.lost == self.doubled == self.glued == 0
            and self.named >= self.torn
        )

    def broken(self, remark: str) -> None:
        """It did not go on to a complete run, or not in the way that is promised."""
        self.resumed = False
        self.remarks.append(remark)


def spread(count: int, moments: int) -> list[int]:
    """`moments` numbers from 1 to `count`, evenly over all of them, over and over if need be."""
    if moments > count:
        return [1 + i % count for i in range(moments)]
    return [1 + (2 * i + 1) * count // (2 * moments) for i in range(moments)]


def sample_lines(journal: bytes) -> list[bytes]:
    """The whole lines of a journal that are samples of points."""
    return [
        line
        for line in journal[: journal.rfind(b"\n") + 1].splitlines()
        if b",sample," in line and b",roof:" not in line
    ]


class Trial:
    """One run folder, from its start over any number of faults to a complete run."""

    def __init__(self, row: Row, cwd: Path, sweep: list[str], points: Mapping[str, str]) -> None:
        """`cwd` is a folder of its own; `points` is what the sweep plans."""
        self.row = row
        self.cwd = cwd
        self.sweep = sweep
        self.points = points
        self.folder = cwd / "run"
        self.journal = self.folder / "samples.csv"
        self.before: Counter[bytes] = Counter()

    def arguments(self) -> list[str]:
        """Starts it, or goes on; without its record a run cannot be resumed, and holds nothing."""
        return ["--resume", "--quiet"] if (self.folder / "run.json").exists() else self.sweep

    def start(self, env: Mapping[str, str] | None = None) -> Running:
        return Running(self.cwd, *self.arguments(), env=env)

    def heard(self, said: str) -> None:
        """Counts the lines that stderr names."""
        self.row.named += len(re.findall(r"samples\.csv:\d+: ", said))

    def look(self) -> None:
        """The fault has struck: what was there before must still be, what is there now is kept."""
        data = self.journal.read_bytes() if self.journal.exists() else b""
        now = Counter(sample_lines(data))
        self.row.lost += (self.before - now).total()
        self.before = now

    def struck(self) -> None:
        """Counts a moment; nobody else may be writing."""
        data = self.journal.read_bytes() if self.journal.exists() else b""
        self.row.torn += bool(data) and not data.endswith(b"\n")
        self.moment()

    def moment(self) -> None:
        self.look()
        self.row.moments += 1
        self.row.finished += self.before.total()

    def finish(self, samples: int, damage: tuple[bytes, bytes] | None = None) -> None:
        """Resumes until it is complete, and looks for what was lost, doubled or glued.

        `damage`: what the journal began with after somebody had written into it, and before that;
        it stays in the file and must be left out by every reader.
        """
        ended = Ended(-1, "", "")
        for _ in range(RESUMES):
            ended = attnbench(
                self.cwd, "run", *self.arguments(), "--out", "run", code=None, timeout=PATIENCE_S
            )
            self.heard(ended.err)
            if ended.code == 0:
                break
        if ended.code != 0:
            self.row.broken(f"--resume ended with {ended.code}: {ended.err.strip()}")
        self.look()
        journal = whole(self.journal)
        if damage is not None:
            after, before = damage
            if not journal.startswith(after):
                self.row.broken("a damaged journal was rewritten")
            journal = before + journal[len(after) :]
        self.count(journal)
        if ended.code == 0:
            try:
                complete(self.folder, set(self.points), samples, damaged=damage is not None)
            except (AssertionError, ValueError) as error:
                self.row.broken(f"not complete: {error}")
        shutil.rmtree(self.folder)

    def count(self, journal: bytes) -> None:
        """Doubled samples and rows, and lines that nothing can be made of."""
        taken: Counter[tuple[str, ...]] = Counter()
        for line in journal.decode(errors="replace").splitlines()[1:]:
            try:
                event = parse(line)
            except ValueError:
                self.row.glued += 1
                continue
            if event["event"] == "sample" and not event["point_id"].startswith("roof:"):
                taken[event["point_id"], event["process"], event["round"]] += 1
        written = (self.folder / "results.csv").exists()
        table = Counter(r["point_id"] for r in rows(self.folder)) if written else Counter[str]()
        self.row.doubled += (taken.total() - len(taken)) + (table.total() - len(table))


WHO = ("the worker", "the supervisor", "both")
FILES = ("samples.csv", "results.csv.new", "phases.csv.new", "run.json.new")
LIMITS = 10  # KiB; the largest file of a run is larger
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DAMAGES = (
    "cut by 20 bytes",
    "emptied",
    "with junk in the middle",
    "with a doubled line",
    "with CRLF line ends",
)


class Campaign:
    """The faults; each method does one kind of harm at `moments` moments and fills a row."""

    def __init__(self, cwd: Path, seed: int) -> None:
        """`cwd`: an empty folder to work in."""
        self.cwd = cwd
        self.seed = seed
        self.number = 0
        self.lock = threading.Lock()
        self.sweep_points = planned(cwd, *SWEEP)
        self.tiny_points = planned(cwd, *TINY)

    def trial(self, row: Row, sweep: list[str] = SWEEP) -> Trial:
        with self.lock:
            self.number += 1
            cwd = self.cwd / str(self.number)
        cwd.mkdir()
        return Trial(row, cwd, sweep, self.tiny_points if sweep is TINY else self.sweep_points)

    def rng(self, row: Row) -> random.Random:
        return random.Random(f"{self.seed} {row.fault}")

    def operations(self, file: str = "", sweep: list[str] = TINY) -> int:
        """How many operations on files (one file) an undisturbed run does."""
        cwd = self.trial(Row("count"), sweep).cwd
        (cwd / "count").write_bytes(b"")
        settings = {"count": cwd / "count"} | ({"file": file} if file else {})
        attnbench(cwd, "run", *sweep, "--out", "run", env=fault(cwd / "run", **settings))
        return int.from_bytes((cwd / "count").read_bytes()[:8], "little")

    def kill_at_random(self, who: str, moments: int) -> Row:
        """kill -9 of the worker, the supervisor or both, after some lines or some time."""
        row = Row(f"kill -9 of {who}")
        rng = self.rng(row)
        while row.moments < moments:
            trial = self.trial(row)
            run, last = trial.start(), None
            while row.moments < moments:
                worker = run.worker(last)
                if row.moments % 2 == 0:
                    wanted = len(run.lines()) + rng.randrange(60)
                    run.wait_for_lines(wanted)
                    time.sleep(rng.random() * 0.01)
                else:
                    time.sleep(rng.random() ** 2)
                if run.process.poll() is not None or worker is None:
                    break  # it was over before the moment came
                if who == "the worker":
                    last = run.worker()
                    if last is None:
                        break
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(last, signal.SIGKILL)
                    trial.moment()
                    continue
                if who == "the supervisor":
                    run.abandon()  # its worker may still be dying when the run is resumed
                    trial.moment()
                else:
                    trial.heard(run.kill_group())
                    trial.struck()
                run, last = trial.start(), None
            trial.heard(run.end()[1])
            trial.finish(SAMPLES)
        return row

    def kill_inside(self, file: str, moments: int) -> Row:
        """kill -9 inside an operation on a file: after some bytes of a write, around the others."""
        row = Row(f"kill -9 inside a write of {file}")
        rng = self.rng(row)
        count = self.operations(file)
        for number, at in enumerate(spread(count, moments)):
            trial = self.trial(row, TINY)
            env = fault(
                trial.folder,
                file=file,
                do=rng.choice(["kill", "group"]),
                at=at,
                # A line is longer than 40 bytes; 0 and whole writes are moments, too.
                bytes=[rng.randrange(1, 40), 0, rng.randrange(1, 150)][number % 3],
            )
            trial.heard(trial.start(env).end()[1])
            trial.struck()
            trial.finish(3)
        return row

    def signals(self, number: signal.Signals, moments: int) -> Row:
        """A signal to the whole group in the middle of operations on files, from first to last."""
        row = Row(f"{number.name} at any stage")
        rng = self.rng(row)
        code = 130 if number == signal.SIGINT else 143
        count = self.operations()
        for moment in range(moments):
            trial = self.trial(row, TINY)
            # The first opens the journal and the last renames run.json: both belong to it.
            at = 1 + round(moment * (count - 1) / max(1, moments - 1))
            run = trial.start(
                fault(trial.folder, do="group", signal=int(number), at=at, bytes=rng.randrange(2))
            )
            ended, said = run.end()
            trial.heard(said)
            trial.struck()
            if ended != code or "--resume --out run" not in said:
                row.broken(f"operation {at} of {count}: ended with {ended}: {said.strip()}")
            trial.finish(3)
        return row

    def stops(self, who: str, moments: int) -> Row:
        """SIGSTOP for longer than --timeout, then SIGCONT."""
        row = Row(f"SIGSTOP and SIGCONT of {who}")
        rng = self.rng(row)
        stop_s = 1.2
        sweep = [*SWEEP, "--timeout", "1"]
        while row.moments < moments:
            trial = self.trial(row, sweep)
            run, last = trial.start(), None
            while row.moments < moments:
                wanted = len(run.lines()) + rng.randrange(30)
                run.wait_for_lines(wanted)
                last = run.worker()
                time.sleep(rng.random() * 0.01)
                if run.process.poll() is not None or last is None:
                    break
                stopped = [last] if who == "the worker" else [run.process.pid]
                if who == "both":
                    stopped.append(last)
                with contextlib.suppress(ProcessLookupError):
                    for pid in stopped:
                        os.kill(pid, signal.SIGSTOP)
                    time.sleep(stop_s)
                    for pid in stopped:
                        os.kill(pid, signal.SIGCONT)
                    trial.moment()
            code, said = run.end()
            trial.heard(said)
            if code != 0:
                row.broken(f"ended with {code}: {said.strip()}")
            data = whole(trial.journal)
            if b",offence," in data:
                row.broken("a backend was blamed for a stop")
            if any(float(line.split(b",")[6]) >= stop_s for line in sample_lines(data)):
                row.broken("a stop is inside a sample")
            trial.finish(SAMPLES)
        return row

    def clock(self, moments: int) -> Row:
        """The wall clock jumps back by a day, and the run is killed and resumed on top."""
        row = Row("clock set back by a day")
        rng = self.rng(row)
        for moment in range(moments):
            trial = self.trial(row)
            env = fault(trial.folder, clock=1 + moment % 6)
            run = trial.start(env)
            wanted = rng.randrange(5, 60)
            run.wait_for_lines(wanted)
            trial.heard(run.kill_group())
            trial.struck()
            trial.finish(SAMPLES)
        return row

    def full_disk(self, how: str, moments: int) -> Row:
        """ENOSPC at one operation after the other, from then on or once, until the run passes."""
        row = Row(f"disk full ({how})")
        rng = self.rng(row)
        count = self.operations()
        for at in spread(count, min(count, moments)):
            trial = self.trial(row, TINY)
            env = fault(
                trial.folder,
                do="once" if how == "one operation" else "full",
                at=at,
                bytes=0 if how == "one operation" else rng.randrange(60),
            )
            ended = attnbench(trial.cwd, "run", *TINY, "--out", "run", env=env, code=None)
            self.refused_for_space(trial, ended, os.strerror(28), f"operation {at} of {count}")
        return row

    def size_limit(self, moments: int) -> Row:
        """Files may not grow beyond a limit (ulimit -f), whose signal would kill."""
        row = Row("file size limit (ulimit -f)")
        for limit in spread(LIMITS, min(LIMITS, moments)):
            trial = self.trial(row)
            limited = ["bash", "-c", f'ulimit -f {limit} && exec "$@"', "ulimit"]
            done = subprocess.run(
                [*limited, str(binary()), "run", *SWEEP, "--out", "run"],
                cwd=trial.cwd,
                env=environment(),
                capture_output=True,
                encoding="utf-8",
                timeout=PATIENCE_S,
                check=False,
            )
            ended = Ended(done.returncode, done.stdout, done.stderr)
            where = f"limit of {limit} KiB"
            self.refused_for_space(trial, ended, os.strerror(27), where, samples=SAMPLES)
        return row

    def small_disk(self, moments: int) -> Row:
        """A file system of 64 kB that other files fill up but for some."""
        row = Row("disk full (tmpfs of 64 kB)")
        for moment in range(moments):
            trial = self.trial(row, TINY)
            disk = trial.cwd / "disk"
            disk.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "attnbench-faults", str(disk)]
            if (
                not shutil.which("mount")
                or subprocess.run(mount, check=False, capture_output=True).returncode
            ):
                row.remarks.append("not tried: this user may not mount")
                return row
            try:
                (disk / "filler").write_bytes(bytes(4096 * (15 - moment % 4)))
                trial.folder.symlink_to("disk/run")
                (disk / "run").mkdir()
                ended = attnbench(trial.cwd, "run", *TINY, "--out", "run", code=None)
                (disk / "filler").unlink()
                shutil.copytree(disk / "run", trial.cwd / "kept")
                trial.folder.unlink()
                (trial.cwd / "kept").rename(trial.folder)
                self.refused_for_space(trial, ended, os.strerror(28), "tmpfs")
            finally:
                subprocess.run(["umount", str(disk)], check=True)
        return row

    def refused_for_space(
        self, trial: Trial, ended: Ended, words: str, where: str, samples: int = 3
    ) -> None:
        """Exit 6, the file and the system's words in one sentence, no summary; then resumed."""
        trial.heard(ended.err)
        trial.struck()
        named = re.search(r"run/(samples|results|phases)\.csv|run/run\.json", ended.err)
        sentence = words in ended.err and ended.err.count("\n") == 1
        if ended.code != 6 or ended.out or not named or not sentence:
            trial.row.broken(f"{where}: ended with {ended.code}: {ended.out}{ended.err.strip()}")
        trial.finish(samples)

    def folder_gone(self, how: str, moments: int) -> Row:
        """The run's folder is moved or removed while it is written to: exit 6."""
        row = Row(f"folder {how} while running")
        rng = self.rng(row)
        for _ in range(moments):
            trial = self.trial(row)
            run = trial.start()
            wanted = rng.randrange(5, 60)
            if not run.wait_for_lines(wanted):
                row.broken("it was over before the folder was gone")
                continue
            aside = trial.cwd / "aside"
            trial.folder.rename(aside)
            if how == "removed":
                shutil.copytree(aside, trial.cwd / "copy")
                shutil.rmtree(aside)
                aside = trial.cwd / "copy"  # what a backup would hold
            code, said = run.end()
            if code != 6 or not re.search(r"run/(samples|results|phases)\.csv|run/run\.json", said):
                row.broken(f"ended with {code}: {said.strip()}")
            aside.rename(trial.folder)
            trial.heard(said)
            trial.struck()
            trial.finish(SAMPLES)
        return row

    def damage(self, how: str, moments: int) -> Row:
        """The journal of an interrupted run is damaged by somebody else."""
        row = Row(f"journal {how}")
        rng = self.rng(row)
        for _ in range(moments):
            trial = self.trial(row)
            run = trial.start()
            run.wait_until(lambda lines: len(sampled_points(lines, 5)) == len(self.sweep_points))
            run.process.send_signal(signal.SIGINT)
            run.end()
            data = trial.journal.read_bytes()
            lines = data.splitlines(keepends=True)
            place = rng.randrange(len(lines) // 2, len(lines))
            if how == "cut by 20 bytes":
                damaged = data[:-20]
            elif how == "emptied":
                damaged = b""
            elif how == "with CRLF line ends":
                damaged = data.replace(b"\n", b"\r\n")
            else:
                doubled = rng.choice(sample_lines(data)) + b"\n"
                junk = doubled if how == "with a doubled line" else rng.randbytes(300) + b"\n"
                damaged = b"".join([*lines[:place], junk, *lines[place:]])
            trial.journal.write_bytes(damaged)
            trial.struck()
            ended = attnbench(trial.cwd, "run", "--resume", "--quiet", "--out", "run", code=None)
            trial.heard(ended.err)
            if "samples.csv" not in ended.err:
                row.broken(f"not a word about it: {ended.err.strip()}")
            if ended.code != 0:  # refused by name: it goes on once it is repaired
                trial.journal.write_bytes(data)
                trial.finish(SAMPLES)
            else:
                trial.finish(SAMPLES, damage=(damaged, data) if how.startswith("with") else None)
        return row


@dataclass(frozen=True)
class Fault:
    """A method of Campaign, its arguments, and its moments as a share of --moments."""

    do: Callable[..., Row]
    arguments: tuple[str | signal.Signals, ...]
    share: float
    least: int = 1

    @property
    def name(self) -> str:
        return "-".join([self.do.__name__, *map(str, self.arguments)]).replace(" ", "-")

    def row(self, campaign: Campaign, moments: int) -> Row:
        """Tries it as often as its share of `moments` says."""
        return self.do(campaign, *self.arguments, max(self.least, round(moments * self.share)))


FAULTS = (
    *(Fault(Campaign.kill_at_random, (who,), 1 / 3, least=3) for who in WHO),
    Fault(Campaign.kill_inside, (FILES[0],), 0.1, least=3),
    *(Fault(Campaign.kill_inside, (file,), 0.1) for file in FILES[1:]),
    *(Fault(Campaign.signals, (number,), 0.1, least=2) for number in SIGNALS),
    *(Fault(Campaign.stops, (who,), 0.05) for who in WHO),
    Fault(Campaign.clock, (), 0.03),
    *(Fault(Campaign.full_disk, (how,), 0.5) for how in ("from then on", "one operation")),
    Fault(Campaign.size_limit, (), 0.1),
    Fault(Campaign.small_disk, (), 0.02),
    *(Fault(Campaign.folder_gone, (how,), 0.025) for how in ("renamed", "removed")),
    *(Fault(Campaign.damage, (how,), 0.02) for how in DAMAGES),
)


HEADER = """# What faults cost

{total} moments of harm to small runs, each resumed until it was complete:
`scripts/faults.sh{options}` with build {build} on {date} (UTC).

*Samples* were finished, in the journal, when the fault struck, summed over all moments. *Lost*: of
these, no longer there. *Doubled*: samples of one point, process and round, or rows of one point.
*Glued*: lines that are no event. *Torn*: last lines without an end, as far as they could be seen.
*Named*: lines left out that stderr named by file and number. *Complete*: every planned point has
its row and all its samples, and every median is that of the journal.

| Fault | Moments | Samples | Lost | Doubled | Glued | Torn | Named | Complete |
|---|--:|--:|--:|--:|--:|--:|--:|---|
"""


def markdown(found: list[Row], options: str) -> str:
    """The table; the counts are those of `found`."""
    version = attnbench(Path.cwd(), "--version").out
    build = re.fullmatch(r"attnbench build (\w+) of commit .*\n", version)
    assert build, version
    text = HEADER.format(
        total=sum(row.moments for row in found),
        options=options,
        build=build[1],
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
    for row in found:
        verdict = "yes" if row.resumed else "**no**"
        if row.moments == 0:
            verdict = row.remarks[0] if row.remarks else "not tried"
        text += (
            f"| {row.fault} | {row.moments} | {row.finished} | {row.lost} | {row.doubled} | "
            f"{row.glued} | {row.torn} | {row.named} | {verdict} |\n"
        )
    return text


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults.sh")
    parser.add_argument("--moments", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--table", type=Path, required=True)
    wanted = parser.parse_args()
    start = time.monotonic()

    def report(row: Row) -> Row:
        print(
            f"faults: [{time.monotonic() - start:.0f} s] {row.fault}: {row.moments} moments, "
            f"{row.finished} samples, {row.lost} lost, {row.doubled} doubled, {row.glued} glued, "
            f"{row.torn} torn, {row.named} named: {'good' if row.good else 'BROKEN'}",
            *row.remarks[:5],
            sep="\nfaults:   ",
            flush=True,
        )
        return row

    # The figures are counts: several faults at a time disturb nothing.
    with (
        tempfile.TemporaryDirectory(prefix="attnbench-faults-") as folder,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        campaign = Campaign(Path(folder), wanted.seed)
        rows_to_come = [
            pool.submit(lambda harm: report(harm.row(campaign, wanted.moments)), harm)
            for harm in FAULTS
        ]
        found = [row.result() for row in rows_to_come]
    text = markdown(found, f" --moments {wanted.moments} --seed {wanted.seed}")
    wanted.table.parent.mkdir(parents=True, exist_ok=True)
    wanted.table.write_text(text)
    print(f"\n{text}\nfaults: the table is in {wanted.table}")
    return 0 if all(row.good for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
