# SPDX-License-Identifier: MIT
"""attnbench selftest: every liar is caught by its rule, and by no other when that rule is gone."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from binary import ROOT, attnbench, binary, environment, refused

# What to run for each rule: liars that only this rule catches.
MATRIX = {
    "reference-rows": "wrong_tail_row",
    "finite-scan": "nan_element",
    "lazy-answers": "mean_of_v",
    "exact-zeros": "knows_the_rows",
    "input-hash": "changes_inputs",
    "fences": "writes_before",
    "protected-pages": "writes_past,reads_past",
    "memory-peak": "allocates_square",
    "declared-flops": "half_flops",
    "other-threads": "second_thread",
    "guard-row": "unchanged_head",
    "guard-second-row": "poisoned_rows_only",
    "guard-value": "keeps_v",
    "guard-key": "keeps_k",
    "guard-token": "keeps_x",
    "warm-lot": "skips_second_calls",
    "closing-check": "first_inputs_only",
    "fresh-time": "increments",
    "roof-105": "faster_than_the_machine",
}


@dataclass(frozen=True)
class Said:
    """How one lie ended: `rule` is empty for a crash or a time-out."""

    name: str
    where: str
    status: str
    rule: str
    rest: str


def table(out: str) -> Iterator[Said]:
    pattern = re.compile(
        r"^(\w+) \((.*?)\) .*\n    (\w+)(?:, ([a-z0-9-]+))?(?:: )?(.*)$", re.MULTILINE
    )
    for found in pattern.finditer(out):
        yield Said(*(group or "" for group in found.groups()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    return attnbench(tmp_path_factory.mktemp("whole"), "selftest").out


def test_every_liar_is_caught_by_its_rule(whole: str) -> None:
    files = {path.stem for path in (ROOT / "harness" / "liars").glob("*.cpp")}
    ends = list(table(whole))
    assert {end.name for end in ends} == files | {"control"}
    for end in ends:
        assert (end.status == "ok") == (end.name == "control"), end
        assert (end.rule == "") == (end.name == "control"), end
        assert "expected of" not in end.rest, end
    assert re.search(
        r"^\d+ lies were caught, and the honest backends were ok$", whole, re.MULTILINE
    )


def test_every_rule_catches_a_liar(whole: str, tmp_path: Path) -> None:
    help_text = attnbench(tmp_path, "selftest", "--help").out
    named = re.findall(r"^  ([a-z0-9-]+)  ", help_text.split("Rules:")[1], re.MULTILINE)
    assert sorted(named) == sorted(MATRIX)
    # The lot of the warm calls finds nothing itself: it brings a lie before the guard.
    assert {end.rule for end in table(whole)} - {""} == set(MATRIX) - {"warm-lot"}
    assert "(thanks to warm-lot)" in whole


@pytest.mark.parametrize("rule", MATRIX)
def test_without_the_rule_its_liars_pass(rule: str, tmp_path: Path) -> None:
    ended = attnbench(tmp_path, "selftest", "--only", MATRIX[rule], "--without", rule, code=1)
    last = ended.out.splitlines()[-1]
    for liar in MATRIX[rule].split(","):
        assert liar in last.split("not caught: ")[1].split(", "), ended.out
        assert f", not caught by {rule}, which is off" in ended.out
    assert all(end.status == "ok" for end in table(ended.out) if end.name == "control")


@pytest.mark.parametrize("repeat", range(4))
def test_an_early_return_is_caught_every_time(repeat: int, tmp_path: Path) -> None:
    ended = attnbench(tmp_path, "selftest", "--only", "returns_*,second_thread")
    assert {end.rule for end in table(ended.out)} - {""} == {"other-threads"}, repeat


def test_quiet_prints_the_verdict_alone(tmp_path: Path) -> None:
    ended = attnbench(tmp_path, "selftest", "--only", "zero_output,half_*", "--quiet")
    assert ended.out == "2 lies were caught, and the honest backends were ok\n"
    assert ended.err == ""


def test_unknown_names_are_answered_with_the_nearest(tmp_path: Path) -> None:
    assert "the nearest is guard-row" in refused(tmp_path, "selftest", "--without", "guard-rows")
    assert "the nearest is zero_output" in refused(tmp_path, "selftest", "--only", "zero_outputs")
    assert "--without" in refused(tmp_path, "run", "--without", "guard-row")


def test_it_leaves_no_folder_behind(tmp_path: Path) -> None:
    attnbench(tmp_path, "selftest", "--only", "half_flops", env={"TMPDIR": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_one_leaves_no_folder_behind(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [str(binary()), "selftest", "--quiet"],
        env=environment({"TMPDIR": str(tmp_path)}),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("attnbench-selftest-*/samples.csv")):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == ""
    assert err.startswith("attnbench: interrupted;")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    said = attnbench(tmp_path, "selftest", env={"TMPDIR": str(tmp_path / "no")}, code=6).err
    assert "TMPDIR" in said
