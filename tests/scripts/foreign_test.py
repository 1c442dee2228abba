# SPDX-License-Identifier: MIT
"""Damaged and foreign files: each is used right, or named by file, row and column, or refused.

The run is a committed one, cut down to a few curves, so that it holds what attnbench really writes.
"""

import contextlib
import csv
import io
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from attnplot import figures
from attnplot.cli import main
from attnplot.curves import table_curves
from attnplot.drawing import seconds_text
from attnplot.files import format_cell
from attnplot.fit import fit_time
from attnplot.table import (
    PHASE_COLUMNS,
    RESULT_COLUMNS,
    SAMPLE_COLUMNS,
    Table,
    TableError,
    load,
)
from attnplot.tables import last_time_text
from binary import ROOT, german_locale
from synthetic import COMPLEXITY, SQRT2, Run, core_cells

FILES = ("results.csv", "samples.csv", "phases.csv")
COLUMNS: Mapping[str, list[str]] = {
    "results.csv": list(RESULT_COLUMNS),
    "samples.csv": list(SAMPLE_COLUMNS),
    "phases.csv": list(PHASE_COLUMNS),
}
COMMANDS = ("fit", "plot", "table", "report")
QUICK = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The untouched run: two attention cores, one attention layer and one recurrence."""
    newest = max((ROOT / "results").glob("*/*/results.csv"), key=lambda p: p.parent.name).parent
    folder = tmp_path_factory.mktemp("whole")
    shutil.copy(newest / "run.json", folder)
    table = load(newest)
    kept = {
        p.point_id
        for p in table.points
        if p.text("threads") == "1"
        and p.text("batch") == "1"
        and p.text("regime") == "prefill"
        and (p.text("scope"), p.backend)
        in {
            ("core", "cpu.naive"),
            ("core", "blas.three_step"),
            ("layer", "blas.three_step"),
            ("layer", "blas.lstm"),
        }
    }
    for name in FILES:
        at = COLUMNS[name].index("point_id")
        lines = (newest / name).read_text(encoding="utf-8").splitlines(keepends=True)
        # An offence makes the samples of its round suspect, also those of other points.
        rows = [next(csv.reader([line])) for line in lines[1:]]
        own = [
            x for x, row in zip(lines[1:], rows, strict=True) if row[at] in kept or "offence" in row
        ]
        (folder / name).write_text("".join([lines[0], *own]), encoding="utf-8", newline="")
    assert len(kept) > 30
    assert load(folder).notes == ()
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture(autouse=True)
def _only_time_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    # A report draws everything; one figure is enough to see which points entered.
    monkeypatch.setattr(figures, "KINDS", {"time": figures.time})


# ---- what the commands make of a folder ----------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Exit code, both streams, and every file that a command left or changed."""

    code: int
    out: str
    err: str
    files: Mapping[str, bytes]


def run_command(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Outcome:
    kind = ["--kind", "time"] if command == "plot" else []
    try:
        code = main([command, str(folder), *kind])
    except SystemExit as ended:
        code = int(str(ended.code))
    said = capsys.readouterr()
    written = {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name not in (*FILES, "run.json")
    }
    return Outcome(code, said.out.replace(str(folder), "DIR"), said.err, written)


@pytest.fixture(scope="module")
def untouched() -> dict[str, Outcome]:
    """What each command makes of the whole run."""
    return {}


def expected_of(
    command: str,
    whole: Path,
    untouched: dict[str, Outcome],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Outcome:
    if command not in untouched:
        copy = Path(shutil.copytree(whole, tmp_path / "untouched"))
        untouched[command] = run_command(command, copy, capsys)
        assert untouched[command].code == 0
        assert untouched[command].err == ""
    return untouched[command]


# ---- ways to damage a folder ---------------------------------------------------------------------

Edit = Callable[[Path], None]


def on_bytes(change: Callable[[bytes], bytes], *names: str) -> Edit:
    def edit(folder: Path) -> None:
        for name in names or FILES:
            path = folder / name
            before = path.read_bytes()
            path.write_bytes(change(before))
            assert path.read_bytes() != before

    return edit


def on_line(name: str, row: int, change: Callable[[bytes], bytes]) -> Edit:
    """Changes one line; the header is row 1, and row -1 the last."""

    def edit(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        at = row if row < 0 else row - 1
        lines[at] = change(lines[at])
        return b"".join(lines)

    return on_bytes(edit, name)


def cell(name: str, row: int, column: str, value: str | Callable[[str], str]) -> Edit:
    return on_line(name, row, changed_cell(name, column, value))


def changed_cell(
    name: str, column: str, value: str | Callable[[str], str]
) -> Callable[[bytes], bytes]:
    def change(line: bytes) -> bytes:
        cells = next(csv.reader([line.decode()]))
        at = COLUMNS[name].index(column)
        cells[at] = value(cells[at]) if callable(value) else value
        buffer = io.StringIO(newline="")
        csv.writer(buffer, lineterminator="\n").writerow(cells)
        return buffer.getvalue().encode("utf-8", "surrogateescape")

    return change


def on_sample(change: Callable[[bytes], bytes]) -> Edit:
    """Changes the first timed call of the journal."""

    def edit(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if b",sample," in line)
        lines[at] = change(lines[at])
        return b"".join(lines)

    return on_bytes(edit, "samples.csv")


def sample_cell(column: str, value: str) -> Edit:
    return on_sample(changed_cell("samples.csv", column, value))


def column(name: str, which: str, change: Callable[[str], str]) -> Edit:
    """Changes one column in every row."""

    def edit(folder: Path) -> None:
        rows = (folder / name).read_bytes().count(b"\n")
        for row in range(2, rows + 1):
            text = next(csv.reader([(folder / name).read_text().splitlines()[row - 1]]))
            if text[COLUMNS[name].index(which)]:
                cell(name, row, which, change)(folder)

    return edit


def scaled(factor: float) -> Callable[[str], str]:
    return lambda text: repr(float(text) * factor)


def semicolons(data: bytes) -> bytes:
    rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
    number = re.compile(r"-?\d+\.\d+(e-?\d+)?")
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=";", lineterminator="\n").writerows(
        [c.replace(".", ",") if number.fullmatch(c) else c for c in row] for row in rows
    )
    return buffer.getvalue().encode()


def both(*edits: Edit) -> Edit:
    def edit(folder: Path) -> None:
        for one in edits:
            one(folder)

    return edit


def header_only(data: bytes) -> bytes:
    return data[: data.index(b"\n") + 1]


def twice(data: bytes) -> bytes:
    return data + data


def remove(name: str) -> Edit:
    return lambda folder: (folder / name).unlink()


# ---- what is expected ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Same:
    """Everything as without the damage, to the byte."""


@dataclass(frozen=True)
class Named:
    """Notes that match, in any order; so many points lost; all other exponents as they were.

    `results` is false where the notes are of a kind that changes nothing else.
    """

    notes: tuple[str, ...]
    lost: int = 0


@dataclass(frozen=True)
class Refused:
    """Exit code 6 (or another), one sentence that matches, nothing written."""

    said: str
    code: int = 6


Expected = Same | Named | Refused

CASES: list[tuple[str, Edit, Expected]] = [
    # Things that mean nothing.
    ("crlf", on_bytes(lambda d: d.replace(b"\n", b"\r\n")), Same()),
    ("bom", on_bytes(lambda d: b"\xef\xbb\xbf" + d), Same()),
    ("bom and crlf", on_bytes(lambda d: b"\xef\xbb\xbf" + d.replace(b"\n", b"\r\n")), Same()),
    ("empty line in the middle", on_line("results.csv", 5, lambda x: b"\n" + x), Same()),
    ("empty line in the journal", on_line("samples.csv", 5, lambda x: b"\r\n" + x), Same()),
    ("empty lines at the end", on_bytes(lambda d: d + b"\n\n"), Same()),
    ("no final newline", on_bytes(lambda d: d[:-1], "results.csv", "samples.csv"), Same()),
    ("no phases", remove("phases.csv"), Same()),
    ("no phase", on_bytes(header_only, "phases.csv"), Same()),
    (
        "quoted header",
        on_line("results.csv", 1, lambda x: b'"' + x.strip().replace(b",", b'","') + b'"\n'),
        Same(),
    ),
    ("quoted field with a newline", cell("results.csv", 4, "tags", 'a=1\nb="2",c'), Same()),
    # Whole files that are not ours.
    *[
        (f"empty {name}", on_bytes(lambda _: b"", name), Refused(rf"{name}: is empty"))
        for name in FILES
    ],
    ("results with nothing but a header", on_bytes(header_only, "results.csv"),
     Refused(r"nothing was measured \(no rows\)", 4)),
    ("journal with nothing but a header", on_bytes(header_only, "samples.csv"),
     Refused(r"results\.csv: row 2, point '\w+': time_median_s \S+ has no sample in samples\.csv")),
    ("missing journal", remove("samples.csv"), Refused(r"samples\.csv: cannot be read")),
    *[
        (f"semicolons in {name}", on_bytes(semicolons, name),
         Refused(rf"{name}: row 1 is separated by ';'"))
        for name in FILES
    ],
    ("tabs", on_bytes(lambda d: d.replace(b",", b"\t"), "results.csv"), Refused("by tabs")),
    ("utf-16", on_bytes(lambda d: d.decode().encode("utf-16"), "results.csv"),
     Refused(r"results\.csv: row 1: column")),
    ("renamed column", on_bytes(
        lambda d: d.replace(b"time_median_s", b"time_median_ms", 1), "results.csv"),
     Refused(r"results\.csv: row 1: column 'time_median_s' is missing, 'time_median_ms' stands")),
    ("renamed column of the journal", on_bytes(
        lambda d: d.replace(b"time_s", b"time_ms", 1), "samples.csv"),
     Refused(r"samples\.csv: row 1: column 'time_s' is missing, 'time_ms' stands")),
    ("renamed column of the phases", on_bytes(
        lambda d: d.replace(b"time_median_s", b"time_median_us", 1), "phases.csv"),
     Refused(r"phases\.csv: row 1: column 'time_median_s' is missing, 'time_median_us' stands")),
    ("column twice", on_line("results.csv", 1, lambda x: x.replace(b"tags", b"tags,tags")),
     Refused(r"results\.csv: row 1: column 'tags' stands 2 times")),
    ("columns swapped", on_line("results.csv", 1, lambda x: x.replace(b"n_q,n_kv", b"n_kv,n_q")),
     Refused(r"row 1: column 'n_kv' is not in its place")),
    ("another schema", cell("results.csv", 3, "schema_version", "2"),
     Refused(r"results\.csv: row 3 has schema_version '2'")),
    # More than one run in a folder.
    *[
        (f"mixed {which}", cell("results.csv", 7, which, "0123456789ab"),
         Refused(rf"results\.csv: row 7 has {which} '0123456789ab', row 2 has '[^']+'; one folder"))
        for which in ("run_id", "env_id", "build_id")
    ],
    ("another run's run.json", on_bytes(
        lambda d: re.sub(rb'"env_id": *"\w+"', b'"env_id": "other"', d), "run.json"),
     Refused(r"run\.json: env_id is 'other', results\.csv row 2 has")),
    ("another run's journal", column("samples.csv", "run_id", lambda _: "other"),
     Named((r"samples\.csv rows 2 to \d+: run_id is not the run of results\.csv",
            r"results\.csv rows .*: time_median_s has no sample left"), lost=-1)),
    ("another run's line in the journal", sample_cell("run_id", "other"),
     Named((r"samples\.csv row \d+: run_id 'other' is not the run of results\.csv",
            r"results\.csv row \d+: samples '10' is not how many samples\.csv holds"))),
    ("another run's phases", column("phases.csv", "run_id", lambda _: "other"),
     Named((r"phases\.csv rows 2 to \d+: run_id is not the run of results\.csv",))),
    # Torn and bad rows.
    ("torn results", on_bytes(lambda d: d[:-20], "results.csv"),
     Named((r"results\.csv row \d+: torn \(\d+ cells, not \d+\); left out",), lost=1)),
    ("torn journal", on_bytes(lambda d: d[:-20], "samples.csv"),
     Named((r"samples\.csv row \d+: torn \(a quote is left open or misplaced\); left out",))),
    ("torn phases", on_bytes(lambda d: d[:-20], "phases.csv"),
     Named((r"phases\.csv row \d+: torn",))),
    ("phases without the last newline", on_bytes(lambda d: d[:-1], "phases.csv"),
     Named((r"phases\.csv row \d+: torn \(no line end\)",))),
    ("all torn", on_bytes(lambda d: d[:-20]),
     Named(tuple(rf"{name} row \d+: torn" for name in FILES), lost=1)),
    ("results cut at a line end",
     on_bytes(lambda d: b"".join(d.splitlines(keepends=True)[:-1]), "results.csv"),
     Named((r"samples\.csv row \d+: finishes a point that has no row in results\.csv",), lost=1)),
    ("a quote left open", on_line(
        "results.csv", 3, lambda x: x.replace(b",cpu,", b',"cpu,', 1)),
     Named((r"results\.csv row 3: torn \(a quote",), lost=1)),
    ("quotes that would swallow whole rows between them", both(
        on_line("results.csv", 3, lambda x: b'a,"b\n' + x),
        on_line("results.csv", 5, lambda x: x + b'c"' + b",x" * (len(RESULT_COLUMNS) - 2) + b"\n")),
     Named((r"results\.csv rows 3, 6: torn \(a quote",))),
    ("two rows on one line", on_line("results.csv", 3, lambda x: x.strip()),
     Named((r"results\.csv row 3: torn \(\d+ cells, not \d+\)",), lost=2)),
    *[
        (f"time {value!r}", cell("results.csv", 3, "time_median_s", value),
         Named((rf"results\.csv row 3: time_median_s '{re.escape(value)}' is not a \w+",), lost=1))
        for value in ("nan", "inf", "fast", "0", "0,001")
    ],
    ("time in a foreign script", cell("results.csv", 3, "time_median_s", "١٢"),
     Named((r"results\.csv row 3: time_median_s '١٢' is not a finite number",), lost=1)),
    ("interval below zero", cell("results.csv", 3, "ci95_lo_s", "-1e-6"),
     Named((r"results\.csv row 3: ci95_lo_s '-1e-6' is not a time",), lost=1)),
    ("word in an integer", cell("results.csv", 3, "n_q", "many"),
     Named((r"results\.csv row 3: n_q 'many' is not an integer",), lost=1)),
    ("negative memory", cell("results.csv", 3, "mem_scratch_bytes", "-8"),
     Named((r"results\.csv row 3: mem_scratch_bytes '-8' is not an integer",), lost=1)),
    ("nan in a rate", cell("results.csv", 3, "gflops", "nan"),
     Named((r"results\.csv row 3: gflops 'nan' is not a finite number",), lost=1)),
    ("no memory at all",
     both(cell("results.csv", 3, "mem_scratch_bytes", "0"),
          cell("results.csv", 3, "mem_tensors_bytes", "0")),
     Named((r"results\.csv row 3: mem_tensors_bytes is 0",))),
    ("unknown status", cell("results.csv", 3, "status", "okay"),
     Named((r"results\.csv row 3: status 'okay' is none of cutoff, error",), lost=1)),
    ("unknown event", sample_cell("event", "saple"),
     Named((r"samples\.csv row \d+: event 'saple' is none of check, finish",
            r"results\.csv row \d+: samples '10' is not how many samples\.csv holds"))),
    ("another n", cell("results.csv", 3, "n_q", "257"),
     Named((r"results\.csv row 3: n_q '257' is not what repro_cmd measures \(256\)",), lost=1)),
    ("another backend", cell("results.csv", 3, "backend", "blas.threestep"),
     Named((r"results\.csv row 3: backend 'blas.threestep' is not what repro_cmd",), lost=1)),
    ("another scale", cell("results.csv", 3, "scale", "0.135"),
     Named((r"results\.csv row 3: scale '0.135' is not what repro_cmd",), lost=1)),
    ("nul byte", cell("results.csv", 3, "tags", "a\0b"),
     Named((r"results\.csv row 3: tags 'a\\x00b' holds a control character",), lost=1)),
    ("nul bytes after the end", on_bytes(lambda d: d + bytes(512), "samples.csv"),
     Named((r"samples\.csv row \d+: torn",))),
    ("not utf-8", cell("results.csv", 3, "tags", b"gr\xfc\xdf".decode("utf-8", "surrogateescape")),
     Named((r"results\.csv row 3: tags 'gr\\udcfc\\udcdf' is not UTF-8",), lost=1)),
    ("not utf-8 in the journal", sample_cell("detail", "\udcff"),
     Named((r"samples\.csv row \d+: detail '\\udcff' is not UTF-8",
            r"results\.csv row \d+: samples '10' is not how many samples\.csv holds"))),
    ("very long cell", cell("results.csv", 3, "tags", "x" * 200_000),
     Named((r"results\.csv row 3: tags 'x{57}…' has more than 8192 characters",), lost=1)),
    ("very long name", cell("results.csv", 3, "backend", "x" * 101),
     Named((r"results\.csv row 3: backend 'x{57}…' is no name",), lost=1)),
    # The same twice.
    ("results twice in one file", on_bytes(twice, "results.csv"),
     Named((r"results\.csv row \d+: repeats the header",
            r"results\.csv rows \d+ to \d+: repeats an earlier row"))),
    ("results twice, with a mark between",
     on_bytes(lambda d: d + b"\xef\xbb\xbf" + d, "results.csv"),
     Named((r"results\.csv row \d+: repeats the header",
            r"results\.csv rows \d+ to \d+: repeats an earlier row"))),
    ("journal twice in one file", on_bytes(twice, "samples.csv"),
     Named((r"samples\.csv row \d+: repeats the header",
            r"samples\.csv rows .*: repeats a sample of the same point"))),
    ("phases twice in one file", on_bytes(twice, "phases.csv"),
     Named((r"phases\.csv row \d+: repeats the header",))),
    ("a row twice", on_line("results.csv", 3, lambda x: x + x),
     Named((r"results\.csv row 4: repeats an earlier row",))),
    ("a sample twice", on_sample(lambda x: x + x),
     Named((r"samples\.csv row \d+: repeats a sample",))),
    ("a point twice, differently",
     on_line("results.csv", 3, lambda x: x + x.replace(b",false\n", b",true\n")),
     Refused(r"results\.csv: rows 3 and 4 have point_id '\w+' and differ")),
    # Units and numbers that contradict each other.
    ("medians in milliseconds", column("results.csv", "time_median_s", scaled(1e3)),
     Refused(r"results\.csv: row 2, point '\w+': time_median_s \S+ is not the median")),
    ("one median in microseconds", cell("results.csv", 3, "time_median_s", scaled(1e6)),
     Refused(r"results\.csv: row 3, point '\w+': time_median_s \S+ is not the median")),
    ("median off by two millionths", cell("results.csv", 3, "time_median_s", scaled(1 + 2e-6)),
     Refused(r"results\.csv: row 3, point '\w+': time_median_s \S+ is not the median")),
    ("samples in milliseconds", column("samples.csv", "time_s", scaled(1e3)),
     Refused(r"results\.csv: row 2, point '\w+': time_median_s \S+ is not the median")),
    ("scaled and torn",
     both(on_bytes(lambda d: d[:-20], "samples.csv"),
          cell("results.csv", -1, "time_median_s", scaled(1e3))),
     Refused(r"results\.csv: row \d+, point '\w+': time_median_s \S+ is not the median")),
    ("everything in milliseconds but the rates",
     both(column("samples.csv", "time_s", scaled(1e3)), *[
         column("results.csv", c, scaled(1e3))
         for c in ("time_median_s", "ci95_lo_s", "ci95_hi_s", "time_min_s")]),
     Refused(r"results\.csv: row 2, point '\w+': gflops is \S+, but samples and work give")),
    ("intervals in milliseconds",
     both(column("results.csv", "ci95_lo_s", scaled(1e3)),
          column("results.csv", "ci95_hi_s", scaled(1e3))),
     Refused(r"row 2, point '\w+': time_median_s \S+ lies outside ci95_lo_s to ci95_hi_s")),
    ("fastest calls in milliseconds", column("results.csv", "time_min_s", scaled(1e3)),
     Refused(r"row 2, point '\w+': time_min_s is \S+, but samples and work give")),
    ("rates in megaflops", column("results.csv", "gflops", scaled(1e3)),
     Refused(r"row 2, point '\w+': gflops is \S+, but samples and work give")),
    ("journal cut at a line end",
     on_bytes(lambda d: d[: d.rindex(b"\n", 0, int(0.9 * len(d))) + 1], "samples.csv"),
     Named((r"results\.csv rows 2 to \d+: samples is not how many samples\.csv holds",))),
]  # fmt: skip
IDS = [name for name, _, _ in CASES]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("edit", "expected"), [c[1:] for c in CASES], ids=IDS)
def test_damage_is_used_right_or_named_or_refused(
    command: str,
    edit: Edit,
    expected: Expected,
    whole: Path,
    untouched: dict[str, Outcome],
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = expected_of(command, whole, untouched, tmp_path, capsys)
    edit(folder)
    found = run_command(command, folder, capsys)
    assert all(x.startswith("attnplot: ") for x in found.err.splitlines()), found.err
    assert b"nan" not in found.files.get("fits.csv", b"")
    if isinstance(expected, Refused):
        assert found.code == expected.code
        assert found.err.splitlines()[-1].startswith("attnplot: ")
        assert re.search(expected.said, found.err), found.err
        assert "note" not in found.err.splitlines()[-1]
        if expected.code == 4 and command == "report":
            assert_nothing_fitted(found)
        else:
            assert found.out == ""
            assert found.files == {}
    elif isinstance(expected, Same):
        assert found == plain
    else:
        check_named(command, expected, found, plain)


def assert_nothing_fitted(found: Outcome) -> None:
    """A report is also written of a run without a time: it says so, and no file holds a row."""
    assert "0 of " in found.files["report.md"].decode()
    for name in ("fits.csv", "crossovers.csv"):
        assert found.files[name].count(b"\n") == 1


def check_named(command: str, expected: Named, found: Outcome, plain: Outcome) -> None:
    notes = [x.removeprefix("attnplot: note: ") for x in found.err.splitlines()]
    everything_lost = expected.lost < 0
    if everything_lost:
        assert notes.pop().startswith("attnplot: ")
        assert found.code == 4
        if command == "report":
            assert_nothing_fitted(found)
        else:
            assert found.files == {}
    else:
        assert found.code == 0
    assert len(notes) == len(expected.notes), found.err
    for wanted in expected.notes:
        assert any(re.match(wanted, note) for note in notes), found.err
    if not everything_lost and command == "fit":
        # Each curve has the exponent that it had, or lost a point and says how many are left.
        before, after = exponents(plain), exponents(found)
        assert before.keys() == after.keys()
        changed = {key for key in before if before[key] != after[key]}
        assert len(changed) <= expected.lost
        assert all(after[key] == "" for key in changed)


def exponents(outcome: Outcome) -> dict[tuple[str, str], str]:
    rows = csv.DictReader(io.StringIO(outcome.files["fits.csv"].decode(), newline=""))
    return {(r["backend"], r["scope"]): r["exponent"] for r in rows if r["quantity"] == "time"}


# ---- files of any bytes --------------------------------------------------------------------------


def read(folder: Path) -> Table | None:
    """A table, or nothing after an error that names a file; anything else fails the test."""
    with contextlib.suppress(TableError):
        return load(folder)
    with pytest.raises(TableError, match="|".join(FILES)):
        load(folder)
    return None


def time_exponents(table: Table) -> dict[tuple[str, ...], float]:
    found = {c.key: fit_time(c) for c in table_curves(table)}
    return {k: f.exponent for k, f in found.items() if f is not None and f.exponent is not None}


@QUICK
@given(name=st.sampled_from(FILES), data=st.binary(max_size=400), kept=st.booleans())
def test_any_bytes_end_in_a_table_or_a_named_error(
    folder: Path, whole: Path, name: str, data: bytes, kept: bool
) -> None:
    before = (whole / name).read_bytes()
    (folder / name).write_bytes(before + data if kept else data)
    found = read(folder)
    if found is not None and kept and name != "phases.csv":
        assert time_exponents(found) == time_exponents(load(whole))
    (folder / name).write_bytes(before)


@QUICK
@given(data=st.text(alphabet='a",1\n\r;\ufeff', max_size=60))
def test_any_quoting_costs_its_own_lines_only(folder: Path, whole: Path, data: str) -> None:
    lines = (whole / "results.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join([*lines[:3], data + "\n", *lines[3:]])
    (folder / "results.csv").write_text(text, encoding="utf-8", newline="")
    found = load(folder)
    assert len(found.points) == len(lines) - 1
    empty = all(line.removesuffix("\r") in ("", '""') for line in data.split("\n"))
    assert bool(found.notes) is not empty


def mutated(data: bytes, kind: str, at: float, text: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    row = int(at * len(lines))
    place = int(at * len(data))
    if kind == "cut":
        return data[:place]
    if kind == "flip":
        return data[:place] + bytes([data[place] ^ (1 << len(text) % 8)]) + data[place + 1 :]
    if kind == "delete":
        return b"".join([*lines[:row], *lines[row + 1 :]])
    if kind == "insert":
        return b"".join([*lines[:row], text + b"\n", *lines[row:]])
    if kind == "duplicate":
        return b"".join([*lines[:row], lines[row], *lines[row:]])
    return data.replace(b"\n", b"\r\n")


@settings(QUICK, max_examples=300)
@given(
    name=st.sampled_from(FILES),
    kind=st.sampled_from(["cut", "flip", "flip", "flip", "delete", "insert", "duplicate", "crlf"]),
    at=st.floats(0, 1, exclude_max=True),
    text=st.binary(max_size=20).map(lambda b: b.replace(b"\n", b" ")),
)
def test_no_mutation_changes_an_exponent_in_silence(
    folder: Path, whole: Path, name: str, kind: str, at: float, text: bytes
) -> None:
    before = (whole / name).read_bytes()
    (folder / name).write_bytes(mutated(before, kind, at, text))
    found = read(folder)
    (folder / name).write_bytes(before)
    if found is not None and not found.notes:
        expected = time_exponents(load(whole))
        assert time_exponents(found) == pytest.approx(expected, abs=1e-6)


NUMBERS = [c for c, kind in RESULT_COLUMNS.items() if kind not in ("text", "name", "device")]


@QUICK
@given(
    changes=st.dictionaries(
        st.sampled_from(NUMBERS),
        st.one_of(
            st.integers(0, 2**64).map(str),
            st.floats().map(repr),
            st.sampled_from(["", "0", "1", "1e-12", "1e9", "1e99", "true"]),
        ),
        max_size=4,
    ),
    seconds=st.sampled_from([1e-12, 1e-6, 1.0, 1e9]),
)
@example(changes={"n_q": str(2**63), "n_kv": str(2**63), "mem_scratch_bytes": "0"}, seconds=1e9)
def test_no_number_ends_in_nan_or_a_traceback(
    tmp_path: Path, changes: dict[str, str], seconds: float
) -> None:
    run = Run()
    for n in SQRT2:
        run.point("cpu.naive", n, 1e-8 * n**2, core_cells("cpu.naive", n))
    run.point("cpu.naive", 512, seconds, core_cells("cpu.naive", 512))
    run.rows[-1].update(changes)
    folder = run.write(tmp_path / "run")
    for command in ("fit", "table"):
        assert main([command, str(folder)]) in (0, 6)
    fits = folder / "fits.csv"
    if fits.exists():
        assert not re.search(r"\b(nan|inf)", fits.read_text(), re.IGNORECASE)
        fits.unlink()


# ---- one time, followed --------------------------------------------------------------------------


def test_one_time_is_the_same_everywhere(whole: Path) -> None:
    table = load(whole)
    point = next(p for p in table.measured if p.backend == "cpu.naive" and p.n == 8192)
    text = {name: (whole / name).read_text(encoding="utf-8") for name in FILES}
    row = next(
        r
        for r in csv.DictReader(io.StringIO(text["results.csv"]))
        if r["point_id"] == point.point_id
    )
    samples = [
        float(r["time_s"])
        for r in csv.DictReader(io.StringIO(text["samples.csv"]))
        if r["point_id"] == point.point_id and r["event"] == "sample"
    ]
    seconds = statistics.median(samples)
    assert float(row["time_median_s"]) == pytest.approx(seconds, rel=1e-6)
    assert point.time_s == pytest.approx(seconds, rel=1e-6)
    rate = float(row["flops_model"]) / seconds / 1e9
    assert float(row["gflops"]) == pytest.approx(rate, rel=1e-6)
    curve = next(
        c
        for c in table_curves(table)
        if c.backend == "cpu.naive" and c.first.text("scope") == "core"
    )
    assert last_time_text(curve) == f"{seconds_text(seconds)} at n = 8192"
    ax = figures.make(table, "time").axes[0]
    line = next(x for x in ax.get_lines() if x.get_label() == "cpu.naive")
    sizes, times = (np.asarray(d, dtype=float) for d in line.get_data())
    (drawn,) = times[sizes == 8192]
    assert drawn == pytest.approx(seconds, rel=1e-6)
    assert ax.get_ylabel() == "time per call"
    assert ax.yaxis.get_major_formatter()(drawn).endswith("s")
    dots = {
        float(y)
        for x in ax.get_lines()
        if x.get_label() == "_samples"
        for y in np.asarray(x.get_ydata())
    }
    assert set(samples) <= dots


# ---- locales and encodings -----------------------------------------------------------------------


def started(arguments: list[str], environment: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """A run of attnplot as its own program, under another environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-m", "attnplot", *arguments],
        cwd=ROOT / "scripts",
        env={**kept, **environment},
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_locale_changes_nothing(command: str, whole: Path, tmp_path: Path) -> None:
    found = []
    for name, environment in (
        ("plain", {"LC_ALL": "C.UTF-8"}),
        ("german", german_locale(tmp_path)),
        ("ascii", {"PYTHONIOENCODING": "ascii"}),
    ):
        copy = Path(shutil.copytree(whole, tmp_path / name / "run"))
        kind = ["--kind", "time"] if command == "plot" else []
        code, out, err = started([command, str(copy), *kind], environment)
        assert (code, err) == (0, b"")
        files = {p.relative_to(copy): p.read_bytes() for p in copy.rglob("*") if p.is_file()}
        found.append((out.replace(bytes(copy), b"DIR"), files))
    assert found[1] == found[0]
    assert found[2] == found[0]


# ---- what is written -----------------------------------------------------------------------------

FORMULAS = ('=cmd|"/C calc"!A1', "+1+1", "-2+3", "@SUM(1)", "\tx", "\rx", "\nx", "＝1")
NUMBERS_AS_TEXT = ("-0.5", "+3", "1e-3", "-1.25e-07", "-0.500 2.000 -1e3")


def test_a_cell_that_a_spreadsheet_would_execute_is_text() -> None:
    for text in FORMULAS:
        assert format_cell(text) == f"'{text}"
    for text in (*NUMBERS_AS_TEXT, "", "blas.gqa", "n² only", "a=b", "'=1"):
        assert format_cell(text) == text
    assert [format_cell(v) for v in (-0.5, -3, 1e-3)] == ["-0.5", "-3", "0.001"]


def named_run(backend: str, recurrence: str, reason: str) -> Run:
    run = Run()
    layer: dict[str, str | int | float | bool | None] = {"scope": "layer", "d_model": 64}
    run.curve(backend, lambda n: 1e-8 * n**2, COMPLEXITY, scale=-0.5)
    run.curve(backend, lambda n: 1e-8 * n**2, COMPLEXITY, **layer)
    run.curve(recurrence, lambda n: 1e-5 * n, COMPLEXITY, family="rnn", **layer)
    for n in COMPLEXITY:
        run.row("cuda.x", n, scale=-0.5, status="unavailable", status_reason=reason)
    return run


def test_formulas_in_names_are_written_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = named_run('=HYPERLINK("x")', "@rnn", "=1+1")
    folder = run.write(tmp_path)
    assert run_command("report", folder, capsys).code == 0
    cells = [
        c
        for name in ("fits.csv", "crossovers.csv")
        for row in csv.reader(io.StringIO((folder / name).read_text(encoding="utf-8")))
        for c in row
    ]
    assert '\'=HYPERLINK("x")' in cells
    assert "'@rnn" in cells
    assert "-0.5" in cells
    assert not [c for c in cells if c.startswith(("=", "@", "+"))]


def test_markdown_shows_names_and_reasons_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "a|b \\| <script>x</script> [l](javascript:x) ![i](u) &amp; 2 < 3 $x^$ \U0001f600"
    folder = named_run("a|b", "c<b>", reason).write(tmp_path)
    shown = run_command("table", folder, capsys).out
    report = run_command("report", folder, capsys)
    assert report.code == 0
    assert report.err == ""
    for text in (shown, report.files["report.md"].decode()):
        assert r"a\|b \\\| \<script>x\</script> [l]\(javascript:x) ![i]\(u) \&amp; 2 < 3" in text
        assert not re.search(r"(?<!\\)<(script|b>)", text)
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            rows = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", x)) for x in block.splitlines()]
            assert len(set(rows)) == 1, block


def test_very_long_reasons_do_not_break_a_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-8 * n**2, COMPLEXITY)
    for i in range(200):
        run.row(f"x.y{i}", 128, status="unavailable", status_reason=f"{i} " + "word " * 1600)
    found = run_command("plot", run.write(tmp_path), capsys)
    assert (found.code, found.err) == (0, "")
    assert "and more" in found.files["figures/time.svg"].decode()


def test_zero_bytes_are_named_on_the_memory_figure(tmp_path: Path) -> None:
    run = Run()
    for n in COMPLEXITY:
        run.point("cpu.naive", n, 1e-8 * n**2, core_cells("cpu.naive", n))
    run.rows[3].update(mem_scratch_bytes=0, mem_tensors_bytes=0)
    for n in COMPLEXITY:  # a refused problem needs nothing, and nobody has to be told
        run.row("cpu.rnn", n, status="unsupported", mem_scratch_bytes=0, mem_tensors_bytes=0)
    table = load(run.write(tmp_path))
    assert len(table.measured) == len(COMPLEXITY)
    assert table.notes == (
        "results.csv row 5: mem_tensors_bytes is 0, which no logarithmic axis can show",
    )
    figure = figures.memory(table)
    said = " ".join(t.get_text() for t in figure.texts).replace("\u00a0", " ")
    assert "cpu.naive at n = 1024: 0 bytes, not drawn." in said
    assert said.count("0 bytes") == 1
    line = next(x for x in figure.axes[0].get_lines() if x.get_label() == "cpu.naive")
    assert np.isnan(np.asarray(line.get_ydata(), dtype=float)).sum() == 1


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("fit", "fits.csv"),
        ("fit", "crossovers.csv"),
        ("plot", "figures/time.png"),
        ("plot", "figures/time.svg"),
        ("report", "fits.csv"),
        ("report", "figures/time.png"),
        ("report", "report.md"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(
    command: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A link into a file system that takes no files stops even the one who may write everywhere.
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(f"/proc/{Path(name).name}")
    found = run_command(command, folder, capsys)
    assert found.code == 6
    assert found.out == ""
    assert re.fullmatch(rf"attnplot: \S+/{name}: cannot be written \([^)]+\)\n", found.err)


@pytest.mark.parametrize(
    ("command", "limit", "name"),
    [
        ("fit", 100, "fits.csv"),
        ("plot", 20_000, "figures/time.png"),
        ("report", 20_000, "figures/time.png"),
    ],
)
def test_a_full_disk_is_named_and_leaves_what_was_there(
    command: str, limit: int, name: str, folder: Path
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("from before")
    done = subprocess.run(
        [sys.executable, "-m", "attnplot", command, str(folder)],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 6
    assert done.stdout == ""
    assert done.stderr == f"attnplot: {folder / name}: cannot be written (File too large)\n"
    assert (folder / name).read_text() == "from before"
    assert not list(folder.rglob("*.new"))
