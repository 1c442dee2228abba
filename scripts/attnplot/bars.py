# SPDX-License-Identifier: MIT
"""Bars: what the CPU kernels must reach, and what runs say of it.

The bars are data (`assets/bars.toml`). A ratio is one of paired rounds of one run, never of two
runs; its interval comes from order statistics of the rounds' ratios, as in `attnbench compare`.
"""

import itertools
import math
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from attnplot.curves import table_curves
from attnplot.document import Block, Bullets, Grid, Paragraph, Section, markdown
from attnplot.files import Cell, readme_link, split_readme, write_csv, write_readme, write_text
from attnplot.fit import Fit, fit_memory, fit_time
from attnplot.palette import order
from attnplot.table import Point, Sample, Table, TableError, load, memory_gbps, roofs

# What tells the points of a run apart here; n is `Point.n`.
_COLUMNS = (
    "backend regime dtype causal batch heads heads_kv head_dim n_q threads scope cache".split()
)
_DEFAULTS = {"scope": "core", "regime": "prefill", "dtype": "f32", "causal": "false", "batch": "1"}
BARS_COLUMNS = (
    *"work threads backend resolved_impl dtype causal heads heads_kv head_dim n_q n".split(),
    *"quantity against value lo hi bar stretch verdict why run".split(),
)
README_PART = "bars"
_SHARE = {"peak": "pct_peak", "roof": "pct_roof"}
# Verdicts from the one that weighs most on a line of several points.
_VERDICTS = ("missed", "undecided", "reached", "no bar", "not measured")
# What `--tag build=…` says of a run whose build differs on purpose.
_BUILD_TAG = "build="


@dataclass(frozen=True)
class Bar:
    """One `[[bar]]` of bars.toml, whose head explains the fields.

    Attributes:
        bar: the least value that passes; of `memory` the greatest; of `exponent` both ends.
    """

    work: str
    quantity: str
    select: Mapping[str, Sequence[str]]
    other: Mapping[str, Sequence[str]]
    on: Sequence[str]
    bar: tuple[float, ...]
    stretch: float | None
    target: str


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval (`None` without one) and what it was held against."""

    value: float
    lo: float | None
    hi: float | None
    against: str = ""


@dataclass(frozen=True)
class Reached:
    """One point under one bar; `estimate` is `None` and `why` says why where nothing was measured.

    Attributes:
        threads: `all` or `1`, as in the bar.
        barred: whether the bar holds on these threads.
        wanted: the columns that were looked for.
        point: the row, where there is one.
        run: the folder's name.
    """

    bar: Bar
    threads: str
    barred: bool
    wanted: Mapping[str, str]
    point: Point | None = None
    estimate: Estimate | None = None
    why: str = ""
    run: str = ""

    @property
    def verdict(self) -> str:
        """`reached`, `missed`, `undecided` (the interval holds the bar), `no bar`, `not measured`.

        The whole interval must lie on the good side, and what has no interval is undecided.
        """
        found = self.estimate
        if found is None:
            return "not measured"
        if not self.barred:
            return "no bar"
        if found.lo is None or found.hi is None:
            return "undecided"
        low, high = self._range()
        if low <= found.lo and found.hi <= high:
            return "reached"
        return "missed" if found.hi < low or found.lo > high else "undecided"

    @property
    def stretched(self) -> bool:
        """Whether the whole interval also passes the stretch."""
        stretch, found = self.bar.stretch, self.estimate
        if stretch is None or found is None or found.lo is None or found.hi is None:
            return False
        return found.hi <= stretch if self.bar.quantity == "memory" else found.lo >= stretch

    def _range(self) -> tuple[float, float]:
        match self.bar.quantity:
            case "memory":
                return -math.inf, self.bar.bar[0]
            case "exponent":
                return self.bar.bar[0], self.bar.bar[1]
        # A rate beyond any bar is still good.
        return self.bar.bar[0], math.inf

    def cells(self) -> list[Cell]:
        """The row, in the order of `BARS_COLUMNS`."""
        found = self.estimate or Estimate(math.nan, None, None)
        shape = [self.wanted.get(c, "") for c in "dtype causal heads heads_kv head_dim".split()]
        return [
            self.bar.work,
            self.wanted["threads"],
            self.wanted["backend"],
            self.point.text("resolved_impl") if self.point else "",
            *shape,
            self.wanted.get("n_q", ""),
            self.wanted.get("n", ""),
            self.bar.quantity,
            found.against,
            found.value if self.estimate else None,
            found.lo,
            found.hi,
            " to ".join(f"{b:g}" for b in self.bar.bar) if self.barred else None,
            self.bar.stretch if self.barred else None,
            self.verdict,
            self.why,
            self.run,
        ]


@dataclass
class Runs:
    """Runs of one machine and one tree.

    Attributes:
        tables: the loaded folders.
        peers: names of the backends that count as peers.
    """

    tables: Sequence[Table]
    peers: Sequence[str]
    _index: list[dict[tuple[str, ...], Point]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Indexes the rows."""
        self._index = [{_key(_columns(p)): p for p in t.points} for t in self.tables]

    @property
    def all_threads(self) -> str:
        """The largest number of threads that any point ran on."""
        points = [p.integer("threads") or 1 for t in self.tables for p in t.points]
        return str(max(points, default=1))

    def rows(self, wanted: Mapping[str, str], target: str) -> Iterator[tuple[Table, Point]]:
        """The rows of a problem, one a run, of the instruction set that is asked for."""
        for table, index in zip(self.tables, self._index, strict=True):
            point = index.get(_key(wanted))
            if point is None:
                continue
            if target in point.text("resolved_impl") if target else not _build_tag(point):
                yield table, point

    def row(self, table: Table, wanted: Mapping[str, str]) -> Point | None:
        """The row of a problem in one run."""
        index = next(i for i, t in enumerate(self.tables) if t is table)
        return self._index[index].get(_key(wanted))


def _columns(point: Point) -> dict[str, str]:
    cells = {c: point.text(c) for c in _COLUMNS if c != "cache"}
    cache = "cold" if point.cells["cache_mode"] == "cold" else "warm"
    return {**cells, "cache": cache, "n": str(point.n)}


def _key(columns: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(columns.get(c, "") for c in (*_COLUMNS, "n"))


def _build_tag(point: Point) -> str:
    tags = point.text("tags").split(";")
    return next((t.removeprefix(_BUILD_TAG) for t in tags if t.startswith(_BUILD_TAG)), "")


def bars() -> tuple[list[Bar], list[str]]:
    """The bars, and the names of the peers."""
    text = resources.files("attnplot").joinpath("assets", "bars.toml").read_text(encoding="utf-8")
    data: dict[str, Any] = tomllib.loads(text)
    found = []
    for entry in data["bar"]:
        limit = entry["bar"]
        found.append(
            Bar(
                entry["work"],
                entry["quantity"],
                entry["select"],
                entry.get("other", {}),
                entry["on"],
                tuple(float(b) for b in (limit if isinstance(limit, list) else [limit])),
                entry.get("stretch"),
                entry.get("target", ""),
            )
        )
    return found, list(data["peers"])


def load_runs(folders: Sequence[Path]) -> list[Table]:
    """Loads runs that may stand in one table.

    Raises:
        TableError: a folder is not a run, or they are of several machines, trees or builds. A run
            with the tag `build=NAME` may be of another build than those without.
    """
    tables = [load(folder) for folder in folders]
    first: dict[tuple[str, str], tuple[str, Path]] = {}
    for table in tables:
        for point in table.points[:1]:  # load() has seen that a folder is of one build
            for column in ("env_id", "git_sha", "build_id"):
                tag = _build_tag(point) if column == "build_id" else ""
                value = point.text(column)
                known, where = first.setdefault((column, tag), (value, table.folder))
                if known != value:
                    raise TableError(
                        f"{table.folder}: {column} is {value}, that of {where} is {known}; one "
                        "table holds runs of one build on one machine"
                    )
    return tables


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a median by order statistics; `None` with fewer than six values.

    The k-th smallest and the k-th largest, with the greatest k for which 2 · P(X < k) <= 0.05,
    X ~ Binomial(len(values), 1/2).
    """
    count = len(values)
    ordered = sorted(values)
    ends = None
    tail = 0.0
    for k in range(1, count // 2 + 1):
        tail += math.comb(count, k - 1) / 2**count
        if 2 * tail > 0.05:
            break
        ends = ordered[k - 1], ordered[count - k]
    return ends


def rate_ratio(table: Table, own: Point, other: Point) -> Estimate | None:
    """Rate of `own` ÷ rate of `other`, in model operations a second, from their common rounds."""
    work = [p.number("flops_model") or 0.0 for p in (own, other)]
    if own.time_s is None or other.time_s is None or min(work) <= 0:
        return None
    times = [_rounds(table.samples[p.point_id]) for p in (own, other)]
    common = sorted(times[0].keys() & times[1].keys())
    if not common:
        return None
    logs = [math.log(times[1][r] / times[0][r] * work[0] / work[1]) for r in common]
    ends = median_interval(logs)
    lo, hi = (None, None) if ends is None else map(math.exp, ends)
    return Estimate(math.exp(statistics.median(logs)), lo, hi, other.backend)


def _rounds(samples: Iterable[Sample]) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for sample in samples:
        found.setdefault(sample.round, []).append(sample.time_s)
    return {number: statistics.median(times) for number, times in found.items()}


def evaluate(runs: Runs, wanted_bars: Sequence[Bar]) -> list[Reached]:
    """Every bar on all threads and on one; threads without a bar only where they were measured."""
    found = []
    for bar in wanted_bars:
        names = ["all", "1"] if runs.all_threads != "1" else ["1"]
        for threads in names:
            number = runs.all_threads if threads == "all" else "1"
            barred = threads in bar.on or (names == ["1"] and "all" in bar.on)
            line = [_one(runs, Reached(bar, threads, barred, w)) for w in _wanted(bar, number)]
            if barred or any(r.estimate for r in line):
                found += line
    return found


def _wanted(bar: Bar, threads: str) -> Iterator[dict[str, str]]:
    names = list(bar.select)
    for values in itertools.product(*bar.select.values()):
        wanted = {**_DEFAULTS, "threads": threads, "cache": "warm"}
        wanted |= dict(zip(names, values, strict=True))
        wanted.setdefault("heads_kv", wanted["heads"])
        if "n" in wanted:
            decode = wanted["regime"] == "decode"
            wanted.setdefault("n_q", "1" if decode else wanted["n"])
        yield wanted


def _one(runs: Runs, empty: Reached) -> Reached:
    if empty.bar.quantity in ("exponent", "memory"):
        return _along(runs, empty)
    last = replace(empty, why="no run holds this point")
    for table, point in runs.rows(empty.wanted, empty.bar.target):
        here = replace(empty, point=point, run=table.folder.name)
        if point.time_s is None:
            last = replace(here, why=_why(point))
            continue
        if empty.bar.quantity == "rate":
            others, missing = _others(runs, table, empty)
            ratios = [rate_ratio(table, point, other) for other in others]
            estimate = min((r for r in ratios if r), key=lambda r: r.value, default=None)
        elif empty.bar.quantity == "beside":
            estimate, missing = _beside(runs, table, point)
        else:
            estimate, missing = _share(table, point, empty.bar.quantity)
        if estimate is not None:
            return replace(here, estimate=estimate)
        last = replace(here, why=missing)
    return last


def _why(point: Point) -> str:
    return f"{point.backend} is {point.status}: {point.text('status_reason')}"


def _others(runs: Runs, table: Table, empty: Reached) -> tuple[list[Point], str]:
    changed: dict[str, Sequence[str]] = dict(empty.bar.other)
    if list(changed.get("backend", ())) == ["peers"]:
        changed["backend"] = runs.peers
    if list(changed.get("n", ())) == ["next 16"]:
        changed["n"] = [str(-(-int(empty.wanted["n"]) // 16) * 16)]
    found: list[Point] = []
    missing: list[str] = []
    for values in itertools.product(*changed.values()):
        wanted = {**empty.wanted, **dict(zip(changed, values, strict=True))}
        if wanted["regime"] == "prefill":
            wanted["n_q"] = wanted["n"]
        point = runs.row(table, wanted)
        if point is not None and point.time_s is not None:
            found.append(point)
        elif point is not None:
            missing.append(_why(point))
    if "backend" in empty.bar.other:
        names = ", ".join(changed["backend"])
        return found, "; ".join(missing) or f"none of {names} is in the run"
    return found, "; ".join(missing) or "the point it is held against is not in the run"


def _share(table: Table, point: Point, quantity: str) -> tuple[Estimate | None, str]:
    if quantity == "read":
        rate, roof = memory_gbps(table, point), _read_roof(table, point)
        value = rate / roof if rate and roof else None
    else:
        percent = point.number(_SHARE[quantity])
        value = None if percent is None else percent / 100
    seconds = point.time_s
    if value is None or seconds is None:
        unstated = "the tensors are less than four last-level caches, or the roof was not measured"
        return None, unstated if quantity != "peak" else "the peak was not measured"
    lo, hi = point.number("ci95_lo_s"), point.number("ci95_hi_s")
    against = {"peak": "FMA peak", "read": "read bandwidth", "roof": "lower roof"}[quantity]
    if not lo or not hi:
        return Estimate(value, None, None, against), ""
    return Estimate(value, value * seconds / hi, value * seconds / lo, against), ""


def _beside(runs: Runs, table: Table, point: Point) -> tuple[Estimate | None, str]:
    """The rate in a run of several backends ÷ the rate in a run of this one alone.

    The rounds of two runs do not pair up, so the interval is the widest that both allow.
    """
    if _alone(table):
        return None, f"no run holds {point.backend} beside others here"
    others = (runs.row(t, _columns(point)) for t in runs.tables if _alone(t))
    alone = next((p for p in others if p is not None and p.time_s is not None), None)
    if alone is None or not alone.time_s or not point.time_s:
        return None, f"no run holds {point.backend} alone here"
    ratio = Estimate(alone.time_s / point.time_s, None, None)
    ends = [p.number(c) for p in (alone, point) for c in ("ci95_lo_s", "ci95_hi_s")]
    if not all(ends):
        return ratio, ""
    alone_lo, alone_hi, lo, hi = (end or math.nan for end in ends)
    return replace(ratio, lo=alone_lo / hi, hi=alone_hi / lo), ""


def _alone(table: Table) -> bool:
    return len({p.backend for p in table.points}) == 1


def _read_roof(table: Table, point: Point) -> float | None:
    threads = point.integer("threads")
    found = (r.value for r in roofs(table) if r.kind == "read" and r.threads == threads)
    return next(found, None)


def _along(runs: Runs, empty: Reached) -> Reached:
    """A quantity of a whole curve: the first run that gives a number."""
    last = replace(empty, why="no run holds this curve")
    for table in runs.tables:
        for curve in table_curves(table):
            columns = _columns(curve.first)
            if _build_tag(curve.first) or any(columns[c] != v for c, v in empty.wanted.items()):
                continue
            fits: Sequence[Fit | None] = fit_memory(curve)
            if empty.bar.quantity == "exponent":
                fits = [fit_time(curve)]
            for fit in [f for f in fits if f][:1]:  # of memory the scratch alone
                last = replace(empty, point=curve.first, run=table.folder.name, why=fit.verdict)
                if fit.exponent is None:
                    continue
                exact = empty.bar.quantity == "memory"
                lo, hi = (fit.exponent, fit.exponent) if exact else (fit.lo, fit.hi)
                return replace(last, estimate=Estimate(fit.exponent, lo, hi))
    return last


def bars_table(found: Sequence[Reached]) -> Grid:
    """One line a bar and thread count, showing the point that weighs most on the verdict."""
    rows = []
    for (work, _), group in itertools.groupby(found, key=lambda r: (r.bar.work, r.threads)):
        line = list(group)
        measured = [r for r in line if r.estimate]
        worst = min(line, key=_weight)
        bar, stretch = worst.bar.bar, worst.bar.stretch
        sign = {"memory": "≤ ", "exponent": "inside "}.get(worst.bar.quantity, "≥ ")
        limit = f"{sign}{bar[0]:g}" if len(bar) == 1 else f"{sign}[{bar[0]:g}, {bar[1]:g}]"
        threads = worst.wanted["threads"]
        rows.append(
            [
                work,
                threads,
                limit if worst.barred else "",
                "" if stretch is None or not worst.barred else f"{stretch:g}",
                _reached_text(worst, len(measured)),
                _verdict_text(worst, line),
            ]
        )
    return Grid("work|threads|bar|stretch|reached [95 %]|verdict".split("|"), rows)


def _weight(one: Reached) -> tuple[int, float]:
    # Of an exponent and a degree there is one a line.
    return _VERDICTS.index(one.verdict), one.estimate.value if one.estimate else math.inf


def estimate_text(found: Estimate) -> str:
    """`0.932 [0.927, 0.940]`."""
    if found.lo is None or found.hi is None:
        return f"{found.value:.3f} (no interval)"
    if found.lo == found.hi == round(found.value):
        return f"{found.value:.0f}, exact"
    return f"{found.value:.3f} [{found.lo:.3f}, {found.hi:.3f}]"


def _reached_text(worst: Reached, measured: int) -> str:
    if worst.estimate is None:
        return ""
    text = estimate_text(worst.estimate)
    if worst.bar.quantity == "rate" and "backend" in worst.bar.other:
        text += f" against {worst.estimate.against}"
    if measured > 1:
        text += f", the worst of {measured}: {_point_text(worst)}"
    return text


def _point_text(one: Reached) -> str:
    # What tells the points of a line apart.
    shown = [c for c, values in one.bar.select.items() if len(values) > 1]
    names = {"head_dim": "d"}
    words = {("causal", "true"): "causal", ("causal", "false"): "bidirectional"}
    parts = [words.get((c, one.wanted[c]), f"{names.get(c, c)} = {one.wanted[c]}") for c in shown]
    return ", ".join(parts)


def _verdict_text(worst: Reached, line: Sequence[Reached]) -> str:
    counts = {v: sum(r.verdict == v for r in line) for v in _VERDICTS}
    text = worst.verdict
    if text in ("missed", "undecided") and len(line) > 1:
        text += f" at {counts[text]} of {len(line)} points"
    if text == "reached" and all(r.stretched for r in line if r.estimate):
        text = "reached, and the stretch"
    absent = [r for r in line if r.estimate is None]
    if absent:
        reasons = "; ".join(dict.fromkeys(r.why for r in absent))
        where = "" if len(absent) == len(line) else f" at {len(absent)} of {len(line)} points"
        said = f"not measured{where} ({reasons})"
        text = said if worst.estimate is None else f"{text}; {said}"
    return text


def rate_tables(runs: Runs) -> list[tuple[str, Grid]]:
    """GFLOP/s by n and backend, for each shape at which a run measured two backends or more."""
    tables: dict[str, tuple[int, Grid]] = {}
    shape_columns = "regime dtype causal heads heads_kv head_dim threads".split()
    for table in runs.tables:
        groups: dict[tuple[str, ...], list[Point]] = {}
        for point in table.points:
            shape = [point.text(c) for c in shape_columns]
            if point.text("scope") == "core" and point.n is not None and not _build_tag(point):
                n_q = point.text("n_q") if point.text("regime") == "decode" else ""
                groups.setdefault((*shape, n_q), []).append(point)
        for (*shape, n_q), points in groups.items():
            names = sorted({p.backend for p in points if p.time_s is not None}, key=order)
            if len(names) < 2:
                continue
            title = _shape_text(dict(zip(shape_columns, shape, strict=True)), n_q)
            if tables.get(title, (0,))[0] < len(names):
                tables[title] = len(names), _rate_grid(points, names)
    return [(title, grid) for title, (_, grid) in tables.items()]


def _shape_text(shape: Mapping[str, str], n_q: str) -> str:
    heads = f"{shape['heads']} head{'' if shape['heads'] == '1' else 's'}"
    heads += f" on {shape['heads_kv']}" if shape["heads_kv"] != shape["heads"] else ""
    mask = "causal" if shape["causal"] == "true" else "bidirectional"
    queries = f", {n_q} quer{'y' if n_q == '1' else 'ies'} on n keys" if n_q else f", {mask}"
    threads = f"{shape['threads']} thread{'' if shape['threads'] == '1' else 's'}"
    return f"{shape['dtype']}{queries}, {heads}, d = {shape['head_dim']}, {threads}"


def _rate_grid(points: Sequence[Point], names: Sequence[str]) -> Grid:
    by_place = {(p.n, p.backend): p for p in points}
    rows = []
    for n in sorted({p.n for p in points if p.n is not None and p.time_s is not None}):
        cells = [str(n)]
        for name in names:
            point = by_place.get((n, name))
            rate = None if point is None else point.number("gflops")
            status = "" if point is None else point.status
            cells.append(status if rate is None or status != "ok" else f"{rate:.3g}")
        rows.append(cells)
    return Grid(["n", *names], rows)


def peers_text(runs: Runs) -> list[str]:
    """One sentence a peer: what it took part with, or why it did not."""
    sentences = []
    for name in runs.peers:
        points = [p for t in runs.tables for p in t.points if p.backend == name]
        measured = [p for p in points if p.time_s is not None]
        reasons: dict[str, int] = {}
        for point in points:
            if point.time_s is None:
                reason = f"{point.status}: {point.text('status_reason')}"
                reasons[reason] = reasons.get(reason, 0) + 1
        if not points:
            sentences.append(f"{name} did not take part: this build has no such backend")
        elif not measured:
            sentences.append(f"{name} did not take part: {'; '.join(reasons)}")
        else:
            impls = dict.fromkeys(p.text("resolved_impl") for p in measured)
            how = ", ".join(i for i in impls if i)
            text = f"{name} took part in {len(measured)} points" + (f" ({how})" if how else "")
            parts = [f"{count} are {reason}" for reason, count in reasons.items()]
            sentences.append("; ".join([text, *parts]))
    return sentences


def pools_text(runs: Runs) -> str:
    """The libraries with a pool of threads that the processes of these runs held."""
    names: dict[str, None] = {}
    for table in runs.tables:
        said = table.field("thread_runtimes")
        names |= dict.fromkeys(said if isinstance(said, list) else [])
    known = ", ".join(names) or "not said by these runs"
    return (
        f"Thread pools inside the measuring process: {known}. Peers in child processes have their "
        "own, which sleep before another backend is timed."
    )


def _bars_section(runs: Runs, found: Sequence[Reached]) -> Section:
    used = dict.fromkeys(r.point.text("resolved_impl") for r in found if r.point and r.estimate)
    impls = "; ".join(i for i in used if i)
    table = runs.tables[0]
    intro = (
        f"Measured on {table.field('machine', 'cpu_model')} with up to {runs.all_threads} threads, "
        f"commit {str(table.field('git_sha'))[:12]}. The bars are for two quiet cores with "
        f"AVX-512; here the kernels ran as: {impls or 'unknown'}. Ratios are medians over the "
        "paired rounds of one run with order-statistics intervals; a bar is reached where "
        "the whole interval passes it, missed where none of it does."
    )
    broken = [t.folder.name for t in runs.tables if t.field("interrupted") is not False]
    blocks: list[Block] = [Paragraph(intro)]
    if broken:
        said = f"Not finished: {', '.join(broken)}; --resume goes on with them."
        blocks.append(Paragraph(said, strong=True))
    blocks.append(bars_table(found))
    return Section("Bars", blocks)


def report(runs: Runs, found: Sequence[Reached]) -> str:
    """bars.md: the bars, who took part, and the rates."""
    sections = [
        _bars_section(runs, found),
        Section("Peers", [Bullets([*peers_text(runs), pools_text(runs)])]),
        *[Section(f"GFLOP/s: {title}", [grid]) for title, grid in rate_tables(runs)],
    ]
    return "\n".join(markdown(section) for section in sections)


def readme_block(runs: Runs, found: Sequence[Reached], readme: Path, out: Path) -> str:
    """A link to bars.md, and of it the bars."""
    link = f"[All rates, and who took part]({readme_link(readme, out / 'bars.md')}).\n\n"
    return link + "\n".join(map(markdown, _bars_section(runs, found).blocks))


def write_bars(
    folders: Sequence[Path], out: Path, readme: Path | None = None
) -> tuple[str, list[str], bool]:
    """Writes `bars.md` and `bars.csv` (one row a point under a bar), and the bars into a README.

    Returns:
        The Markdown; one sentence for everything that was left out; whether anything was measured.

    Raises:
        TableError: a folder cannot be trusted, the runs do not belong together, a file cannot be
            written, or the README lacks the markers.
    """
    if readme is not None:
        split_readme(readme, README_PART)  # refuse before anything is written
    wanted, peers = bars()
    runs = Runs(load_runs(folders), peers)
    found = evaluate(runs, wanted)
    text = report(runs, found)
    notes = [note for table in runs.tables for note in table.notes]
    measured = any(table.measured for table in runs.tables)
    if measured:
        write_csv(out / "bars.csv", BARS_COLUMNS, (r.cells() for r in found))
        write_text(out / "bars.md", text)
        if readme is not None:
            write_readme(readme, README_PART, readme_block(runs, found, readme, out))
    return text, notes, measured
