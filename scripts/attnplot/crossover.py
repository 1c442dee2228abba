# SPDX-License-Identifier: MIT
"""Where an attention layer and a recurrent layer take equally long."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnplot.curves import (
    CONFIDENCE,
    ONE_PROCESS_FLOOR,
    Curve,
    complete_rounds,
    interval,
    table_curves,
)
from attnplot.files import Cell, write_csv
from attnplot.table import Table

CROSSOVERS_COLUMNS = tuple("a b scope causal d_model n_star n_star_lo n_star_hi winner".split())
# What one process cannot know about log(time a / time b). The floor of 0.012 on a slope over seven
# √2 steps is a floor of 0.012·√Σ(x − x̄)² = 0.012·1.83 = 0.022 on each log time; a ratio has two.
RATIO_FLOOR = math.sqrt(2) * 1.834 * ONE_PROCESS_FLOOR
# What a pair must share to be comparable; causal is left out because recurrences have none.
SHARED = tuple("scope regime device threads batch d_model dtype".split())


@dataclass(frozen=True)
class Crossover:
    """The comparison of an attention curve `a` with a recurrent curve `b` over their common n.

    Attributes:
        a: attention at layer scope.
        b: rnn, gru or lstm with the same width, batch, threads, dtype and device.
        n_min: smallest common n.
        n_max: largest common n.
        n_star: the n at which the two take equally long; the largest where there are several;
            `None` where one side is faster at every common n.
        lo: lower end of the 95 % interval of n_star. With n_star `None`: a crossover, if there is
            one, lies above it.
        hi: upper end; with n_star `None`: a crossover, if there is one, lies below it.
        winner: the backend that is faster at every common n; `a below, b above` (names) where they
            cross; empty where the bound does not exclude a tie.
        ratio: smallest slower ÷ faster over the range (one side wins), else `None`.
        ratio_bound: its one-sided 95 % lower bound, `None` without enough rounds.
        ratio_n: the n of that smallest ratio.
        label: how the interval was made, empty without one.
        crossings: how often the curves of the medians cross.
    """

    a: Curve
    b: Curve
    n_min: int
    n_max: int
    n_star: float | None
    lo: float | None
    hi: float | None
    winner: str
    ratio: float | None = None
    ratio_bound: float | None = None
    ratio_n: int | None = None
    label: str = ""
    crossings: int = 0

    @property
    def sentence(self) -> str:
        """The result in words, with its bounds."""
        a, b = self.a.backend, self.b.backend
        how = f", {self.label}" if self.label else ""
        over = f"n = {self.n_min} and {self.n_max}"
        if self.n_star is not None:
            faster_below = self.winner.removesuffix(" above").split(" below, ")[0]
            slower = b if faster_below == a else a
            if self.lo is None and self.hi is None:
                bounds = "no interval: too few complete rounds"
            else:
                lo = "below the range" if self.lo is None else f"{self.lo:.0f}"
                hi = "above the range" if self.hi is None else f"{self.hi:.0f}"
                bounds = f"95 % interval {lo} to {hi}{how}"
            several = "" if self.crossings == 1 else f"; the curves cross {self.crossings} times"
            return (
                f"Between {over} {faster_below} is faster than {slower} up to "
                f"n = {self.n_star:.0f} ({bounds}), then slower{several}."
            )
        faster, slower = (a, b) if (self.lo is not None) else (b, a)
        if self.ratio_bound is None:
            bound = "without a bound: too few complete rounds"
        else:
            bound = f"at least {self.ratio_bound:.2f} times with 95 % confidence{how}"
        sure = "" if self.winner else " That does not exclude a tie."
        return (
            f"Between {over} {faster} is faster than {slower} throughout: by {self.ratio:.2f} "
            f"times at n = {self.ratio_n}, where it is least; {bound}.{sure}"
        )

    def cells(self) -> list[Cell]:
        """The row, in the order of `CROSSOVERS_COLUMNS`."""
        first = self.a.first
        ends = (None if v is None else round(v, 3) for v in (self.n_star, self.lo, self.hi))
        names = (self.a.backend, self.b.backend)
        shape = (first.cells["scope"], first.cells["causal"], first.cells["d_model"])
        return [*names, *shape, *ends, self.winner]


def log_ratio(
    n: Sequence[int],
    a: tuple[Sequence[int], Sequence[float]],
    b: tuple[Sequence[int], Sequence[float]],
) -> list[float]:
    """log(time a / time b) at each n, both interpolated linearly in log-log between their sizes.

    Args:
        n: sizes inside both ranges.
        a: sizes and seconds of the first curve, by ascending n.
        b: the same of the second.
    """
    x = np.log(np.asarray(n, dtype=float))
    y_a, y_b = (np.interp(x, np.log(np.asarray(s, dtype=float)), np.log(t)) for s, t in (a, b))
    return [float(d) for d in y_a - y_b]


def crossings(n: Sequence[int], ratio: Sequence[float]) -> list[tuple[float, float]]:
    """Where a piecewise linear function of log n changes its sign.

    Returns:
        For each crossing log n and the function's slope there, by ascending n.
    """
    found = []
    previous = None
    for size, value in zip(n, ratio, strict=True):
        x = math.log(size)
        if value == 0:
            continue
        if previous is not None and (previous[1] < 0) != (value < 0):
            slope = (value - previous[1]) / (x - previous[0])
            found.append((previous[0] - previous[1] / slope, slope))
        previous = (x, value)
    return found


def compare(a: Curve, b: Curve) -> Crossover | None:
    """The crossover of two curves.

    Each round that is complete for both curves gives a crossover of its own. The spread of its
    logarithm over rounds or processes gives the interval as it does for an exponent
    (`curves.interval`), around the crossover of the medians; one process adds the floor
    `RATIO_FLOOR` ÷ |d log ratio / d log n| in quadrature. Where some rounds have no crossover,
    their side of the interval stays open.

    Where the medians do not cross, the bound belongs to the n with the smallest ratio: the log of
    the median ratio there, minus a one-sided Student's t half-width with `RATIO_FLOOR` in
    quadrature.

    Returns:
        `None` with fewer than two common sizes.
    """
    n_a, n_b = a.medians()[0], b.medians()[0]
    if not n_a or not n_b:
        return None
    low, high = max(n_a[0], n_b[0]), min(n_a[-1], n_b[-1])
    n = sorted(x for x in {*n_a, *n_b} if low <= x <= high)
    if len(n) < 2:
        return None
    used = [_needed(sizes, low, high) for sizes in (n_a, n_b)]
    rounds = _common_rounds(a, b, n, used)
    ratio = log_ratio(n, a.medians(), b.medians())
    crossed = crossings(n, ratio)
    if crossed:
        return _crossed(a, b, n, ratio, crossed, rounds)
    return _one_sided(a, b, n, ratio, rounds)


def _needed(sizes: Sequence[int], low: int, high: int) -> list[int]:
    # The sizes of one curve that its interpolation over [low, high] uses: one beyond each end.
    first = max(i for i, n in enumerate(sizes) if n <= low)
    last = min(i for i, n in enumerate(sizes) if n >= high)
    return list(sizes[first : last + 1])


def _common_rounds(
    a: Curve, b: Curve, n: Sequence[int], used: Sequence[Sequence[int]]
) -> list[tuple[int, list[float]]]:
    # (process, log ratio at every n) of each round that is complete for both, by round order.
    by_number_a, by_number_b = (_numbered(c, u) for c, u in zip((a, b), used, strict=True))
    found = []
    for number in sorted(by_number_a.keys() & by_number_b.keys()):
        process, times_a = by_number_a[number]
        times_b = by_number_b[number][1]
        found.append((process, log_ratio(n, (used[0], times_a), (used[1], times_b))))
    return found


def _numbered(curve: Curve, n: Sequence[int]) -> dict[int, tuple[int, tuple[float, ...]]]:
    return {r.number: (r.process, r.time_s) for r in complete_rounds(curve, n)}


def _crossed(
    a: Curve,
    b: Curve,
    n: Sequence[int],
    ratio: Sequence[float],
    crossed: Sequence[tuple[float, float]],
    rounds: Sequence[tuple[int, list[float]]],
) -> Crossover:
    log_star, slope = crossed[-1]
    below, above = (a, b) if slope > 0 else (b, a)
    winner = f"{below.backend} below, {above.backend} above"
    stars: list[tuple[int, float]] = []
    open_low = open_high = False
    for process, own in rounds:
        same_way = [x for x, s in crossings(n, own) if (s > 0) == (slope > 0)]
        if same_way:
            stars.append((process, same_way[-1]))
        elif (own[-1] > 0) == (slope > 0):
            open_low = True
        else:
            open_high = True
    found = interval([x for _, x in stars], [p for p, _ in stars], RATIO_FLOOR / abs(slope))
    lo = hi = None
    label = ""
    if found is not None:
        lo = None if open_low else math.exp(log_star - found.half)
        hi = None if open_high else math.exp(log_star + found.half)
        label = found.label
    return Crossover(
        a, b, n[0], n[-1], math.exp(log_star), lo, hi, winner, label=label, crossings=len(crossed)
    )


def _one_sided(
    a: Curve,
    b: Curve,
    n: Sequence[int],
    ratio: Sequence[float],
    rounds: Sequence[tuple[int, list[float]]],
) -> Crossover:
    a_wins = statistics.fmean(ratio) < 0
    least = min(range(len(n)), key=lambda i: abs(ratio[i]))
    found = interval(
        [abs(own[least]) if (own[least] < 0) == a_wins else -abs(own[least]) for _, own in rounds],
        [p for p, _ in rounds],
        RATIO_FLOOR,
        tail=1 - CONFIDENCE,
    )
    bound = None if found is None else math.exp(abs(ratio[least]) - found.half)
    faster = a if a_wins else b
    sure = bound is not None and bound > 1
    # Attention grows faster in n, so its crossover would lie above a range that it wins, and below
    # a range that it loses.
    return Crossover(
        a,
        b,
        n[0],
        n[-1],
        None,
        float(n[-1]) if a_wins else None,
        None if a_wins else float(n[0]),
        faster.backend if sure else "",
        math.exp(abs(ratio[least])),
        bound,
        n[least],
        "" if found is None else found.label,
    )


def crossover_all(table: Table) -> list[Crossover]:
    """Every attention layer against every recurrent layer that shares `SHARED` with it."""
    layers = [
        c
        for c in table_curves(table)
        if c.measured and c.first.text("scope") == "layer" and c.first.text("regime") == "prefill"
    ]
    found = []
    for a in layers:
        for b in layers:
            if a.first.text("family") != "attention" or not b.first.recurrent:
                continue
            if all(a.first.cells[c] == b.first.cells[c] for c in SHARED):
                found.append(compare(a, b))
    return [f for f in found if f is not None]


def write_crossovers(table: Table, found: Sequence[Crossover]) -> None:
    """Writes `crossovers.csv` beside the results.

    Raises:
        TableError: when it cannot be written.
    """
    rows = (c.cells() for c in found)
    write_csv(table.folder / "crossovers.csv", CROSSOVERS_COLUMNS, rows)
