# SPDX-License-Identifier: MIT
"""The plots of a run: each function takes a table and gives a matplotlib Figure.

All of them keep one backend in one colour, marker and dash, write the name at the end of its line,
and never draw through a size that has no time.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullFormatter

from attnplot import drawing, selection
from attnplot.crossover import crossover_all
from attnplot.curves import Curve
from attnplot.drawing import End
from attnplot.files import write_bytes
from attnplot.fit import memory_bytes
from attnplot.palette import Dash, style
from attnplot.table import (
    Point,
    Roof,
    Table,
    bandwidth_may_be_stated,
    memory_gbps,
    roofs,
)

SHARING_LINES: Mapping[str, Dash] = {"mha": "-", "gqa": (0, (5, 2)), "mqa": (0, (1, 1.3))}


class NothingToDraw(Exception):  # noqa: N818  (an answer, not a failure)
    """The run holds no point of this kind; the message says what is missing."""


def _figure(width: float = 7.6, height: float = 4.9) -> Figure:
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def _single(height: float = 4.9) -> tuple[Figure, Axes]:
    figure = _figure(height=height)
    return figure, figure.add_axes((0.095, 0.11, 0.70, 0.80))


def _require(found: Sequence[Curve], what: str) -> None:
    if not any(c.measured for c in found):
        raise NothingToDraw(f"no measured point of {what}")


def _sizes(found: Sequence[Curve]) -> list[int]:
    return [p.n for c in found for p in c.points if p.n is not None]


def _times(curve: Curve) -> dict[int, float]:
    n, times = curve.medians()
    return dict(zip(n, times, strict=True))


def _draw_all_times(ax: Axes, table: Table, found: Sequence[Curve]) -> list[End]:
    hidden = drawing.coincident([_times(c) for c in found])
    return [
        _draw_times(ax, table, c, name, hollow)
        for c, name, hollow in zip(found, selection.labels(found), hidden, strict=True)
    ]


def _draw_times(ax: Axes, table: Table, curve: Curve, label: str, hollow: bool) -> End:
    look = style(curve.backend)
    values = _times(curve)
    x, y = drawing.broken_line(curve, values)
    _ribbon(ax, curve, look.colour)
    samples = [
        (float(p.n or 0), s.time_s)
        for p in curve.measured
        for s in table.samples.get(p.point_id, ())
    ]
    ax.plot(
        [x for x, _ in samples],
        [t for _, t in samples],
        linestyle="none",
        marker=".",
        markersize=3.5,
        markeredgewidth=0,
        color=look.colour,
        alpha=0.35,
        zorder=2,
        label="_samples",
    )
    drawing.draw(ax, x, y, look, label=label, hollow=hollow)
    return End(x[-1], y[-1], label, look.colour)


def _all_times(table: Table, found: Sequence[Curve]) -> list[float]:
    # Every number that is drawn: medians, single calls, ends of intervals.
    points = [p for c in found for p in c.measured]
    ends = [p.number(c) for p in points for c in ("time_median_s", "ci95_lo_s", "ci95_hi_s")]
    calls = [s.time_s for p in points for s in table.samples.get(p.point_id, ())]
    return [t for t in ends if t is not None] + calls


def _ribbon(ax: Axes, curve: Curve, colour: str) -> None:
    # Runs of neighbours with an interval; a row without one interrupts the ribbon like the line.
    run: list[tuple[float, float, float]] = []
    for point in [*curve.points, None]:
        lo = point.number("ci95_lo_s") if point is not None and point.time_s else None
        hi = point.number("ci95_hi_s") if point is not None and point.time_s else None
        if point is not None and lo is not None and hi is not None:
            run.append((float(point.n or 0), lo, hi))
            continue
        if len(run) > 1:
            x, low, high = zip(*run, strict=True)
            ax.fill_between(x, low, high, color=colour, alpha=0.22, linewidth=0, label="_ribbon")
        run = []


def _gaps(ax: Axes, table: Table, found: Sequence[Curve]) -> list[str]:
    words = []
    for curve in found:
        if not curve.measured:
            continue
        for point in curve.points:
            if point.time_s is None:
                predicted = table.predicted_s.get(point.point_id)
                word = drawing.gap_mark(ax, point, predicted, style(curve.backend))
                reason = point.text("status_reason")
                words.append(f"× {curve.backend} at n = {point.n}: {word} – {reason}.")
    return words


def _gap_heights(table: Table, found: Sequence[Curve]) -> list[float]:
    return [
        table.predicted_s[p.point_id]
        for c in found
        if c.measured
        for p in c.points
        if p.time_s is None and p.point_id in table.predicted_s
    ]


def time(table: Table) -> Figure:
    """Seconds of a call against n at core scope, log-log, with guide slopes 1 and 2."""
    found = selection.complexity(table)
    _require(found, "core prefill attention")
    measured = [c for c in found if c.measured]
    figure, ax = _single()
    sizes = _sizes(measured)
    drawing.n_axis(ax, sizes)
    drawing.seconds_axis(ax, "time per call")
    ends = _draw_all_times(ax, table, measured)
    times = _all_times(table, measured)
    low = min(times) / 2.2
    ax.set_ylim(*drawing.padded_limits([low, *times, *_gap_heights(table, measured)], 1.5, 1.7))
    drawing.tick_log_y(ax)
    for slope in (1, 2):
        drawing.guide(ax, min(sizes), low, max(sizes), slope)
    notes = _gaps(ax, table, measured)
    drawing.label_ends(ax, ends)
    ax.set_title(f"Attention core: {selection.shape_text(measured)}")
    notes += drawing.missing_lines(found)
    drawing.footer(figure, ["Median with 95 % interval; dots are single calls.", *notes])
    return figure


def memory(table: Table) -> Figure:
    """Declared bytes (scratch + tensors) against n at core scope, log-log; exact."""
    found = selection.complexity(table)
    columns = ("mem_scratch_bytes", "mem_tensors_bytes")
    series: list[tuple[Curve, dict[int, float], str]] = []
    notes = ["Declared bytes, exact: no noise and no interval."]
    for curve, name in zip(found, selection.labels(found), strict=True):
        pairs = list(zip(*memory_bytes(curve, columns), strict=True))
        bytes_at = {n: float(b) for n, b in pairs if b > 0}
        zeros = [n for n, b in pairs if b == 0 and curve.at(n) is not None]
        notes += [f"{name} at n = {n}: 0 bytes, not drawn." for n in zeros]
        series += [(curve, bytes_at, name)] if bytes_at else []
    if not series:
        raise NothingToDraw("no row of core prefill attention states its memory")
    figure, ax = _single()
    sizes = sorted({n for _, values, _ in series for n in values})
    drawing.n_axis(ax, sizes)
    drawing.bytes_axis(ax, "memory: scratch + tensors")
    every = [b for _, values, _ in series for b in values.values()]
    low = min(every) / 2.2
    ax.set_ylim(*drawing.padded_limits([low, *every], 1.5, 2.0))
    drawing.tick_log_y(ax)
    groups: dict[tuple[tuple[int, float], ...], list[tuple[Curve, str]]] = {}
    for curve, values, name in series:
        groups.setdefault(tuple(sorted(values.items())), []).append((curve, name))
    ends = []
    for steps, members in groups.items():
        for rank, (curve, name) in enumerate(members):
            look = style(curve.backend)
            x, y = drawing.broken_line(curve, dict(steps))
            drawing.draw(ax, x, y, look, label=name, hollow=rank > 0)
        colour = style(members[0][0].backend).colour
        same = " (equal)" if len(members) > 1 else ""
        ends.append(
            End(
                float(steps[-1][0]),
                steps[-1][1],
                ",\n".join(name for _, name in members) + same,
                colour,
            )
        )
    for slope in (1, 2):
        drawing.guide(ax, sizes[0], low, sizes[-1], slope)
    drawing.label_ends(ax, ends)
    ax.set_title(f"Attention core, memory: {selection.shape_text(found)}")
    drawing.footer(figure, notes)
    return figure


def ratio(table: Table, baseline: str | None = None) -> Figure:
    """Time divided by the baseline's at the same n; the baseline's seconds stand under each n.

    Raises:
        SelectionError: the baseline is not measured here.
    """
    found = [c for c in selection.complexity(table) if c.measured]
    _require(found, "core prefill attention")
    name = selection.baseline_name(found, baseline)
    base = _times(next(c for c in found if c.backend == name))
    figure, ax = _single()
    ends = []
    values = []
    ratios = [{n: t / base[n] for n, t in _times(c).items() if n in base} for c in found]
    hidden = drawing.coincident(ratios)
    names = selection.labels(found)
    for curve, label, own, hollow in zip(found, names, ratios, hidden, strict=True):
        if not own:
            continue
        x, y = drawing.broken_line(curve, own)
        drawing.draw(ax, x, y, style(curve.backend), label=label, hollow=hollow)
        ends.append(End(x[-1], y[-1], f"{label}  {y[-1]:.2f}×", style(curve.backend).colour))
        values += list(own.values())
    sizes = sorted(base)
    drawing.n_axis(ax, sizes, f"tokens n (log scale), and the seconds of {name} at that n")
    ticks = [n for n in sizes if n & (n - 1) == 0] or sizes
    ax.xaxis.set_major_locator(FixedLocator([float(n) for n in ticks]))
    texts = [f"{n}\n{drawing.seconds_text(base[n])}" for n in ticks]
    ax.xaxis.set_major_formatter(FixedFormatter(texts))
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}×"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_ylabel(f"time ÷ time of {name} (lower is faster)")
    ax.set_ylim(*drawing.padded_limits([*values, 1.0], 1.25, 1.25))
    drawing.label_ends(ax, ends)
    ax.set_title(f"Relative to {name}: {selection.shape_text(found)}")
    drawing.footer(figure, drawing.missing_lines(selection.complexity(table)), y=-0.05)
    return figure


@dataclass(frozen=True)
class _Trail:
    """Points of one backend in the roofline: (FLOP per byte, GFLOP/s), and its label."""

    backend: str
    label: str
    decode: bool
    points: tuple[tuple[float, float], ...]


def roofline(table: Table) -> Figure:
    """GFLOP/s against arithmetic intensity, a panel per thread count, under the measured roofs."""
    panels = _trails(table)
    if not panels:
        raise NothingToDraw("no measured point of core attention with flops_model and bytes_min")
    figure = _figure(7.6 * len(panels), 4.9)
    share = 1 / len(panels)
    for i, (threads, trails) in enumerate(sorted(panels.items())):
        ax = figure.add_axes((share * (i + 0.095), 0.11, share * 0.66, 0.80))
        _roofline_panel(ax, table, threads, trails)
    lines = ["Intensity: flops_model ÷ bytes_min (each input read once, the output written once)."]
    if any(t.decode for trails in panels.values() for t in trails):
        lines.append(
            "Decode (open): MHA, GQA, MQA from left to right, at the largest n_kv and batch, where "
            "the working set is at least four times the last-level cache."
        )
    lines += [] if roofs(table) else ["run.json holds no roofs."]
    drawing.footer(figure, lines, 126 * len(panels))
    return figure


def _trails(table: Table) -> dict[str, list[_Trail]]:
    panels: dict[str, list[_Trail]] = {}
    seen = set()
    mha = [c for c in selection.sharing(table) if c.first.text("sharing") == "mha"]
    for curve in [*selection.complexity(table), *mha]:
        points = tuple(q for p in curve.measured if (q := _intensity(p)) is not None)
        if points and curve.key not in seen:
            seen.add(curve.key)
            trail = _Trail(curve.backend, curve.backend, False, points)
            panels.setdefault(curve.first.text("threads"), []).append(trail)
    last: dict[tuple[str, str], list[Point]] = {}
    for curve in selection.decode(table):
        stated = [p for p in curve.measured if bandwidth_may_be_stated(table, p)]
        if stated and stated[-1] is curve.measured[-1]:
            last.setdefault((curve.first.text("threads"), curve.backend), []).append(stated[-1])
    for (threads, backend), ends in last.items():
        batch = max(p.integer("batch") or 1 for p in ends)
        kept = [q for p in ends if (p.integer("batch") or 1) == batch if (q := _intensity(p))]
        if kept:
            trail = _Trail(backend, f"{backend} decode", True, tuple(sorted(kept)))
            panels.setdefault(threads, []).append(trail)
    return panels


def _intensity(point: Point) -> tuple[float, float] | None:
    flops, size, rate = (point.number(c) for c in ("flops_model", "bytes_min", "gflops"))
    return (flops / size, rate) if flops and size and rate else None


def _roofline_panel(ax: Axes, table: Table, threads: str, trails: Sequence[_Trail]) -> None:
    ends = []
    hidden = drawing.coincident([{round(x * 1e6): y for x, y in t.points} for t in trails])
    for trail, hollow in zip(trails, hidden, strict=True):
        x, y = [p[0] for p in trail.points], [p[1] for p in trail.points]
        look = style(trail.backend)
        line = (0, (1, 2)) if trail.decode else None
        drawing.draw(ax, x, y, look, line=line, label=trail.label, hollow=hollow or trail.decode)
        ends.append(End(x[-1], y[-1], trail.label, look.colour))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.set_xlabel("arithmetic intensity (FLOP per byte, log scale)")
    ax.set_ylabel("GFLOP/s (log scale)")
    own = [r for r in roofs(table) if str(r.threads) == threads and r.dtype == "f32"]
    peak = max((r.value for r in own if r.unit == "gflops"), default=None)
    knees = [peak / r.value for r in own if r.kind == "read" and peak is not None]
    xs, ys = zip(*(p for t in trails for p in t.points), strict=True)
    # Far enough left that the slanted roof is seen.
    left = min([min(xs) / 2, *(k / 4 for k in knees)])
    ax.set_xlim(left, max(xs) * 1.5)
    ax.set_ylim(*drawing.padded_limits([*ys, *([peak] if peak else [])], 2.0, 1.8))
    drawing.tick_log_y(ax)
    _roof_lines(ax, own)
    drawing.label_ends(ax, ends)
    ax.set_title(f"Roofline, {threads} thread{'' if threads == '1' else 's'}")


def _roof_lines(ax: Axes, own: Sequence[Roof]) -> None:
    left, right = ax.get_xlim()
    top = max((r.value for r in own if r.unit == "gflops"), default=ax.get_ylim()[1])
    for roof in own:
        if roof.unit == "gflops":
            text = {"fma": "FMA peak", "gemm": "GEMM"}.get(roof.kind, roof.kind)
            ax.plot(
                [left, right],
                [roof.value] * 2,
                linestyle="-",
                label="_roof",
                color="#404040",
                linewidth=1.1,
                zorder=1,
            )
            above = roof.value == top
            ax.annotate(
                f"{text} {roof.value:.0f} GFLOP/s",
                xy=(right, roof.value),
                xytext=(-4, 3 if above else -3),
                textcoords="offset points",
                ha="right",
                va="bottom" if above else "top",
                fontsize=drawing.SMALL,
                color="#404040",
            )
        elif roof.kind == "read":
            knee = top / roof.value
            ax.plot(
                [left, knee],
                [left * roof.value, top],
                linestyle="-",
                label="_roof",
                color="#404040",
                linewidth=1.1,
                zorder=1,
            )
            x = math.sqrt(knee * max(left, ax.get_ylim()[0] / roof.value))
            low, high = ax.transData.transform([(x, x * roof.value), (2 * x, 2 * x * roof.value)])
            ax.annotate(
                f"read {roof.value:.0f} GB/s",
                xy=(x, x * roof.value),
                xytext=(-2, 3),
                textcoords="offset points",
                rotation=math.degrees(math.atan2(high[1] - low[1], high[0] - low[0])),
                rotation_mode="anchor",
                ha="center",
                va="bottom",
                fontsize=drawing.SMALL,
                color="#404040",
            )


def decode(table: Table) -> Figure:
    """Time per token against n_kv, a column per batch; below it GB/s where they speak of memory."""
    found = selection.decode(table)
    _require(found, "decode")
    batches = sorted({c.first.integer("batch") or 1 for c in found})
    stated = [p for c in found for p in c.measured if memory_gbps(table, p) is not None]
    rows = 2 if stated else 1
    figure = _figure(6.6 * len(batches), 3.9 * rows)
    figure.subplots_adjust(0.08, 0.09, 0.87, 0.93, wspace=0.62, hspace=0.36)
    axes = figure.subplots(rows, len(batches), squeeze=False)
    shown = {"mha", "gqa", "mqa"} & {c.first.text("sharing") for c in found}
    for column, batch in enumerate(batches):
        group = [c for c in found if (c.first.integer("batch") or 1) == batch]
        _decode_panel(axes[0][column], group, batch)
        if stated:
            _bandwidth_panel(axes[1][column], table, group, batch)
    words = {"mha": "solid MHA", "gqa": "dashed GQA", "mqa": "dotted MQA"}
    lines = [", ".join(words[s] for s in ("mha", "gqa", "mqa") if s in shown) + "."]
    lines += ["Warm decode whose working set fits the last-level cache measures the cache."]
    drawing.footer(figure, lines, 100 * len(batches))
    return figure


def _decode_panel(ax: Axes, group: Sequence[Curve], batch: int) -> None:
    ends = []
    series = [{n: t / batch for n, t in _times(c).items()} for c in group]
    hidden = drawing.coincident(series)
    names = selection.labels(group)
    for curve, label, values, hollow in zip(group, names, series, hidden, strict=True):
        x, y = drawing.broken_line(curve, values)
        line = SHARING_LINES.get(curve.first.text("sharing"), "-")
        drawing.draw(ax, x, y, style(curve.backend), line=line, label=label, hollow=hollow)
        ends.append(End(x[-1], y[-1], label, style(curve.backend).colour))
    drawing.n_axis(ax, _sizes(group), "cached tokens n_kv (log scale)")
    per = "time per token" if batch == 1 else f"time per token (call ÷ {batch})"
    drawing.seconds_axis(ax, per)
    ax.set_ylim(*drawing.padded_limits((t for v in series for t in v.values()), 1.4, 1.4))
    drawing.tick_log_y(ax)
    drawing.label_ends(ax, ends, 0.075)
    ax.set_title(f"Decode: {selection.shape_text(group)}")


def _bandwidth_panel(ax: Axes, table: Table, group: Sequence[Curve], batch: int) -> None:
    ends = []
    top = 0.0
    for curve, label in zip(group, selection.labels(group), strict=True):
        rates = [(float(p.n or 0), memory_gbps(table, p)) for p in curve.measured]
        points = [(n, rate) for n, rate in rates if rate is not None]
        if not points:
            continue
        x, y = [p[0] for p in points], [p[1] for p in points]
        line = SHARING_LINES.get(curve.first.text("sharing"), "-")
        drawing.draw(ax, x, y, style(curve.backend), line=line, label=label)
        ends.append(End(x[-1], y[-1], label, style(curve.backend).colour))
        top = max(top, *y)
    drawing.n_axis(ax, _sizes(group), "cached tokens n_kv (log scale)")
    ax.set_ylabel("achieved GB/s (bytes_min ÷ median)")
    threads = group[0].first.text("threads")
    if not ends:
        ax.set_ylim(0, 1)
        ax.set_yticks([])
        ax.grid(visible=False)
        ax.text(
            0.5,
            0.5,
            "no bandwidth stated:\nevery working set is smaller\nthan 4 × the last-level cache",
            transform=ax.transAxes,
            ha="center",
            va="center",
            color=drawing.GREY,
        )
    read = [r for r in roofs(table) if r.kind == "read" and str(r.threads) == threads]
    if ends:
        for roof in read[:1]:
            ax.axhline(roof.value, color="#404040", linewidth=1.1, zorder=1)
            top = max(top, roof.value)
            ax.annotate(
                f"read {roof.value:.0f} GB/s",
                xy=(0.01, roof.value),
                xycoords=ax.get_yaxis_transform(),
                xytext=(0, 3),
                textcoords="offset points",
                fontsize=drawing.SMALL,
                color="#404040",
            )
        ax.set_ylim(0, 1.15 * top)
        drawing.label_ends(ax, ends, 0.075)
    ax.set_title(f"Bandwidth, batch {batch}")


def sharing(table: Table) -> Figure:
    """GFLOP/s of prefill against n for MHA, GQA and MQA, a panel per backend on one scale."""
    found = selection.sharing(table)
    _require(found, "prefill at several heads_kv")
    backends = list(dict.fromkeys(c.backend for c in found))
    figure = _figure(5.4 * len(backends), 4.2)
    figure.subplots_adjust(0.07, 0.13, 0.93, 0.88, wspace=0.34)
    panels = figure.subplots(1, len(backends), squeeze=False)[0]
    top = max(p.number("gflops") or 0.0 for c in found for p in c.measured)
    for ax, backend in zip(panels, backends, strict=True):
        ends = []
        group = [c for c in found if c.backend == backend]
        series = [{p.n or 0: p.number("gflops") or math.nan for p in c.measured} for c in group]
        hidden = drawing.coincident(series, 0.03)
        for curve, values, hollow in zip(group, series, hidden, strict=True):
            x, y = drawing.broken_line(curve, values)
            kind = curve.first.text("sharing")
            line = SHARING_LINES.get(kind, "-")
            label = f"{kind.upper()} {curve.first.text('heads_kv')}"
            drawing.draw(ax, x, y, style(backend), line=line, label=label, hollow=hollow)
            ends.append(End(x[-1], y[-1], label, style(backend).colour))
        drawing.n_axis(ax, _sizes(group))
        ax.set_ylim(0, 1.12 * top)
        ax.set_ylabel("GFLOP/s (flops_model ÷ median)")
        drawing.label_ends(ax, ends, 0.06)
        ax.set_title(backend)
    lines = [f"Core prefill: {selection.shape_text(found)}; the number is heads_kv."]
    lines += ["flops_model is the same for all three, so higher is faster in the same proportion."]
    drawing.footer(figure, lines, 84 * len(backends))
    return figure


def layer(table: Table) -> Figure:
    """Seconds of a whole layer against n: attention and recurrences, their crossovers ringed."""
    found = selection.layers(table)
    _require(found, "a layer")
    measured = [c for c in found if c.measured]
    figure, ax = _single(5.6)
    drawing.n_axis(ax, _sizes(measured))
    drawing.seconds_axis(ax, "time per call")
    ends = _draw_all_times(ax, table, measured)
    times = _all_times(table, measured)
    ax.set_ylim(*drawing.padded_limits([*times, *_gap_heights(table, measured)], 1.7, 2.2))
    drawing.tick_log_y(ax)
    notes = _gaps(ax, table, measured)
    keys = {c.key for c in measured}
    crossed = [c for c in crossover_all(table) if c.a.key in keys and c.b.key in keys and c.n_star]
    crossed.sort(key=lambda c: c.n_star or 0.0)
    number: Annotation | None = None
    for i, cross in enumerate(crossed, start=1):
        n_star = cross.n_star or 0.0
        y = math.exp(_interpolate(cross.b, n_star))
        ax.plot(
            [n_star],
            [y],
            marker="o",
            markersize=11,
            markerfacecolor="none",
            markeredgecolor="black",
            markeredgewidth=1.2,
            linestyle="none",
            zorder=6,
            label="_crossover",
        )
        # Rings that nearly touch share one label: two would cover each other.
        if number and _points_apart(ax, number.xy, (n_star, y)) < 16:
            number.set_text(f"{number.get_text()}, {i}")
        else:
            number = ax.annotate(
                str(i),
                xy=(n_star, y),
                xytext=(-8, 7),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontweight="bold",
                zorder=7,
                bbox={"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"},
            )
        notes.append(f"({i}) {cross.sentence}")
    drawing.label_ends(ax, ends, 0.048)
    width = measured[0].first.text("d_model")
    attention = [c for c in measured if not c.first.recurrent] or measured
    ax.set_title(f"Layer, d_model {width}: {selection.shape_text(attention)}")
    drawing.footer(figure, notes + drawing.missing_lines(found))
    return figure


def _points_apart(ax: Axes, a: tuple[float, float], b: tuple[float, float]) -> float:
    # Typographic points, of which 72 are an inch, between two places in data coordinates.
    pixels = math.dist(*ax.transData.transform([a, b]).tolist())
    return pixels * 72 / ax.figure.dpi


def _interpolate(curve: Curve, n: float) -> float:
    sizes, times = curve.medians()
    for i in range(len(sizes) - 1):
        if sizes[i] <= n <= sizes[i + 1]:
            share = math.log(n / sizes[i]) / math.log(sizes[i + 1] / sizes[i])
            return math.log(times[i]) + share * math.log(times[i + 1] / times[i])
    return math.log(times[-1])


KINDS: Mapping[str, Callable[[Table], Figure]] = {
    "time": time,
    "memory": memory,
    "ratio": ratio,
    "roofline": roofline,
    "decode": decode,
    "sharing": sharing,
    "layer": layer,
}


def make(table: Table, kind: str, baseline: str | None = None) -> Figure:
    """The figure of one kind.

    Raises:
        NothingToDraw: the run holds no such point.
        SelectionError: the baseline is not measured.
    """
    with _style():
        return ratio(table, baseline) if kind == "ratio" else KINDS[kind](table)


def save(figure: Figure, folder: Path, kind: str) -> list[Path]:
    """Writes DIR/figures/KIND.png and .svg, byte for byte the same for the same results.

    Raises:
        TableError: when a file cannot be written.
    """
    paths = [folder / "figures" / f"{kind}.{suffix}" for suffix in ("png", "svg")]
    # No side of a picture may have 2^16 pixels; half of that leaves room for labels and footers.
    dpi = min(160.0, 2**15 / max(figure.get_size_inches()))
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        picture = io.BytesIO()
        with _style():
            figure.savefig(
                picture,
                format=path.suffix[1:],
                dpi=dpi,
                bbox_inches="tight",
                pad_inches=0.12,
                metadata=metadata,
            )
        write_bytes(path, picture.getvalue())
    return paths


@contextlib.contextmanager
def _style() -> Iterator[None]:
    # Names and reasons may hold any character; one that the font lacks is drawn as a box.
    with mpl.rc_context(drawing.rc()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
