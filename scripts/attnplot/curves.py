# SPDX-License-Identifier: MIT
"""Curves: points that differ in n only, and the rounds in which they were sampled.

A round is one sample of every point still active, so a round gives one whole curve of its own.
Statistics that compare sizes (slopes, crossovers) are taken per round, because what drifts between
rounds then cancels, and their spread over rounds (or over processes) gives the interval.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from attnplot.table import Point, Sample, Table

CONFIDENCE = 0.95
# Runs of one program differ in their exponent with a standard deviation of 0.006 (layout luck that
# no repetition inside a process can see); twice that is what one process cannot claim to know.
ONE_PROCESS_FLOOR = 0.012
MIN_ROUNDS = 6
MIN_PROCESSES = 3


@dataclass(frozen=True)
class Curve:
    """Points of one key, by ascending n.

    Attributes:
        key: values of `KEY_WITHOUT_N`.
        points: every row with a defined n, whatever its status.
        samples: point_id -> samples that count.
    """

    key: tuple[str, ...]
    points: tuple[Point, ...]
    samples: Mapping[str, tuple[Sample, ...]] = field(repr=False)

    @property
    def first(self) -> Point:
        """Any point: what they share may be read off it."""
        return self.points[0]

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return self.first.backend

    @property
    def measured(self) -> tuple[Point, ...]:
        """Points with status `ok` and a time."""
        return tuple(p for p in self.points if p.time_s is not None)

    def at(self, n: int) -> Point | None:
        """The measured point at n, or `None`."""
        return next((p for p in self.measured if p.n == n), None)

    def medians(self, n_min: int = 1, n_max: int | None = None) -> tuple[list[int], list[float]]:
        """Sizes and median seconds of the measured points with n_min <= n <= n_max."""
        pairs = [
            (p.n, p.time_s)
            for p in self.measured
            if p.n is not None
            and p.time_s is not None
            and n_min <= p.n
            and (n_max is None or p.n <= n_max)
        ]
        return [n for n, _ in pairs], [t for _, t in pairs]


@dataclass(frozen=True)
class Round:
    """One complete round of a curve: seconds at each n, in the order of `n`."""

    number: int
    process: int
    n: tuple[int, ...]
    time_s: tuple[float, ...]


@dataclass(frozen=True)
class Interval:
    """A 95 % interval around an estimate.

    Attributes:
        half: half-width, in the unit of the estimate.
        label: `one process`, `two processes` (both with the floor) or `K processes`.
    """

    half: float
    label: str


def curves(points: Iterable[Point], samples: Mapping[str, tuple[Sample, ...]]) -> list[Curve]:
    """Groups points into curves, in the order in which each key appears; cross shapes have none."""
    groups: dict[tuple[str, ...], list[Point]] = {}
    for point in points:
        if point.n is not None and point.n > 0:
            groups.setdefault(point.key_without_n, []).append(point)
    return [
        Curve(key, tuple(sorted(group, key=lambda p: p.n or 0)), samples)
        for key, group in groups.items()
    ]


def table_curves(table: Table) -> list[Curve]:
    """All curves of a run."""
    return curves(table.points, table.samples)


def complete_rounds(curve: Curve, n: Sequence[int]) -> list[Round]:
    """Rounds in which every given n has a sample that counts.

    A round's process is the one that holds most of its samples (the lower number on a tie); where a
    point was sampled again in the same round, its median is taken.

    Args:
        curve: the curve.
        n: sizes, each of them measured.

    Returns:
        One entry per complete round, by round number.
    """
    by_n = {p.n: curve.samples.get(p.point_id, ()) for p in curve.measured}
    taken = [
        {r: [s for s in by_n[size] if s.round == r] for r in {s.round for s in by_n[size]}}
        for size in n
    ]
    found: list[Round] = []
    for number in sorted(set.intersection(*(set(t) for t in taken))) if taken else []:
        votes = Counter(s.process for t in taken for s in t[number])
        process = min(votes, key=lambda p: (-votes[p], p))
        times = tuple(statistics.median(s.time_s for s in t[number]) for t in taken)
        found.append(Round(number, process, tuple(n), times))
    return found


def t_quantile(degrees: int, probability: float) -> float:
    """Quantile of Student's t distribution."""
    return float(stats.t.ppf(probability, degrees))


def interval(
    values: Sequence[float],
    processes: Sequence[int],
    floor: float,
    *,
    tail: float = (1 - CONFIDENCE) / 2,
) -> Interval | None:
    """95 % interval of a quantity that each round estimates once.

    With at least three processes the sample is the processes' means, half = t(K−1)·s/√K: what
    differs between processes is inside, and no floor is needed. With fewer the sample is the
    rounds, and half = √((t(R−1)·s/√R)² + floor²).

    Args:
        values: the estimate of each complete round.
        processes: the process of each round.
        floor: what one process cannot know, in the unit of the values.
        tail: probability beyond each end; 0.05 gives a one-sided 95 % bound.

    Returns:
        `None` with fewer than three processes and fewer than six rounds.
    """
    groups: dict[int, list[float]] = {}
    for value, process in zip(values, processes, strict=True):
        groups.setdefault(process, []).append(value)
    if len(groups) >= MIN_PROCESSES:
        means = [statistics.fmean(g) for g in groups.values()]
        half = t_quantile(len(means) - 1, 1 - tail) * statistics.stdev(means)
        return Interval(half / math.sqrt(len(means)), f"{len(means)} processes")
    if len(values) < MIN_ROUNDS:
        return None
    half = t_quantile(len(values) - 1, 1 - tail) * statistics.stdev(values)
    label = "one process" if len(groups) == 1 else "two processes"
    return Interval(math.hypot(half / math.sqrt(len(values)), floor), label)


def log_slope(n: Sequence[int], time_s: Sequence[float]) -> float:
    """Least-squares slope of log(time) on log(n); at least two different n."""
    x = np.log(np.asarray(n, dtype=np.float64))
    y = np.log(np.asarray(time_s, dtype=np.float64))
    x = x - x.mean()
    return float(x @ (y - y.mean()) / (x @ x))


def local_slopes(n: Sequence[int], time_s: Sequence[float]) -> list[float]:
    """Slope of log(time) on log(n) between each pair of neighbours."""
    return [
        math.log(t1 / t0) / math.log(n1 / n0)
        for n0, n1, t0, t1 in zip(n, n[1:], time_s, time_s[1:], strict=False)
    ]
