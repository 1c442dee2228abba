# SPDX-License-Identifier: MIT
"""`report.html`: the report and every point of the run as one file that loads nothing.

Rendered by jinja2 with autoescape on, because an escaper that works by default cannot be forgotten
at one of a hundred places.
"""

import base64
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from attnplot import __version__, selection
from attnplot.curves import Curve
from attnplot.document import NONE, Block, Picture, Section
from attnplot.drawing import bytes_text, seconds_text, three_digits
from attnplot.inline_svg import description, inline_svg, notes, printable
from attnplot.palette import order
from attnplot.table import Point, Table
from attnplot.tables import bandwidth_text

_ASSETS = Path(__file__).parent / "assets"
# A number with or without a unit: such columns are right-aligned.
_QUANTITY = re.compile(r"[0-9.]+( [^0-9]+)?")
# These two close the page; in Markdown they open it. On a screen results come first.
_LAST = ("Method", "Machine and build")


@dataclass(frozen=True)
class PointView:
    """A row of the table of points, as it is shown.

    Attributes:
        name: what tells it from the others, for its details and their button.
        cells: texts of the columns of `COLUMNS`.
        keys: what the columns are sorted by: a number in the C locale, or empty for the text.
        status: the row's status.
        noisy: the row is marked noisy.
        reason: why there is no time.
        details: (label, text) pairs, empty ones left out.
        command: what measures it again.
    """

    name: str
    cells: Sequence[str]
    keys: Sequence[str]
    status: str
    noisy: bool
    reason: str
    details: Sequence[tuple[str, str]]
    command: str


@dataclass(frozen=True)
class Column:
    """A column of the table of points: a filter is offered where `filtered`."""

    title: str
    numeric: bool = False
    filtered: bool = False


COLUMNS = (
    Column("backend", filtered=True),
    Column("part", filtered=True),
    Column("n", numeric=True),
    Column("median", numeric=True),
    Column("95 % interval", numeric=True),
    Column("samples", numeric=True),
    Column("status", filtered=True),
    Column("GFLOP/s", numeric=True),
    Column("sharing", filtered=True),
    Column("shape", filtered=True),
)


@dataclass(frozen=True)
class FigureView:
    """A figure in the page: its element, the sentences under it, and how many panels wide it is."""

    svg: Markup
    notes: str
    panels: int


def page(table: Table, sections: Sequence[Section], drawn: Mapping[str, Figure]) -> str:
    """The text of `report.html`.

    Args:
        table: the run, for its points.
        sections: what `report.compose` gives.
        drawn: the figures that the sections show, by kind.
    """
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["runs"] = _runs
    environment.filters["numeric"] = _numeric_columns
    environment.filters["tied"] = _tied
    style, script = (_asset(name) for name in ("page.css", "page.js"))
    opening, *rest = sections
    rest.sort(key=lambda s: _LAST.index(s.title) if s.title in _LAST else -1)
    views = [_view(table, p) for p in sorted(table.points, key=_by_backend)]
    return environment.get_template("page.html.jinja").render(
        opening=opening,
        sections=[s for s in rest if s.title not in _LAST],
        last=[s for s in rest if s.title in _LAST],
        figures={kind: _figure(kind, figure, sections) for kind, figure in drawn.items()},
        facts=_facts(table),
        columns=COLUMNS,
        points=views,
        choices=_choices(views),
        measured=len(table.measured),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        version=__version__,
        dash=NONE,
    )


def _finalize(value: object) -> object:
    return printable(value) if type(value) is str else value


def _tied(text: str) -> str:
    # Prose never breaks inside `n = 128` or `95 %`.
    return text.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")


def _asset(name: str) -> Markup:
    return Markup((_ASSETS / name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _runs(blocks: Iterable[Block]) -> list[tuple[str, list[Block]]]:
    # Neighbours of one type together: figures share a row where there is room.
    return [(kind.__name__, list(run)) for kind, run in itertools.groupby(blocks, key=type)]


def _numeric_columns(rows: Sequence[Sequence[str]]) -> list[bool]:
    return [
        any(cells) and all(_QUANTITY.fullmatch(c) for c in cells if c)
        for cells in zip(*rows, strict=True)
    ]


def _figure(kind: str, figure: Figure, sections: Sequence[Section]) -> FigureView:
    captions = [
        block.caption
        for section in sections
        for block in section.blocks
        if isinstance(block, Picture) and block.kind == kind
    ]
    label = f"{'. '.join(captions)}. {description(figure)}"
    # An axes pair one above the other is one panel wide.
    panels = len({round(ax.get_position().x0, 3) for ax in figure.axes})
    return FigureView(Markup(inline_svg(figure, kind, label)), notes(figure), panels)


def _facts(table: Table) -> list[tuple[str, str]]:
    fields: Sequence[tuple[str, Sequence[str]]] = (
        ("machine", ("machine", "cpu_model")),
        ("measured", ("finished_utc",)),
        ("compiler", ("compiler", "toolchain")),
        ("build", ("build_id",)),
        ("commit", ("git_sha",)),
    )
    found = [(label, table.field(*path)) for label, path in fields]
    return [(label, value) for label, value in found if isinstance(value, str) and value]


def _by_backend(point: Point) -> tuple[Any, ...]:
    return (order(point.backend), point.key_without_n, point.n or 0, point.row)


def _choices(views: Sequence[PointView]) -> list[tuple[int, str, list[str]]]:
    found = []
    for i, column in enumerate(COLUMNS):
        values = sorted({view.cells[i] for view in views} - {""})
        if column.title == "status" and any(view.noisy for view in views):
            values.append("noisy")
        if column.filtered and len(values) > 1:
            found.append((i, column.title, values))
    return found


def _view(table: Table, point: Point) -> PointView:
    n = str(point.n) if point.n is not None else f"{point.text('n_q')} × {point.text('n_kv')}"
    part = f"{point.text('scope')} {point.text('regime')}"
    shape = selection.shape_text([Curve(point.key_without_n, (point,), {})])
    if point.text("d_model"):
        shape += f", d_model {point.text('d_model')}"
    if point.cells["cache_mode"] == "cold":
        shape += ", cold cache"
    sharing = point.text("sharing").upper()
    if sharing and point.text("heads_kv"):
        sharing += f" ({point.text('heads_kv')})"
    keys = {
        "n": str(point.n or point.text("n_q")),
        "median": point.text("time_median_s"),
        "95 % interval": point.text("ci95_lo_s"),
        "samples": point.text("samples"),
        "GFLOP/s": point.text("gflops"),
    }
    cells = (
        point.backend,
        part,
        n,
        _seconds(point, "time_median_s"),
        _between(point, "ci95_lo_s", "ci95_hi_s"),
        point.text("samples"),
        point.status,
        _three(point, "gflops"),
        sharing,
        shape,
    )
    return PointView(
        name=", ".join(t for t in (point.backend, part, shape, sharing, f"n = {n}") if t),
        cells=cells,
        status=point.status,
        keys=[keys.get(column.title, "") for column in COLUMNS],
        noisy=point.cells["noisy"] is True,
        reason=point.text("status_reason"),
        details=[pair for pair in _details(table, point) if pair[1]],
        command=point.text("repro_cmd"),
    )


def _details(table: Table, point: Point) -> list[tuple[str, str]]:
    timed = point.time_s is not None
    calls = ", ".join(
        f"{column.replace('_', ' ')} {point.text(column)}"
        for column in ("rounds", "processes", "outliers", "stop_reason")
        if point.text(column)
    )
    shares = [
        f"{_three(point, column)} % of {what}"
        for column, what in (("pct_peak", "peak"), ("pct_roof", "the roof"))
        if point.text(column)
    ]
    memory = [
        f"{what} {bytes_text(size)}"
        for column, what in (
            ("mem_scratch_bytes", "scratch"),
            ("mem_state_bytes", "state"),
            ("mem_tensors_bytes", "tensors"),
            ("mem_kv_cache_bytes", "KV cache"),
            ("mem_peak_bytes", "peak"),
        )
        if (size := point.number(column)) is not None
    ]
    error = ""
    if point.text("err_scaled"):
        error = f"{_exponential(point, 'err_scaled')} of at most {_exponential(point, 'err_bound')}"
        error += f" ({point.text('verify_mode')})" if point.text("verify_mode") else ""
    decode = timed and point.text("regime") == "decode"
    return [
        ("fastest", _seconds(point, "time_min_s")),
        ("quartiles", _between(point, "time_q1_s", "time_q3_s")),
        ("calls", calls if timed else ""),
        ("cache", point.text("cache_mode")),
        ("throughput", ", ".join(shares)),
        ("bandwidth", bandwidth_text(table, point) if decode else ""),
        ("memory", ", ".join(memory)),
        ("scaled error", error),
        ("runs as", point.text("resolved_impl")),
        ("tags", point.text("tags")),
        ("point", point.point_id),
    ]


def _seconds(point: Point, column: str) -> str:
    value = point.number(column)
    return "" if value is None else seconds_text(value)


def _between(point: Point, low: str, high: str) -> str:
    first, last = (_seconds(point, column) for column in (low, high))
    if not first or not last:
        return ""
    # "44.1 – 44.6 µs", and both units where they differ.
    unit = last[last.index(" ") :]
    return f"{first.removesuffix(unit)} – {last}"


def _three(point: Point, column: str) -> str:
    value = point.number(column)
    return "" if value is None else three_digits(value)


def _exponential(point: Point, column: str) -> str:
    value = point.number(column)
    return "none" if value is None else f"{value:.1e}"
