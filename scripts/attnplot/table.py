# SPDX-License-Identifier: MIT
"""Loads a run folder: `results.csv`, `samples.csv` and `run.json`, and checks that they agree.

What cannot be trusted is either refused by name (`TableError`: a missing column, another schema,
a median that its samples do not give) or left out by name (`Table.notes`: a torn line, a time that
is not a positive finite number). Nothing is repaired and nothing is dropped silently.
"""

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SCHEMA_VERSION = 1

# Column name -> how its cells are read. Order is the order in the file (results.csv is fixed).
RESULT_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(
        ("schema_version run_id point_id env_id build_id timestamp_utc tags").split(), "text"
    ),
    **dict.fromkeys("backend resolved_impl family sharing scope regime device".split(), "text"),
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
    **dict.fromkeys("flops_model flops_executed exps bytes_min bytes_model".split(), "float"),
    "seq_steps": "int",
    **dict.fromkeys("gflops gbps pct_peak pct_roof".split(), "float"),
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
STATUSES = frozenset(
    "ok mismatch mistrusted unsupported unavailable oom_predicted oom cutoff timeout error".split()
)
RECURRENT_FAMILIES = frozenset({"rnn", "gru", "lstm"})
_ALLOWED: Mapping[str, frozenset[str]] = {
    "status": STATUSES,
    "scope": frozenset({"core", "layer"}),
    "regime": frozenset({"prefill", "decode"}),
    "sharing": frozenset({"", "mha", "gqa", "mqa"}),
    "cache_mode": frozenset({"", "warm", "mixed", "cold"}),
}
_EVENTS = frozenset({"check", "sample", "finish", "offence"})
# C locale only: Python's float() would also take "1_000", " 1" and "infinity".
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INT = re.compile(r"-?[0-9]{1,20}")  # a seed may need all of 2^64

Cell = str | int | float | bool | None


class TableError(Exception):
    """A file of the run folder is missing, unreadable, or not what attnbench writes (exit 6)."""


class _BadCellError(ValueError):
    """A cell that cannot be read as its column's kind; the message says why."""


@dataclass(frozen=True)
class Point:
    """One row of `results.csv`: one backend at one shape.

    Attributes:
        row: line of the file, the header being row 1 (a quoted line break counts as one row).
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


def format_cell(value: Cell) -> str:
    """A value in the C locale: empty for `None`, `true`/`false`, shortest exact decimal for floats.

    Raises:
        ValueError: for NaN and infinities, which no file of ours may hold.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} must not be written")
        return repr(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return str(value)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Writes an RFC 4180 file.

    Raises:
        TableError: when the file cannot be written.
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([format_cell(v) for v in row] for row in rows)
    write_text(path, buffer.getvalue())


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text without touching its line ends.

    Raises:
        TableError: when the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise TableError(f"{path}: cannot be written ({error.strerror})") from error


def read_text(path: Path, errors: str = "strict") -> str:
    """Reads UTF-8 text without touching its line ends; `errors` as in `bytes.decode`.

    Raises:
        TableError: when the file is missing, unreadable or not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8", errors)
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{path}: byte {error.start} is not UTF-8") from error


def load(folder: Path) -> Table:
    """Loads and checks a run folder.

    Raises:
        TableError: a file is missing or foreign, a column is missing or renamed, the schema is
            another one, or a median in `results.csv` is not the median of its samples.
    """
    if not folder.is_dir():
        raise TableError(f"{folder}: no such folder")
    notes: list[str] = []
    points = _read_results(folder / "results.csv", notes)
    samples, suspect, predicted = _read_samples(folder / "samples.csv", notes)
    run = _read_run(folder / "run.json")
    for point in points:
        _check_median(folder, point, samples.get(point.point_id, ()))
    return Table(folder, tuple(points), samples, suspect, predicted, run, tuple(notes))


def _check_header(path: Path, header: Sequence[str], wanted: Sequence[str]) -> None:
    for column in wanted:
        if column not in header:
            raise TableError(f"{path}: column '{column}' is missing")
    for column in header:
        if column not in wanted:
            raise TableError(f"{path}: column '{column}' is unknown in schema {SCHEMA_VERSION}")
    if list(header) != list(wanted):
        first = next(a for a, b in zip(header, wanted, strict=False) if a != b)
        raise TableError(f"{path}: column '{first}' is not in its place, or stands twice")


def _read_cell(column: str, text: str) -> Cell:
    kind = RESULT_COLUMNS[column]
    allowed = _ALLOWED.get(column)
    if allowed is not None and text not in allowed:
        raise _BadCellError(f"is none of {', '.join(sorted(a for a in allowed if a))}")
    if kind == "text":
        return text
    if text == "":
        return None
    if kind == "bool":
        if text not in ("true", "false"):
            raise _BadCellError("is neither true nor false")
        return text == "true"
    if kind == "int":
        if _INT.fullmatch(text) is None:
            raise _BadCellError("is not an integer")
        return int(text)
    return _read_time(text) if kind == "time" else _read_float(text)


def _read_float(text: str) -> float:
    value = float(text) if _FLOAT.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise _BadCellError("is not a finite number")
    return value


def _read_time(text: str) -> float:
    value = _read_float(text)
    if value <= 0:
        raise _BadCellError("is not a positive time")
    return value


def _read_results(path: Path, notes: list[str]) -> list[Point]:
    try:
        rows = list(csv.reader(io.StringIO(read_text(path), newline=""), strict=True))
    except csv.Error as error:
        raise TableError(f"{path}: is not RFC 4180 ({error})") from error
    if not rows:
        raise TableError(f"{path}: is empty, not even a header")
    columns = list(RESULT_COLUMNS)
    _check_header(path, rows[0], columns)
    points: list[Point] = []
    seen: dict[tuple[str, ...], int] = {}
    ids: dict[str, int] = {}
    for row, fields in enumerate(rows[1:], start=2):
        if len(fields) != len(columns):
            raise TableError(f"{path}: row {row} has {len(fields)} fields, not {len(columns)}")
        if fields[0] != str(SCHEMA_VERSION):
            raise TableError(
                f"{path}: row {row} has schema_version '{fields[0]}', "
                f"only {SCHEMA_VERSION} is known"
            )
        point = _read_point(path.name, row, fields, notes)
        if point is None:
            continue
        if point.point_id in ids:
            raise TableError(
                f"{path}: rows {ids[point.point_id]} and {row} have point_id '{point.point_id}'"
            )
        ids[point.point_id] = row
        key = (*point.key_without_n, point.text("n_q"), point.text("n_kv"))
        if key in seen:
            notes.append(f"{path.name} row {row}: repeats the point of row {seen[key]}; left out")
            continue
        seen[key] = row
        points.append(point)
    return points


def _read_point(name: str, row: int, fields: Sequence[str], notes: list[str]) -> Point | None:
    cells: dict[str, Cell] = {}
    for column, text in zip(RESULT_COLUMNS, fields, strict=True):
        try:
            cells[column] = _read_cell(column, text)
        except _BadCellError as error:
            if RESULT_COLUMNS[column] == "error":
                cells[column] = None
                continue
            notes.append(f"{name} row {row}: {column} '{text}' {error}; row left out")
            return None
    return Point(row, cells)


def _read_samples(
    path: Path, notes: list[str]
) -> tuple[dict[str, tuple[Sample, ...]], int, dict[str, float]]:
    # Line by line, never across lines: a torn quoted field must not swallow what follows it, nor do
    # bytes that are not UTF-8 cost more than their line.
    text = read_text(path, errors="backslashreplace")
    lines = text.split("\n")
    last_is_torn = lines[-1] != ""
    if not last_is_torn:
        lines.pop()
    if not lines:
        raise TableError(f"{path}: is empty, not even a header")
    _check_header(path, _split_line(lines[0]) or [], SAMPLE_COLUMNS)
    taken: list[tuple[str, Sample]] = []
    rows_of: dict[tuple[str, int, int], int] = {}
    offences: set[tuple[int, int]] = set()
    predicted: dict[str, float] = {}
    for row, line in enumerate(lines[1:], start=2):
        fields = _split_line(line)
        if fields is None or len(fields) != len(SAMPLE_COLUMNS):
            notes.append(f"{path.name} row {row}: torn; left out")
            continue
        if last_is_torn and row == len(lines):
            notes.append(f"{path.name} row {row}: torn (no line end); left out")
            continue
        cells = dict(zip(SAMPLE_COLUMNS, fields, strict=True))
        try:
            if cells["event"] not in _EVENTS:
                raise _BadCellError(f"event '{cells['event']}' is unknown")
            if cells["event"] == "sample" and not cells["point_id"].startswith("roof:"):
                sample = _sample(cells)
                first = rows_of.setdefault((cells["point_id"], sample.process, sample.round), row)
                if first != row:
                    raise _BadCellError(f"repeats the sample of row {first}")
                taken.append((cells["point_id"], sample))
            elif cells["event"] == "offence" and cells["process"] and cells["round"]:
                offences.add((_integer(cells, "process"), _integer(cells, "round")))
            elif cells["event"] == "check":
                seconds = _detail(cells["detail"]).get("predicted_s")
                if isinstance(seconds, (int, float)) and 0 < seconds < math.inf:
                    predicted[cells["point_id"]] = float(seconds)
        except _BadCellError as error:
            notes.append(f"{path.name} row {row}: {error}; left out")
    samples: dict[str, list[Sample]] = {}
    suspect = 0
    for point_id, sample in taken:
        if (sample.process, sample.round) in offences:
            suspect += 1
        else:
            samples.setdefault(point_id, []).append(sample)
    return {point_id: tuple(s) for point_id, s in samples.items()}, suspect, predicted


def _split_line(line: str) -> list[str] | None:
    try:
        rows = list(csv.reader([line.removesuffix("\r")], strict=True))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else None


def _integer(cells: Mapping[str, str], column: str) -> int:
    if _INT.fullmatch(cells[column]) is None:
        raise _BadCellError(f"{column} '{cells[column]}' is not an integer")
    return int(cells[column])


def _sample(cells: Mapping[str, str]) -> Sample:
    try:
        seconds = _read_time(cells["time_s"])
    except _BadCellError as error:
        raise _BadCellError(f"time_s '{cells['time_s']}' {error}") from None
    return Sample(_integer(cells, "process"), _integer(cells, "round"), seconds)


def _detail(text: str) -> Mapping[str, object]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise _BadCellError("detail is not JSON") from None
    return value if isinstance(value, dict) else {}


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _read_run(path: Path) -> Mapping[str, object]:
    try:
        run = json.loads(read_text(path), parse_constant=_not_a_number)
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path}: is not JSON ({error})") from error
    version = run.get("schema_version") if isinstance(run, dict) else None
    if not isinstance(run, dict) or version != SCHEMA_VERSION or isinstance(version, bool):
        raise TableError(f"{path}: schema_version is {version!r}, only {SCHEMA_VERSION} is known")
    return run


def _check_median(folder: Path, point: Point, samples: Sequence[Sample]) -> None:
    stated = point.number("time_median_s")
    if stated is None and (point.status != "ok" or not samples):
        return
    where = f"{folder / 'results.csv'}: row {point.row}, point '{point.point_id}'"
    if not samples:
        raise TableError(f"{where}: time_median_s {stated!r} has no sample in samples.csv")
    actual = statistics.median(s.time_s for s in samples)
    if stated is None:
        raise TableError(f"{where}: time_median_s is empty, its samples give {actual!r}")
    if abs(stated - actual) > 1e-6 * actual:
        raise TableError(
            f"{where}: time_median_s {stated!r} is not the median {actual!r} of its "
            f"{len(samples)} samples in samples.csv"
        )
