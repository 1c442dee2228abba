# SPDX-License-Identifier: MIT
"""What a kill, a signal, a torn line or a full disk leaves, and that --resume goes on from it."""

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from binary import attnbench, binary, environment, planned, refused
from campaign import FAULTS, Campaign, Fault
from runs import PATIENCE_S, Running, complete, events, good_points, sampled_points, whole

COMMON = ["--heads", "1", "--threads", "1", "--quiet"]
# Eight points, 60 samples each whatever their precision: some 900 lines.
SWEEP = ["--only", "cpu.naive,cpu.online,blas.three_step,blas.gqa", "--n", "64,384", *COMMON]
SWEEP += ["--min-samples", "60", "--max-samples", "60"]
# Two points with phases that take a while, for what needs a run to be under way only once.
SHORT = ["--only", "cpu.naive", "--n", "64,768", *COMMON, "--min-samples", "25"]
SHORT += ["--max-samples", "25"]
# One point, a second.
TINY = ["--only", "cpu.naive", "--n", "32", *COMMON, "--min-samples", "3", "--max-samples", "3"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def starter(*arguments: str, folder: str = "run") -> Running:
        started.append(Running(tmp_path, *arguments, folder=folder))
        return started[-1]

    yield starter
    for run in started:
        if run.process.poll() is None:
            run.kill_group()


def test_twenty_kills_lose_nothing(tmp_path: Path, start: Callable[..., Running]) -> None:
    points = planned(tmp_path, *SWEEP)
    rng = random.Random(20)
    # (who, when): after so many lines of the worker's life, once all samples are there, or once
    # all closing calls are.
    kills: list[tuple[str, int | str]] = [("group", rng.randrange(20))]  # roofs, first pass
    middle = ["group"] * 7 + ["worker"] * 9
    rng.shuffle(middle)
    kills += [(who, rng.randrange(1, 60)) for who in middle]
    kills += [("worker", "closing"), ("group", "closing"), ("group", "phases")]
    assert Counter(who for who, _ in kills) == {"group": 10, "worker": 10}

    run = start(*SWEEP)
    folder = run.journal.parent
    last = None
    snapshot = b""
    for who, when in kills:
        while True:
            worker = run.worker(last)
            base = len(run.lines())

            def reached(lines: list[str], when: int | str = when, base: int = base) -> bool:
                if when == "closing":
                    return len(sampled_points(lines, 59)) == len(points)
                if when == "phases":
                    return len(good_points(lines)) == len(points)
                return len(lines) - base >= int(when)

            if worker is not None and run.wait_until(reached):
                # Closing calls come a moment after the last sample.
                time.sleep(rng.random() * (0.2 if (who, when) == ("group", "closing") else 0.01))
                if run.process.poll() is None:
                    break
            code, said = run.end()
            if code == 0 and isinstance(when, str):
                (folder / "phases.csv").unlink()  # too late: once more from the phases on
            else:  # a point that was hit twice is an error until the next resume
                assert code == 1, f"it ended with {code} before all kills: {said}"
            run, last = start("--resume", "--quiet"), None
        if who == "group":
            run.kill_group()
        else:
            last = run.worker()
            assert last is not None, "the run ended at the moment of a kill"
            os.kill(last, signal.SIGKILL)
        now = whole(run.journal)
        assert now.startswith(snapshot), f"the kill of the {who} at {when} lost lines"
        snapshot = now
        if who == "group":
            run, last = start("--resume", "--quiet"), None

    code, said = run.end()
    for _ in range(3):
        if code != 1:
            break
        code, said = start("--resume", "--quiet").end()
    assert code == 0, said
    assert run.journal.read_bytes().startswith(snapshot)
    complete(folder, set(points), 60)
    offences = [json.loads(e["detail"]) for e in events(run.journal) if e["event"] == "offence"]
    assert {x["reason"] for x in offences if x["kind"] != "kill"} == set()
    assert (folder / "phases.csv").read_text().count("\n") > len(points)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_in_order(
    tmp_path: Path, start: Callable[..., Running], number: signal.Signals, code: int
) -> None:
    points = planned(tmp_path, *SHORT)
    run = start(*SHORT)
    assert run.wait_until(lambda lines: len(lines) > 25)
    run.process.send_signal(number)
    ended, said = run.end()
    assert ended == code, said
    assert (run.journal.parent / "results.csv").is_file()
    assert json.loads((run.journal.parent / "run.json").read_text())["interrupted"] is True
    before = run.journal.read_bytes()
    # The sentence quotes the command that goes on.
    command = said.rstrip("\n").split("`")[1].split()
    assert command[:2] == ["attnbench", "run"], said
    attnbench(tmp_path, *command[1:], "--quiet")
    assert run.journal.read_bytes().startswith(before)
    complete(run.journal.parent, set(points), 25)


def test_a_killed_run_does_not_pass_for_a_complete_one(start: Callable[..., Running]) -> None:
    run = start(*SHORT)
    assert run.wait_until(lambda lines: len(lines) > 25)
    run.kill_group()
    state = json.loads((run.journal.parent / "run.json").read_text())
    assert state["finished_utc"] is None
    assert state["interrupted"] is True, "report.md would not say that points are missing"


def test_the_worker_dies_with_its_supervisor(start: Callable[..., Running]) -> None:
    run = start(*SWEEP)
    assert run.wait_until(lambda lines: len(lines) > 25)
    worker = run.worker()
    run.process.kill()
    run.process.communicate(timeout=PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{worker}/stat").exists():
        if Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            break
        assert time.monotonic() < deadline, "the worker outlived its supervisor"
        time.sleep(0.001)
    data = run.journal.read_bytes()
    time.sleep(0.5)
    assert run.journal.read_bytes() == data


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    points = planned(tmp_path, *TINY)
    attnbench(tmp_path, "run", *TINY, "--out", "run")
    data = (tmp_path / "run/samples.csv").read_bytes()
    last = len(data) - data[:-1].rfind(b"\n") - 1
    for cut in [1, 2, last // 3, last - 1, last]:
        folder = tmp_path / f"cut{cut}"
        shutil.copytree(tmp_path / "run", folder)
        os.truncate(folder / "samples.csv", len(data) - cut)
        attnbench(tmp_path, "run", "--resume", "--quiet", "--out", folder.name)
        assert (folder / "samples.csv").read_bytes().startswith(data[: len(data) - last])
        complete(folder, set(points), 3)


def test_a_line_torn_by_a_killed_worker_is_not_glued_to(start: Callable[..., Running]) -> None:
    run = start(*SHORT)
    assert run.wait_until(lambda lines: sum(",sample," in line for line in lines) > 20)
    worker = run.worker()
    assert worker is not None
    os.kill(worker, signal.SIGSTOP)
    # What a write leaves that a kill cuts short between two pages.
    with run.journal.open("ab") as file:
        file.write(whole(run.journal).splitlines()[-1][:40])
    os.kill(worker, signal.SIGKILL)
    code, said = run.end()
    assert code == 0, said
    # None when the kill fell between two points, where no backend is to blame.
    assert len([e for e in events(run.journal) if e["event"] == "offence"]) <= 1


def test_a_kill_during_the_phases_keeps_the_phases(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    points = planned(tmp_path, *SHORT)
    for attempt in range(5):
        run = start(*SHORT, folder=f"run{attempt}")
        assert run.wait_until(lambda lines: len(good_points(lines)) == len(points))
        worker = run.worker()
        if worker is None or (run.journal.parent / "phases.csv").exists():
            run.end()
            continue  # too late
        os.kill(worker, signal.SIGKILL)
        run.end()
        attnbench(tmp_path, "run", "--resume", "--quiet", "--out", f"run{attempt}")
        phases = (run.journal.parent / "phases.csv").read_text().splitlines()
        assert len(phases) > len(points), "phases.csv holds its header and nothing else"
        return
    pytest.fail("the phases were over too early five times")


def test_a_kill_of_a_worker_that_only_does_phases_keeps_them(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    attnbench(tmp_path, "run", *TINY, "--out", "run")
    phases = tmp_path / "run/phases.csv"
    count = phases.read_text().count("\n")
    phases.unlink()
    run = start("--resume", "--quiet")
    worker = run.worker()
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    run.end()
    attnbench(tmp_path, "run", "--resume", "--quiet", "--out", "run")
    assert phases.read_text().count("\n") == count, "one kill, and the phases are lost for good"


def test_phases_alone_can_be_resumed(tmp_path: Path) -> None:
    # As after a kill between the last closing call and the phases: all points are good and stay so.
    points = planned(tmp_path, *SHORT)
    attnbench(tmp_path, "run", *SHORT, "--out", "run")
    before = (tmp_path / "run/samples.csv").read_bytes()
    phases = tmp_path / "run/phases.csv"
    count = phases.read_text().count("\n")
    phases.unlink()
    ended = attnbench(tmp_path, "run", "--resume", "--quiet", "--out", "run", code=None)
    after = (tmp_path / "run/samples.csv").read_bytes()
    assert ended.code == 0, f"{ended.out}{after.removeprefix(before).decode()}"
    complete(tmp_path / "run", set(points), 25)
    assert phases.read_text().count("\n") == count
    assert after == before


def test_one_run_a_folder(tmp_path: Path, start: Callable[..., Running]) -> None:
    points = planned(tmp_path, *SHORT)
    run = start(*SHORT)
    assert run.wait_until(lambda lines: len(lines) > 10)
    # Stopped, it cannot end while the others wait for its lock.
    os.killpg(run.process.pid, signal.SIGSTOP)
    assert "--out" in refused(tmp_path, "run", *SHORT, "--out", "run")
    assert "another run is writing" in refused(tmp_path, "run", "--resume", "--out", "run")
    os.killpg(run.process.pid, signal.SIGCONT)
    code, said = run.end()
    assert code == 0, said
    complete(run.journal.parent, set(points), 25)
    before = run.journal.read_bytes()
    assert "--resume" in refused(tmp_path, "run", *SHORT, "--out", "run")
    assert run.journal.read_bytes() == before


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return Campaign(tmp_path_factory.mktemp("campaign"), seed=7)


@pytest.mark.parametrize("harm", FAULTS, ids=lambda harm: harm.name)
def test_a_fault_loses_doubles_and_glues_nothing(campaign: Campaign, harm: Fault) -> None:
    """The campaign of scripts/faults.sh, each fault once or a few times."""
    row = harm.row(campaign, moments=3)
    assert row.good, row
    assert row.moments > 0 or "not tried" in row.remarks[0], row


def test_runs_started_at_once_get_a_folder_each(tmp_path: Path) -> None:
    # Three within a second, so that two of them share its name.
    command = [str(binary()), "run", *TINY]
    runs = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    for run in runs:
        _, said = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0, said
    points = set(planned(tmp_path, *TINY))
    folders = list((tmp_path / "out").iterdir())
    assert len(folders) == 3
    for folder in folders:
        complete(folder, points, 3)


def shell(cwd: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs `script` in bash with $ATTNBENCH set."""
    return subprocess.run(
        ["bash", "-c", script],
        cwd=cwd,
        env=environment({"ATTNBENCH": str(binary())}),
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("redirection", "codes"),
    [
        ("", {0}),
        ("| head -1", {0}),
        ("| true", {0}),  # nobody reads at all
        ("2>&1 | true", {0}),
        (">&-", {6}),  # the summary could not be written
        ("2>&-", {0}),
        (">&- 2>&- <&-", {6}),
    ],
)
def test_closed_outputs_cost_no_data(tmp_path: Path, redirection: str, codes: set[int]) -> None:
    arguments = " ".join(word for word in TINY if word != "--quiet")
    ended = shell(tmp_path, f'"$ATTNBENCH" run {arguments} --out run {redirection}')
    assert ended.returncode in codes, ended.stderr
    complete(tmp_path / "run", set(planned(tmp_path, *TINY)), 3)


def test_an_error_without_stderr_still_has_its_code(tmp_path: Path) -> None:
    assert shell(tmp_path, '"$ATTNBENCH" run --nonsense 2>&-').returncode == 2


def test_nohup_keeps_a_run_from_a_closed_terminal(tmp_path: Path) -> None:
    command = ["bash", "-c", "trap '' HUP && exec \"$@\"", "nohup", str(binary()), "run", *TINY]
    run = subprocess.Popen([*command, "--out", "run"], cwd=tmp_path, env=environment())
    deadline = time.monotonic() + PATIENCE_S
    while not whole(tmp_path / "run/samples.csv"):
        assert time.monotonic() < deadline, "the run does not begin"
        time.sleep(0.001)
    run.send_signal(signal.SIGHUP)
    assert run.wait(PATIENCE_S) == 0
    complete(tmp_path / "run", set(planned(tmp_path, *TINY)), 3)


@pytest.mark.parametrize("file", ["samples.csv", "run.json"])
def test_a_device_in_the_folder_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / file).symlink_to("/dev/full")
    code = 6 if file == "samples.csv" else 0  # run.json is replaced, whatever it was
    ended = attnbench(tmp_path, "run", *TINY, "--out", "run", code=code)
    assert code == 0 or file in ended.err


def test_a_dangling_link_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert "link" in refused(tmp_path, "run", *TINY, "--out", "link", code=6)
    assert [p.name for p in tmp_path.iterdir()] == ["link"]


def test_a_folder_without_permission_is_said(tmp_path: Path) -> None:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become a user without permissions")
    # Where nobody may go and read: pytest's own folders are its user's alone.
    with tempfile.TemporaryDirectory() as name:
        cwd = Path(name)
        cwd.chmod(0o755)
        attnbench(cwd, "run", *TINY, "--out", "run")
        shutil.copy(binary(), cwd / "attnbench")
        before = contents(cwd / "run")
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        for arguments in (
            [*TINY, "--out", "new"],
            [*TINY],
            ["--resume", "--out", "run"],
        ):
            ended = subprocess.run(
                [*nobody, str(cwd / "attnbench"), "run", *arguments],
                cwd=cwd,
                env=environment(),
                capture_output=True,
                encoding="utf-8",
                timeout=PATIENCE_S,
                check=False,
            )
            assert ended.returncode == 6, ended.stderr
            assert "Permission denied" in ended.stderr
            assert (arguments[-1] if "--out" in arguments else "out") in ended.stderr
            assert ended.stderr.count("\n") == 1
        assert contents(cwd / "run") == before
        assert sorted(p.name for p in cwd.iterdir()) == ["attnbench", "run"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder above that of a complete run called `run`."""
    cwd = tmp_path_factory.mktemp("finished")
    attnbench(cwd, "run", *TINY, "--out", "run")
    return cwd


def copy_of(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished / "run", tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_resuming_a_complete_run_changes_no_sample(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path)
    before = contents(folder)
    attnbench(tmp_path, "run", "--resume", "--out", "run")
    assert contents(folder)["samples.csv"] == before["samples.csv"]
    assert contents(folder)["results.csv"] == before["results.csv"]


def test_resume_wants_the_same_options(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path)
    before = contents(folder)
    for changed in (["--n", "64"], [*TINY[:-1], "4"], ["--seed", "2"], [*TINY, "--seed", "2"]):
        assert "--resume" in refused(tmp_path, "run", "--resume", "--out", "run", *changed)
    assert contents(folder) == before
    attnbench(tmp_path, "run", *TINY, "--resume", "--out", "run")


@pytest.mark.parametrize("field", ["build_id", "env_id"])
def test_resume_wants_the_same_machine_and_build(
    finished: Path, tmp_path: Path, field: str
) -> None:
    folder = copy_of(finished, tmp_path)
    run = json.loads((folder / "run.json").read_text())
    run[field] = "0123456789ab"
    (folder / "run.json").write_text(json.dumps(run))
    before = contents(folder)
    said = refused(tmp_path, "run", "--resume", "--out", "run")
    assert "0123456789ab" in said
    assert "new run" in said
    assert contents(folder) == before


def test_resume_wants_a_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(tmp_path, "run", "--resume")
    for folder in ("nowhere", "empty"):
        assert folder in refused(tmp_path, "run", "--resume", "--out", folder)
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"argv": []}', '{"argv": 5}', '{"argv": [1]}', "{}"],
)
def test_resume_refuses_a_broken_run_json(finished: Path, tmp_path: Path, text: str) -> None:
    folder = copy_of(finished, tmp_path)
    (folder / "run.json").write_text(text)
    assert "run.json" in refused(tmp_path, "run", "--resume", "--out", "run", code=6)


def test_a_kill_before_run_json_is_no_dead_end(finished: Path, tmp_path: Path) -> None:
    # The journal is created first, so a kill in between leaves it alone in its folder.
    folder = copy_of(finished, tmp_path)
    for path in folder.iterdir():
        if path.name == "samples.csv":
            os.truncate(path, path.read_bytes().index(b"\n") + 1)
        else:
            path.unlink()
    again = attnbench(tmp_path, "run", *TINY, "--out", "run", code=None)
    resumed = attnbench(tmp_path, "run", *TINY, "--resume", "--out", "run", code=None)
    assert 0 in (again.code, resumed.code), f"neither goes on: {again.err}{resumed.err}"
