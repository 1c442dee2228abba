# SPDX-License-Identifier: MIT
"""Parts that every plot is made of: axes with units, labels at line ends, guides, gaps, footers."""

import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    EngFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
)

from attnplot.curves import Curve
from attnplot.palette import Dash, Style
from attnplot.table import Point

_RC: Mapping[str, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#606060",
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.hashsalt": "attnplot",
    "svg.fonttype": "none",
    # Names are text: a "$" in one begins no formula.
    "text.parse_math": False,
}
SMALL = 8
GREY = "#707070"
# A footer explains a figure; what is longer than this stands in the tables, whole.
MAX_SENTENCE = 600
MAX_LINES = 60
# Statuses that end or interrupt a measured curve, in the words of the mark.
_GAP_WORDS = {
    "cutoff": "cut off",
    "timeout": "time-out",
    "oom": "out of memory",
    "oom_predicted": "too large",
    "error": "error",
    "mismatch": "mismatch",
    "mistrusted": "mistrusted",
    "unsupported": "unsupported",
    "unavailable": "unavailable",
}


def rc() -> Any:  # matplotlib types the names of its 300 settings one by one
    """The settings under which every plot is made and saved."""
    return dict(_RC)


@dataclass(frozen=True)
class End:
    """A label for the end of a line, in data coordinates."""

    x: float
    y: float
    text: str
    colour: str


def n_axis(ax: Axes, sizes: Iterable[int], label: str = "tokens n (log scale)") -> None:
    """Logarithmic axis of n, ticks at the powers of two among the sizes, written out in full."""
    every = sorted(set(sizes))
    ticks = [n for n in every if n & (n - 1) == 0] or every
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator([float(t) for t in ticks]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(every[0] / 1.12, every[-1] * 1.12)
    ax.set_xlabel(label)


def seconds_axis(ax: Axes, label: str) -> None:
    """Logarithmic axis of time: ticks read 10 µs, 1 ms, 2 s."""
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(EngFormatter(unit="s"))
    ax.set_ylabel(label)


def bytes_axis(ax: Axes, label: str) -> None:
    """Logarithmic axis of bytes: ticks read 100 kB, 1 MB."""
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(EngFormatter(unit="B"))
    ax.set_ylabel(label)


def tick_log_y(ax: Axes) -> None:
    """Ticks at 1, 2, 5 of each decade where the range is short, at the decades where it is not.

    Call it with the final limits.
    """
    low, high = ax.get_ylim()
    subs = (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    ax.yaxis.set_minor_formatter(NullFormatter())


def seconds_text(value: float) -> str:
    """Three significant digits and a unit: 64.2 µs, 1.93 s."""
    for limit, unit, factor in ((1e-6, "ns", 1e9), (1e-3, "µs", 1e6), (1.0, "ms", 1e3)):
        if value < limit * 0.9995:
            return f"{three_digits(value * factor)} {unit}"
    return f"{three_digits(value)} s"


def bytes_text(value: float) -> str:
    """Three significant digits and a decimal unit: 268 MB."""
    for limit, unit, factor in ((1e3, "B", 1.0), (1e6, "kB", 1e3), (1e9, "MB", 1e6)):
        if value < limit * 0.9995:
            return f"{three_digits(value / factor)} {unit}"
    return f"{three_digits(value / 1e9)} GB"


def cache_text(value: int) -> str:
    """A binary unit where it divides the size: 32 KiB, 1 MiB, else as `bytes_text`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:g} {unit}" if value % (size // 4) == 0 else bytes_text(value)
    return bytes_text(value)


def three_digits(value: float) -> str:
    """Three significant digits without an exponent: 0.0123, 8.39, 177."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    # 9.996 rounds to 10.00: one digit too many.
    return (
        f"{float(text):.{max(0, decimals - 1)}f}" if float(text) >= 10 ** (3 - decimals) else text
    )


def broken_line(curve: Curve, values: Mapping[int, float]) -> tuple[list[float], list[float]]:
    """Gives x and y of a curve, with a break (NaN) wherever a row between two values has none.

    Args:
        curve: the curve, whose rows without a value interrupt the line.
        values: y by n.
    """
    x: list[float] = []
    y: list[float] = []
    for point in curve.points:
        n = point.n or 0
        x.append(float(n))
        y.append(values.get(n, math.nan))
    while y and math.isnan(y[-1]):
        x.pop()
        y.pop()
    return x, y


def draw(
    ax: Axes,
    x: Sequence[float],
    y: Sequence[float],
    look: Style,
    *,
    line: Dash | None = None,
    label: str = "",
    hollow: bool = False,
) -> None:
    """One line in the style of its backend; `line` overrides the dashes.

    `hollow` markers are larger and open: what lies under them stays visible.
    """
    ax.plot(
        x,
        y,
        color=look.colour,
        linestyle=look.line if line is None else line,
        marker=look.marker,
        markerfacecolor="none" if hollow else look.colour,
        markeredgecolor=look.colour if hollow else "white",
        markeredgewidth=1.3 if hollow else 0.5,
        markersize=8 if hollow else 5,
        label=label or "_nolegend_",
        zorder=3,
    )


def label_ends(ax: Axes, ends: Sequence[End], gap: float = 0.052) -> None:
    """Writes labels in a column right of the axes, moved apart where they would overlap.

    Call it last: it needs the final limits.

    Args:
        ax: axes whose limits are set.
        ends: labels, in any order.
        gap: least distance of two labels, as a fraction of the axes' height.
    """
    if not ends:
        return
    placed = sorted(ends, key=lambda e: (_fraction(ax, e)[1], e.text))
    lines = [e.text.count("\n") + 1 for e in placed]
    gaps = [gap * (a + b) / 2 for a, b in itertools.pairwise(lines)]
    heights = spread([_fraction(ax, e)[1] for e in placed], gaps)
    for end, height in zip(placed, heights, strict=True):
        ax.annotate(
            end.text,
            xy=(end.x, end.y),
            xytext=(1.035, height),
            textcoords="axes fraction",
            color=end.colour,
            va="center",
            ha="left",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": end.colour,
                "linewidth": 0.7,
                "alpha": 0.6,
                "shrinkA": 1,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )


def spread(heights: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Moves ascending heights apart, inside [0, 1] as far as they fit.

    Args:
        heights: wanted positions, ascending.
        gaps: least distance between each and the next.
    """
    found = [min(max(h, 0.0), 1.0) for h in heights]
    for _ in range(400):
        worst = 0.0
        for i, gap in enumerate(gaps):
            short = gap - (found[i + 1] - found[i])
            if short > 0:
                found[i] -= short / 2
                found[i + 1] += short / 2
                worst = max(worst, short)
        found = [min(max(h, 0.0), 1.0) for h in found] if sum(gaps) <= 1 else found
        if worst < 1e-4:
            break
    return found


def _fraction(ax: Axes, end: End) -> tuple[float, float]:
    x, y = ax.transAxes.inverted().transform(ax.transData.transform((end.x, end.y)))
    return float(x), float(y)


def guide(ax: Axes, x0: float, y0: float, x1: float, slope: int) -> None:
    """A dotted line of slope 1 or 2 in log-log from (x0, y0) to x1, named at its end."""
    y1 = y0 * (x1 / x0) ** slope
    ax.plot([x0, x1], [y0, y1], color="#9a9a9a", linestyle=(0, (1, 2)), linewidth=1.2, zorder=1)
    low, high = ax.transData.transform([(x0, y0), (x1, y1)])
    angle = math.degrees(math.atan2(high[1] - low[1], high[0] - low[0]))
    position = 0.80
    ax.annotate(
        "slope 1: ∝ n" if slope == 1 else f"slope {slope}: ∝ n²",
        xy=(x0 * (x1 / x0) ** position, y0 * (y1 / y0) ** position),
        xytext=(0, -3),
        textcoords="offset points",
        rotation=angle,
        rotation_mode="anchor",
        ha="center",
        va="top",
        color=GREY,
        fontsize=SMALL,
    )


def gap_mark(ax: Axes, point: Point, y: float | None, look: Style) -> str:
    """An open cross where a point is missing, with the word that says why.

    Args:
        ax: axes with final limits.
        point: the row without a time.
        y: predicted value, or `None` to put the mark at the upper edge.
        look: style of the backend.

    Returns:
        The text of the mark.
    """
    word = _GAP_WORDS.get(point.status, point.status)
    inside = y is not None and ax.get_ylim()[0] <= y <= ax.get_ylim()[1]
    transform = ax.transData if inside else ax.get_xaxis_transform()
    x, height = float(point.n or 0), y if inside and y is not None else 0.975
    ax.plot(
        [x],
        [height],
        marker="x",
        markersize=7,
        markeredgewidth=1.6,
        color=look.colour,
        linestyle="none",
        transform=transform,
        clip_on=False,
        zorder=5,
        label="_gap",
    )
    ax.annotate(
        word,
        xy=(x, height),
        xycoords=transform,
        xytext=(-7, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        color=look.colour,
        fontsize=SMALL,
        zorder=5,
        bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )
    return word


def footer(figure: Figure, lines: Sequence[str], width: int = 126, y: float = -0.01) -> None:
    """Small grey sentences under the plot, wrapped, but never inside `n = 128`."""
    short = [line if len(line) <= MAX_SENTENCE else line[:MAX_SENTENCE] + " …" for line in lines]
    tied = [line.replace(" = ", "\u00a0=\u00a0") for line in short]
    wrapped = [part for line in tied for part in textwrap.wrap(line, width)]
    if len(wrapped) > MAX_LINES:
        wrapped[MAX_LINES:] = ["… and more: the tables hold every reason."]
    if wrapped:
        figure.text(0.065, y, "\n".join(wrapped), ha="left", va="top", fontsize=SMALL, color=GREY)


def missing_lines(curves: Sequence[Curve]) -> list[str]:
    """One sentence per reason for the backends that have no measured point."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for curve in curves:
        if curve.measured:
            continue
        key = (curve.first.status, curve.first.text("status_reason"))
        names = reasons.setdefault(key, [])
        if curve.backend not in names:
            names.append(curve.backend)
    return [
        f"Not measured: {', '.join(names)} – {status}{': ' if reason else ''}{reason}."
        for (status, reason), names in reasons.items()
    ]


def coincident(series: Sequence[Mapping[int, float]], within: float = 0.08) -> list[bool]:
    """Which series lie on top of an earlier one: relative distance below `within` at most sizes."""
    found = []
    for i, own in enumerate(series):
        hidden = False
        for other in series[:i]:
            common = own.keys() & other.keys()
            close = sum(abs(own[n] / other[n] - 1) < within for n in common if other[n])
            hidden = hidden or (bool(common) and 2 * close > len(common))
        found.append(hidden)
    return found


def padded_limits(
    values: Iterable[float], below: float = 1.6, above: float = 1.6
) -> tuple[float, float]:
    """Limits of a log axis that leave a factor below the least and above the largest value."""
    every = list(values)
    return min(every) / below, max(every) * above
