# SPDX-License-Identifier: MIT
"""Loads a run folder: `results.csv`, `samples.csv` and `run.json`, and checks that they agree.

What cannot be trusted is either refused by name (`TableError`: a missing column, another schema,
a median that its samples do not give) or left out by name (`Table.notes`: a torn line, a time that
is not a positive finite number). Nothing is repaired and nothing is dropped silently.
"""

import itertools
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnplot.files import FLOAT, Cell, format_cell, read_text
from attnplot.rows import SCHEMA_VERSION, BadCellError, Notes, Record, foreign, records, shown
from attnplot.rows import TableError as TableError

# Column name -> how its cells are read. Order is the order in the file (results.csv is fixed).
RESULT_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(
        ("schema_version run_id point_id env_id build_id timestamp_utc tags").split(), "text"
    ),
    "backend": "name",
    **dict.fromkeys("resolved_impl family sharing scope regime".split(), "text"),
    "device": "device",
    "device_name": "text",
    "threads": "int",
    "acc_dtype": "text",
    "projection_impl": "text",
    **dict.fromkeys("n_q n_kv batch heads heads_kv head_dim head_dim_v d_model".split(), "int"),
    "output_projection": "bool",
    "width": "int",
    "causal": "bool",
    "scale": "float",
    "dtype": "text",
    "input_dist": "text",
    "seed": "int",
    "status": "text",
    "status_reason": "text",
    **dict.fromkeys("samples processes rounds".split(), "int"),
    **dict.fromkeys(
        "time_median_s ci95_lo_s ci95_hi_s time_min_s time_q1_s time_q3_s".split(), "time"
    ),
    "outliers": "int",
    "noisy": "bool",
    **dict.fromkeys("stop_reason timer cache_mode order".split(), "text"),
    **dict.fromkeys("flops_model flops_executed exps bytes_min bytes_model".split(), "int"),
    "seq_steps": "int",
    **dict.fromkeys("gflops gbps pct_peak pct_roof".split(), "rate"),
    **dict.fromkeys(
        (
            "mem_scratch_bytes mem_state_bytes mem_tensors_bytes mem_kv_cache_bytes mem_peak_bytes"
        ).split(),
        "int",
    ),
    "verify_mode": "text",
    "rows_checked": "int",
    # A wrong result may well have an infinite error: that cell is then empty, and the row stays.
    **dict.fromkeys("err_max_abs err_scaled err_bound err_vs_exact".split(), "error"),
    **dict.fromkeys("repro_cmd git_sha".split(), "text"),
    "git_dirty": "bool",
}
SAMPLE_COLUMNS: Sequence[str] = (
    "run_id point_id event process round position time_s clock_mhz throttled detail"
).split()
PHASE_COLUMNS: Sequence[str] = "run_id point_id phase calls time_median_s".split()
# One folder is one run of one build on one machine: nothing else may be fitted together.
IDENTITY: Sequence[str] = ("run_id", "env_id", "build_id")
# The shape block without n_q and n_kv: what stays the same along a curve.
SHAPE_WITHOUT_N: Sequence[str] = (
    "batch heads heads_kv head_dim head_dim_v d_model output_projection width causal scale dtype "
    "input_dist seed"
).split()
# A point's key without n (cache_mode `mixed` and empty count as warm).
KEY_WITHOUT_N: Sequence[str] = (
    *"backend scope regime device threads cache_mode".split(),
    *SHAPE_WITHOUT_N,
)
_POINT_KEY = frozenset({*KEY_WITHOUT_N, "n_q", "n_kv"})
STATUSES = frozenset(
    "ok mismatch mistrusted unsupported unavailable oom_predicted oom cutoff timeout error".split()
)
RECURRENT_FAMILIES = frozenset({"rnn", "gru", "lstm"})
_ALLOWED: Mapping[str, frozenset[str]] = {
    "status": STATUSES,
    "family": frozenset({"", "attention", "sparse", "linear", "convolution"}) | RECURRENT_FAMILIES,
    "scope": frozenset({"core", "layer"}),
    "regime": frozenset({"prefill", "decode"}),
    "sharing": frozenset({"", "mha", "gqa", "mqa"}),
    "cache_mode": frozenset({"", "warm", "mixed", "cold"}),
    "event": frozenset({"check", "sample", "finish", "offence"}),
}
_INT = re.compile(r"[0-9]{1,20}")  # a seed may need all of 2^64
_NAME = re.compile(r"\S{1,100}")
_DEVICE = re.compile(r"(?:cpu|cuda:[0-9]+)?")
_INFINITE = re.compile(r"[+-]?(?:inf|nan)")
# No call is shorter or longer; what is computed from times within stays finite.
_SHORTEST_S, _LONGEST_S = 1e-12, 1e9
_LARGEST = 1e100
# How far a number may stand from what it is computed from: medians are exact to the last digit or
# two, and other readers may have rounded.
_SAME = 1e-6


@dataclass(frozen=True)
class Point:
    """One row of `results.csv`: one backend at one shape.

    Attributes:
        row: line of the file on which it begins, the header being row 1.
        cells: every column by name; `None` = empty = not applicable.
    """

    row: int
    cells: Mapping[str, Cell]

    def text(self, column: str) -> str:
        """The cell as it would be printed; empty string when not applicable."""
        return format_cell(self.cells[column])

    def number(self, column: str) -> float | None:
        """The numeric cell as float, or `None` when not applicable."""
        value = self.cells[column]
        return None if value is None or isinstance(value, str) else float(value)

    def integer(self, column: str) -> int | None:
        """The integer cell, exact, or `None` when not applicable."""
        value = self.cells[column]
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def point_id(self) -> str:
        """The point's name in `samples.csv`."""
        return self.text("point_id")

    @property
    def backend(self) -> str:
        """`folder.stem` of the backend."""
        return self.text("backend")

    @property
    def status(self) -> str:
        """The row's status, one of `STATUSES`."""
        return self.text("status")

    @property
    def recurrent(self) -> bool:
        """True for rnn, gru and lstm."""
        return self.cells["family"] in RECURRENT_FAMILIES

    @property
    def n(self) -> int | None:
        """n_kv in decode; n_q = n_kv in prefill; `None` where the two differ (cross attention)."""
        n_q, n_kv = self.integer("n_q"), self.integer("n_kv")
        if self.cells["regime"] == "decode":
            return n_kv
        return n_q if n_kv is None or n_kv == n_q else None

    @property
    def time_s(self) -> float | None:
        """Median seconds of an `ok` row, else `None`."""
        return self.number("time_median_s") if self.status == "ok" else None

    @property
    def key_without_n(self) -> tuple[str, ...]:
        """Values of `KEY_WITHOUT_N`, as text."""
        return tuple(
            ("cold" if self.cells[c] == "cold" else "warm") if c == "cache_mode" else self.text(c)
            for c in KEY_WITHOUT_N
        )


@dataclass(frozen=True)
class Sample:
    """One timed call that counts: its process and round had no offence. Time in seconds."""

    process: int
    round: int
    time_s: float


@dataclass(frozen=True)
class Table:
    """A loaded run.

    Attributes:
        folder: the run folder.
        points: rows of `results.csv` in file order, unreadable ones left out.
        samples: point_id -> its samples in file order, suspect ones left out.
        suspect: number of samples left out because of an offence in their process and round.
        predicted_s: point_id -> seconds a call was predicted to take, where the journal says so.
        run: `run.json`.
        notes: one sentence for everything that was left out.
    """

    folder: Path
    points: tuple[Point, ...]
    samples: Mapping[str, tuple[Sample, ...]]
    suspect: int
    predicted_s: Mapping[str, float]
    run: Mapping[str, object]
    notes: tuple[str, ...]

    @property
    def measured(self) -> tuple[Point, ...]:
        """Points with status `ok` and a time."""
        return tuple(p for p in self.points if p.time_s is not None)

    def field(self, *path: str) -> object:
        """`run.json` value under the given keys, or `None` when any of them is absent."""
        value: object = self.run
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def llc_bytes(self) -> int | None:
        """Bytes of all last-level caches together, if the run recorded them."""
        for path in (("llc_total_bytes",), ("llc_bytes",), ("caches", "llc_bytes")):
            value = self.field("machine", *path)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
                return int(value)
        return None


@dataclass(frozen=True)
class Roof:
    """One measured limit of the machine, in `unit` (gflops or gbps)."""

    kind: str
    dtype: str
    threads: int
    value: float
    unit: str


def roofs(table: Table) -> tuple[Roof, ...]:
    """Roofs of `run.json`; entries without a kind or a positive value are left out."""
    entries = table.field("roofs")
    found = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            continue
        kind, value, threads = entry.get("kind"), entry.get("value"), entry.get("threads", 1)
        if isinstance(kind, str) and isinstance(value, (int, float)) and value > 0:
            default = "gbps" if kind in ("read", "triad") else "gflops"
            found.append(
                Roof(
                    kind,
                    str(entry.get("dtype", "f32")),
                    int(threads) if isinstance(threads, (int, float)) else 1,
                    float(value),
                    str(entry.get("unit", default)),
                )
            )
    return tuple(found)


def working_set_bytes(point: Point) -> int | None:
    """Bytes of the tensors a call must touch (K and V of a decode step are among them)."""
    sizes = [point.integer(c) for c in ("mem_tensors_bytes", "mem_kv_cache_bytes")]
    return max((s for s in sizes if s is not None), default=None)


def bandwidth_may_be_stated(table: Table, point: Point) -> bool:
    """True where GB/s speak of memory and not of a cache.

    That is: the cache mode is cold, or the working set is at least four times the last-level cache.
    False when the size of the cache is not known.
    """
    if point.cells["cache_mode"] == "cold":
        return True
    llc, size = table.llc_bytes(), working_set_bytes(point)
    return llc is not None and size is not None and size >= 4 * llc


def memory_gbps(table: Table, point: Point) -> float | None:
    """GB/s that the memory delivered at least: `bytes_min` ÷ median, where they may be stated.

    Not the column `gbps`: its bytes are those the loops move, and what they read again comes from a
    cache, so it may exceed what any memory delivers.
    """
    least, seconds = point.number("bytes_min"), point.time_s
    if not least or not seconds or not bandwidth_may_be_stated(table, point):
        return None
    return least / seconds / 1e9


def load(folder: Path) -> Table:
    """Loads and checks a run folder.

    `phases.csv`, which no table or figure shows yet, is checked where it is there.

    Raises:
        TableError: a file is missing or foreign, a column is missing or renamed, the schema is
            another one, rows come from several runs, or a time in `results.csv` is not what the
            samples give.
    """
    if not folder.is_dir():
        raise TableError(f"{folder}: no such folder")
    notes = Notes()
    run = _read_run(folder / "run.json")
    points = _read_results(folder / "results.csv", notes)
    _check_identity(folder, points, run)
    run_id = points[0].text("run_id") if points else None
    journal = _read_samples(folder / "samples.csv", run_id, notes)
    if (folder / "phases.csv").exists():
        _check_phases(folder / "phases.csv", run_id, notes)
    for point in points:
        _check_times(folder, point, journal, notes)
    _check_finished(folder / "results.csv", points, journal, notes)
    kept = [p for p in points if p.time_s is None or p.point_id in journal.samples]
    return Table(
        folder,
        tuple(kept),
        journal.samples,
        journal.suspect,
        journal.predicted_s,
        run,
        notes.sentences(),
    )


def _read_cell(column: str, text: str, kind: str) -> Cell:
    allowed = _ALLOWED.get(column)
    if allowed is not None and text not in allowed:
        raise BadCellError(f"is none of {', '.join(sorted(a for a in allowed if a))}")
    if kind in ("text", "word"):
        return text
    if kind == "json":
        _detail(text)
        return text
    if kind == "device":
        if _DEVICE.fullmatch(text) is None:
            raise BadCellError("is neither cpu nor cuda:NUMBER")
        return text
    if kind == "name":
        if _NAME.fullmatch(text) is None:
            raise BadCellError("is no name of at most 100 characters without spaces")
        return text
    if text == "":
        return None
    if kind == "bool":
        if text not in ("true", "false"):
            raise BadCellError("is neither true nor false")
        return text == "true"
    if kind == "int":
        return _read_int(text)
    if kind == "error" and _INFINITE.fullmatch(text):
        return None
    value = _read_time(text) if kind == "time" else _read_float(text)
    if kind in ("rate", "error") and value < 0:
        raise BadCellError("is negative")
    return value


def _read_int(text: str) -> int:
    if _INT.fullmatch(text) is None or int(text) >= 2**64:
        raise BadCellError("is not an integer from 0 to 2^64 - 1")
    return int(text)


def _read_float(text: str) -> float:
    value = float(text) if FLOAT.fullmatch(text) else math.nan
    if not abs(value) < _LARGEST:
        raise BadCellError("is not a finite number")
    return value


def _read_time(text: str) -> float:
    value = _read_float(text)
    if not _SHORTEST_S <= value <= _LONGEST_S:
        raise BadCellError(f"is not a time from {_SHORTEST_S:g} to {_LONGEST_S:g} s")
    return value


def _read_results(path: Path, notes: Notes) -> list[Point]:
    points: list[Point] = []
    keys: dict[tuple[str, ...], int] = {}
    first: dict[str, Record] = {}
    for record in records(path, list(RESULT_COLUMNS), notes):
        version, point_id = record.cells["schema_version"], record.cells["point_id"]
        if version != str(SCHEMA_VERSION):
            raise TableError(
                f"{path}: row {record.row} has schema_version {shown(version)}, only "
                f"{SCHEMA_VERSION} is known"
            )
        twin = first.setdefault(point_id, record)
        if twin is not record:
            if twin.cells != record.cells:
                raise TableError(
                    f"{path}: rows {twin.row} and {record.row} have point_id {shown(point_id)} and "
                    "differ"
                )
            notes.add(path.name, record.row, "repeats an earlier row; left out")
            continue
        point = _read_point(path.name, record, notes)
        if point is None:
            continue
        key = (*point.key_without_n, point.text("n_q"), point.text("n_kv"))
        row = keys.setdefault(key, point.row)
        if row != point.row:
            notes.add(path.name, point.row, f"repeats the point of row {row}; left out")
            continue
        points.append(point)
    return points


def _read_point(name: str, record: Record, notes: Notes) -> Point | None:
    column = ""
    cells: dict[str, Cell] = {}
    try:
        for column, text in record.cells.items():
            cells[column] = _read_cell(column, text, RESULT_COLUMNS[column])
        for column, measured in _repeated(record.cells).items():
            if record.cells[column] != measured:
                raise BadCellError(f"is not what repro_cmd measures ({measured}); row left out")
    except BadCellError as error:
        why = str(error) if ";" in str(error) else f"{error}; row left out"
        notes.add(name, record.row, why, column=column, cell=record.cells[column])
        return None
    size = [cells[c] for c in ("mem_scratch_bytes", "mem_tensors_bytes")]
    # A refused problem may well need nothing; one that was timed did.
    if size == [0, 0] and cells["time_median_s"] is not None:
        notes.add(name, record.row, "mem_tensors_bytes is 0, which no logarithmic axis can show")
    return Point(record.row, cells)


def _repeated(cells: Mapping[str, str]) -> Mapping[str, str]:
    # What the row says a second time in the command that measures it again: column -> text.
    words = cells["repro_cmd"].split()
    if words[:2] != ["attnbench", "run"]:
        return {}
    names = {"only": "backend", "n": "n_kv", "cache": "cache_mode"}
    stated: dict[str, str] = {}
    for option, value in itertools.pairwise(words):
        name = option.removeprefix("--")
        column = names.get(name, name.replace("-", "_"))
        if option != name and column in _POINT_KEY:
            stated[column] = value
    if "n_kv" in stated:
        stated.setdefault("n_q", stated["n_kv"] if cells["regime"] == "prefill" else "1")
    stated.setdefault("input_dist", "normal")
    if cells["causal"]:
        stated.setdefault("causal", "false")
    if "scale" not in stated and cells["scale"] and (width := float(cells["head_dim"] or 0)):
        default = width**-0.5
        if not math.isclose(float(cells["scale"]), default, rel_tol=_SAME):
            stated["scale"] = repr(default)
    return stated


@dataclass
class _Journal:
    """What `samples.csv` says: as `Table`, with the rows that finish a point.

    `whole` is false where a row was left out.
    """

    samples: dict[str, tuple[Sample, ...]]
    suspect: int
    predicted_s: dict[str, float]
    finished: dict[str, int]
    whole: bool


def _read_samples(path: Path, run_id: str | None, notes: Notes) -> _Journal:
    taken: dict[tuple[str, int, int], Sample] = {}
    offences: set[tuple[int, int]] = set()
    predicted: dict[str, float] = {}
    finished: dict[str, int] = {}
    for record in records(path, SAMPLE_COLUMNS, notes):
        cells = record.cells
        event, point_id = cells["event"], cells["point_id"]
        if not _checked(path.name, record, _event_kinds(cells), run_id, notes):
            continue
        detail = _detail(cells["detail"])
        if event == "sample" and not point_id.startswith("roof:"):
            sample = Sample(int(cells["process"]), int(cells["round"]), float(cells["time_s"]))
            key = (point_id, sample.process, sample.round)
            if taken.setdefault(key, sample) is not sample:
                why = "repeats a sample of the same point, process and round; left out"
                notes.add(path.name, record.row, why)
        elif event == "offence" and cells["process"] and cells["round"]:
            offences.add((int(cells["process"]), int(cells["round"])))
        elif event == "check":
            seconds = detail.get("predicted_s")
            if isinstance(seconds, (int, float)) and _SHORTEST_S <= seconds <= _LONGEST_S:
                predicted[point_id] = float(seconds)
        elif event == "finish" and detail.get("status") == "resumed":
            finished.pop(point_id, None)
        elif event == "finish":
            finished[point_id] = record.row
    samples: dict[str, list[Sample]] = {}
    suspect = 0
    for (point_id, process, number), sample in taken.items():
        if (process, number) in offences:
            suspect += 1
        else:
            samples.setdefault(point_id, []).append(sample)
    frozen = {point_id: tuple(s) for point_id, s in samples.items()}
    return _Journal(frozen, suspect, predicted, finished, not notes.mention(path.name))


def _event_kinds(cells: Mapping[str, str]) -> Mapping[str, str]:
    if cells["event"] == "sample" and not cells["point_id"].startswith("roof:"):
        numbers = {"process": "int", "round": "int", "time_s": "time"}
    else:
        numbers = {c: "int" for c in ("process", "round") if cells[c]}
    return {"event": "word", **numbers, "detail": "json"}


def _check_phases(path: Path, run_id: str | None, notes: Notes) -> None:
    kinds = {"phase": "text", "calls": "int", "time_median_s": "time"}
    for record in records(path, PHASE_COLUMNS, notes):
        _checked(path.name, record, kinds, run_id, notes)


def _checked(
    name: str, record: Record, kinds: Mapping[str, str], run_id: str | None, notes: Notes
) -> bool:
    # Whether a record is of this run and its cells are of their kinds; if not, that is noted.
    column = "run_id"
    try:
        if run_id is not None and record.cells[column] != run_id:
            raise BadCellError(f"is not the run of results.csv ({shown(run_id)})")
        for column, kind in kinds.items():
            if _read_cell(column, record.cells[column], kind) is None:
                raise BadCellError("is empty")
    except BadCellError as error:
        why = f"{error}; left out"
        notes.add(name, record.row, why, column=column, cell=record.cells[column])
        return False
    return True


def _detail(text: str) -> Mapping[str, object]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadCellError("is no JSON object")
    return value


def _read_run(path: Path) -> Mapping[str, object]:
    text = read_text(path).removeprefix("\ufeff")
    try:
        run = json.loads(text)
        _check_json(run)
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path}: is not JSON ({error})") from error
    version = run.get("schema_version") if isinstance(run, dict) else None
    if not isinstance(run, dict) or version != SCHEMA_VERSION or isinstance(version, bool):
        raise TableError(
            f"{path}: schema_version is {shown(str(version))}, only {SCHEMA_VERSION} is known"
        )
    return run


def _check_json(value: object, depth: int = 0) -> None:
    # What attnbench never writes and what would end in a figure or a report: NaN, text that no
    # file can hold, nesting without end.
    if depth > 32:
        raise ValueError("nested too deeply")
    if isinstance(value, (int, float)) and not abs(value) < _LARGEST:
        raise ValueError("a number is not finite")
    if isinstance(value, str) and foreign(value):
        raise ValueError(f"{shown(value)} {foreign(value)}")
    if isinstance(value, dict):
        for inner in (*value.keys(), *value.values()):
            _check_json(inner, depth + 1)
    if isinstance(value, list):
        for inner in value:
            _check_json(inner, depth + 1)


def _check_identity(folder: Path, points: Sequence[Point], run: Mapping[str, object]) -> None:
    for column in IDENTITY:
        for point in points:
            first, own = points[0].text(column), point.text(column)
            if own != first:
                raise TableError(
                    f"{folder / 'results.csv'}: row {point.row} has {column} {shown(own)}, row "
                    f"{points[0].row} has {shown(first)}; one folder holds one run of one build on "
                    "one machine"
                )
        stated = run.get(column)
        if points and isinstance(stated, str) and stated != points[0].text(column):
            raise TableError(
                f"{folder / 'run.json'}: {column} is {shown(stated)}, results.csv row "
                f"{points[0].row} has {shown(points[0].text(column))}; they are not of one run"
            )


def _check_finished(path: Path, points: Sequence[Point], journal: _Journal, notes: Notes) -> None:
    # A row that was cut off without a trace is missed by the journal. One that was left out is
    # named already, and its point_id stands in the file.
    missed = journal.finished.keys() - {p.point_id for p in points} if points else ()
    text = path.read_bytes() if missed else b""
    for point_id in missed:
        if f",{point_id},".encode() not in text:
            row = journal.finished[point_id]
            notes.add("samples.csv", row, "finishes a point that has no row in results.csv")


def _check_times(folder: Path, point: Point, journal: _Journal, notes: Notes) -> None:
    stated = point.number("time_median_s")
    samples = journal.samples.get(point.point_id, ())
    if stated is None and (point.status != "ok" or not samples):
        return
    where = f"{folder / 'results.csv'}: row {point.row}, point {shown(point.point_id)}"
    if not samples:
        if journal.whole:
            raise TableError(f"{where}: time_median_s {stated!r} has no sample in samples.csv")
        why = "has no sample left in samples.csv; row left out"
        notes.add("results.csv", point.row, why, column="time_median_s", cell=repr(stated))
        return
    times = [s.time_s for s in samples]
    actual = statistics.median(times)
    if stated is None:
        raise TableError(f"{where}: time_median_s is empty, its samples give {actual!r}")
    number = point.integer("samples")
    number = len(times) if number is None else number
    missing = max(0, number - len(times))
    # Whatever the missing samples were, the median lies between these two.
    low, high = (statistics.median(times + missing * [end]) for end in (0.0, math.inf))
    if not low * (1 - _SAME) <= stated <= high * (1 + _SAME):
        raise TableError(
            f"{where}: time_median_s {stated!r} is not the median {actual!r} of its "
            f"{len(times)} samples in samples.csv"
        )
    if number != len(times):
        why = "is not how many samples.csv holds of the point"
        notes.add("results.csv", point.row, why, column="samples", cell=str(number))
    lo, hi = point.number("ci95_lo_s") or 0.0, point.number("ci95_hi_s") or math.inf
    if not lo * (1 - _SAME) <= stated <= hi * (1 + _SAME):
        raise TableError(f"{where}: time_median_s {stated!r} lies outside ci95_lo_s to ci95_hi_s")
    computed = {"time_min_s": min(times)} if not missing else {}
    for rate, work in (("gflops", "flops_model"), ("gbps", "bytes_model")):
        amount = point.number(work)
        computed |= {} if amount is None else {rate: amount / stated / 1e9}
    for column, value in computed.items():
        own = point.number(column)
        if own is not None and not math.isclose(own, value, rel_tol=_SAME):
            raise TableError(f"{where}: {column} is {own!r}, but samples and work give {value!r}")
