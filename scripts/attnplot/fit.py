# SPDX-License-Identifier: MIT
"""Exponents in n: time with an interval, memory exactly, and models that explain a slope."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy import optimize

from attnplot.curves import (
    ONE_PROCESS_FLOOR,
    Curve,
    complete_rounds,
    interval,
    local_slopes,
    log_slope,
    table_curves,
)
from attnplot.files import Cell, write_csv
from attnplot.table import KEY_WITHOUT_N, Table

MIN_N = 1024
MIN_POINTS = 7
MAX_DEGREE = 3
# An exponent is told apart from an integer's neighbours at this distance.
NEIGHBOUR = 0.10
# A line that misses a point by more than this is no power law, whatever the noise.
MAX_DEVIATION_PERCENT = 5.0
# The change of slope over seven √2 steps has 6.9 times the standard error of the slope itself
# (least squares with a quadratic term), so the floor of one process is larger by as much.
DRIFT_FLOOR = 6.9 * ONE_PROCESS_FLOOR
# "Not a power law" is said of every curve that is tested, so it takes a 99 % interval.
DRIFT_TAIL = 0.005

FITS_COLUMNS = (
    *KEY_WITHOUT_N,
    *"quantity exponent exponent_lo exponent_hi n_min n_max points local_slopes".split(),
    *"max_deviation a b c verdict".split(),
)


@dataclass(frozen=True)
class Fit:
    """One row of `fits.csv`.

    Attributes:
        curve: what was fitted.
        quantity: `time`, `time_model` (a + b·n + c·n²), `time_model_two_term` (b·n + c·n²),
            `mem_scratch_bytes` or `mem_scratch_and_tensors_bytes`.
        n: the sizes that entered.
        exponent: slope in log-log (time) or exact degree (memory).
        lo: lower end of the 95 % interval, `None` without one.
        hi: upper end.
        slopes: local slopes between neighbours; for a model, those that it predicts.
        max_deviation: largest distance of a point from the fit, in percent.
        a: constant term, in seconds or bytes.
        b: coefficient of n.
        c: coefficient of n².
        verdict: a sentence in the vocabulary of `exponent_verdict`, or why there is no result.
    """

    curve: Curve
    quantity: str
    n: tuple[int, ...]
    verdict: str
    exponent: float | None = None
    lo: float | None = None
    hi: float | None = None
    slopes: tuple[float, ...] = ()
    max_deviation: float | None = None
    a: float | None = None
    b: float | None = None
    c: float | None = None

    @property
    def takeover(self) -> float | None:
        """The n at which c·n² = a + b·n; 0 where n² is the only term, `None` where it is absent."""
        if not self.quantity.startswith("time_model") or not self.c:
            return None
        return takeover_n(self.a or 0.0, self.b or 0.0, self.c)

    def cells(self) -> list[Cell]:
        """The row, in the order of `FITS_COLUMNS`."""
        return [
            *self.curve.key,
            self.quantity,
            *(_rounded(v) for v in (self.exponent, self.lo, self.hi)),
            min(self.n, default=None),
            max(self.n, default=None),
            len(self.n),
            " ".join(f"{s:.3f}" for s in self.slopes),
            _rounded(self.max_deviation),
            self.a,
            self.b,
            self.c,
            self.verdict,
        ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6) + 0.0


def fit_time(curve: Curve, min_n: int = MIN_N) -> Fit | None:
    """Time exponent of a curve: least squares of log median on log n over n >= min_n.

    The estimate is the slope through the medians. Its interval comes from the slopes of the
    complete rounds (rounds in which every n of the range has a sample that is not suspect):

    * three or more processes: Student's t over the K processes' mean slopes, t(K−1)·s/√K;
    * fewer, with at least six complete rounds: Student's t over the R rounds' slopes, and the
      floor of one process in quadrature: half-width = √((t(R−1)·s/√R)² + 0.012²).

    Args:
        curve: points of one key.
        min_n: smallest n that enters the fit.

    Returns:
        `None` for a curve without a measured point. Without an exponent (decode, several threads,
        fewer than seven points) the local slopes stand alone and the verdict says why.
    """
    if not curve.measured:
        return None
    n, times = curve.medians(min_n)
    why = _why_no_exponent(curve, n, min_n)
    if why is not None:
        n, times = (n, times) if len(n) > 1 else curve.medians()
        return Fit(curve, "time", tuple(n), why, slopes=tuple(local_slopes(n, times)))
    slope = log_slope(n, times)
    log_n, log_t = np.log(np.asarray(n, dtype=float)), np.log(np.asarray(times))
    residuals = log_t - log_t.mean() - slope * (log_n - log_n.mean())
    deviation = 100 * float(np.max(np.abs(np.expm1(residuals))))
    rounds = complete_rounds(curve, n)
    processes = [r.process for r in rounds]
    found = interval([log_slope(r.n, r.time_s) for r in rounds], processes, ONE_PROCESS_FLOOR)
    drifts = interval(
        [slope_drift(r.n, r.time_s) for r in rounds], processes, DRIFT_FLOOR, tail=DRIFT_TAIL
    )
    drift = slope_drift(n, times)
    drifting = drifts is not None and abs(drift) > drifts.half
    lo, hi = (None, None) if found is None else (slope - found.half, slope + found.half)
    if lo is None or hi is None:
        verdict = f"no interval: {len(rounds)} complete rounds from {len(set(processes))} processes"
    else:
        verdict = exponent_verdict(lo, hi)
    if deviation > MAX_DEVIATION_PERCENT:
        verdict += f"; not a power law: {deviation:.1f} % off the line"
    elif drifting:
        ends = f"{slope - drift / 2:.2f} to {slope + drift / 2:.2f}"
        verdict += f"; not exactly a power law: the slope drifts from {ends}"
    if found is not None:
        verdict += f"; {found.label}"
    slopes = tuple(local_slopes(n, times))
    return Fit(curve, "time", tuple(n), verdict, slope, lo, hi, slopes, deviation)


def _why_no_exponent(curve: Curve, n: Sequence[int], min_n: int) -> str | None:
    if curve.first.text("regime") == "decode":
        return "local slopes only: decode promises no exponent"
    threads = curve.first.integer("threads")
    if threads is not None and threads > 1:
        return f"local slopes only: {threads} threads, an exponent needs one"
    if len(n) < MIN_POINTS:
        return f"local slopes only: {len(n)} points at n >= {min_n}, an exponent needs {MIN_POINTS}"
    return None


def slope_drift(n: Sequence[int], time_s: Sequence[float]) -> float:
    """Change of the log-log slope from the smallest n to the largest, by a quadratic fit.

    With log t = p + q·x + r·x² and x = log n the slope is q + 2·r·x: it changes by
    2·r·(x_max − x_min).
    """
    x = np.log(np.asarray(n, dtype=float))
    curvature = float(np.polyfit(x - x.mean(), np.log(np.asarray(time_s)), 2)[0])
    return 2 * curvature * float(x.max() - x.min())


def exponent_verdict(lo: float, hi: float) -> str:
    """Says what an interval [lo, hi] of an exponent allows, in four sentences.

    * `consistent with 2; 1.90 and 2.10 excluded`: holds 2, and nothing 0.10 away from it;
    * `near 2 but not 2; 1.90 and 2.10 excluded`: stays less than 0.10 away from 2, without it;
    * `between 1 and 2; both excluded`: holds no integer, and is not near one;
    * `undecided: 1.70 to 2.20 is too wide`: holds an integer and reaches 0.10 or more from it.
    """
    nearest = round((lo + hi) / 2)
    below, above = nearest - NEIGHBOUR, nearest + NEIGHBOUR
    if lo > below and hi < above:
        excluded = f"{below:.2f} and {above:.2f} excluded"
        if lo <= nearest <= hi:
            return f"consistent with {nearest}; {excluded}"
        return f"near {nearest} but not {nearest}; {excluded}"
    if math.floor(lo) == math.floor(hi) and lo > math.floor(lo):
        return f"between {math.floor(lo)} and {math.floor(lo) + 1}; both excluded"
    return f"undecided: {lo:.2f} to {hi:.2f} is too wide"


def fit_models(curve: Curve) -> list[Fit]:
    """Models b·n + c·n² and a + b·n + c·n² of the seconds of a call, all coefficients >= 0.

    Non-negative least squares on relative residuals, min Σ((a + b·n + c·n²)/t − 1)², over every
    measured n of a prefill curve: the small sizes tell the linear term from the quadratic one.

    Returns:
        One fit per model that the number of points allows (one more than it has terms), else none.
    """
    n, times = curve.medians()
    if curve.first.text("regime") != "prefill":
        return []
    fits = []
    for quantity, powers in (("time_model_two_term", (1, 2)), ("time_model", (0, 1, 2))):
        if len(n) <= len(powers):
            continue
        sizes, seconds = np.asarray(n, dtype=float), np.asarray(times)
        # Columns scaled to 1 at the largest n: powers of n are twelve orders of magnitude apart.
        top = float(sizes[-1])
        design = np.stack([(sizes / top) ** p for p in powers], axis=1) / seconds[:, None]
        scaled, _ = optimize.nnls(design, np.ones(len(n)))
        coefficients = dict.fromkeys((0, 1, 2), 0.0)
        for power, value in zip(powers, scaled, strict=True):
            coefficients[power] = float(value) / top**power
        a, b, c = (float(f"{coefficients[p]:.9g}") for p in (0, 1, 2))
        predicted = a + b * sizes + c * sizes**2
        deviation = 100 * float(np.max(np.abs(predicted / seconds - 1)))
        slopes = tuple(local_slopes(n, [float(p) for p in predicted]))
        verdict = _model_verdict(a, b, c, n[-1])
        fits.append(
            Fit(curve, quantity, tuple(n), verdict, None, None, None, slopes, deviation, a, b, c)
        )
    return fits


def takeover_n(a: float, b: float, c: float) -> float:
    """The n >= 0 at which c·n² = a + b·n; c > 0."""
    return (b + math.sqrt(b * b + 4 * a * c)) / (2 * c)


def _model_verdict(a: float, b: float, c: float, n_max: int) -> str:
    if c == 0:
        return "no n² term"
    if a == 0 and b == 0:
        return "n² only"
    n = takeover_n(a, b, c)
    beyond = "" if n <= n_max else ", beyond what was measured"
    return f"n² takes over at n = {n:.0f}{beyond}"


def exact_polynomial(n: Sequence[int], values: Sequence[int]) -> list[Fraction] | None:
    """The polynomial of lowest degree <= 3 through all points, exactly (Newton's differences).

    Args:
        n: different sizes, equally spaced or not.
        values: one integer per size.

    Returns:
        Coefficients of 1, n, n², n³ up to the degree, or `None` where no such polynomial exists or
        where there is no point left over to check it (degree + 2 points are needed).
    """
    coefficients: list[Fraction] = []
    basis = [Fraction(1)]
    for degree in range(min(MAX_DEGREE + 1, len(n) - 1)):
        missing = Fraction(values[degree]) - _evaluate(coefficients, n[degree])
        step = missing / _evaluate(basis, n[degree])
        padded = [*coefficients, *[Fraction(0)] * (len(basis) - len(coefficients))]
        coefficients = [p + step * q for p, q in zip(padded, basis, strict=True)]
        if all(_evaluate(coefficients, x) == y for x, y in zip(n, values, strict=True)):
            while len(coefficients) > 1 and coefficients[-1] == 0:
                coefficients.pop()
            return coefficients
        shifted = [Fraction(0), *basis]
        basis = [s - n[degree] * q for s, q in zip(shifted, [*basis, Fraction(0)], strict=True)]
    return None


def _evaluate(coefficients: Sequence[Fraction], x: int) -> Fraction:
    value = Fraction(0)
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


def polynomial_text(coefficients: Sequence[Fraction]) -> str:
    """A polynomial in n, highest power first: `4·n² + 256·n`."""
    powers = ("", "·n", "·n²", "·n³")
    terms = [(c, powers[p]) for p, c in enumerate(coefficients) if c != 0]
    if not terms:
        return "0"
    text = ""
    for coefficient, power in reversed(terms):
        sign = "− " if coefficient < 0 else "+ "
        text += f" {sign}{abs(coefficient)}{power}"
    return text.removeprefix(" + ").strip()


def fit_memory(curve: Curve) -> list[Fit]:
    """Exact degree in n of the declared bytes: scratch alone, and scratch + tensors.

    The bytes are declared and not measured, so rows without a time (`cutoff`, `oom_predicted`)
    count too, and there is no interval. Only prefill curves have one.
    """
    if curve.first.text("regime") != "prefill":
        return []
    fits = []
    for quantity, columns in (
        ("mem_scratch_bytes", ("mem_scratch_bytes",)),
        ("mem_scratch_and_tensors_bytes", ("mem_scratch_bytes", "mem_tensors_bytes")),
    ):
        sizes, values = memory_bytes(curve, columns)
        if not sizes:
            continue
        polynomial = exact_polynomial(sizes, values)
        if polynomial is None:
            few = len(sizes) < MAX_DEGREE + 2
            verdict = f"not a polynomial of degree <= {MAX_DEGREE}"
            if few:
                verdict = f"{len(sizes)} points do not fix a degree"
            fits.append(Fit(curve, quantity, tuple(sizes), verdict))
            continue
        degree = len(polynomial) - 1
        a, b, c = (float(x) for x in (*polynomial, *[Fraction(0)] * 3)[:3])
        verdict = f"exactly {polynomial_text(polynomial)}"
        fits.append(
            Fit(curve, quantity, tuple(sizes), verdict, float(degree), None, None, (), 0.0, a, b, c)
        )
    return fits


def memory_bytes(curve: Curve, columns: Sequence[str]) -> tuple[list[int], list[int]]:
    """Sizes and the sum of the given byte columns, where all of them are stated."""
    pairs = []
    for point in curve.points:
        parts = [point.integer(c) for c in columns]
        if point.n is not None and all(p is not None for p in parts):
            pairs.append((point.n, sum(p for p in parts if p is not None)))
    return [n for n, _ in pairs], [value for _, value in pairs]


def fit_all(table: Table, min_n: int = MIN_N) -> list[Fit]:
    """Every fit of a run, curve by curve in file order."""
    fits: list[Fit] = []
    for curve in table_curves(table):
        time = fit_time(curve, min_n)
        fits += [time] if time is not None else []
        fits += fit_models(curve)
        fits += fit_memory(curve)
    return fits


def write_fits(table: Table, fits: Sequence[Fit]) -> None:
    """Writes `fits.csv` beside the results.

    Raises:
        TableError: when it cannot be written.
    """
    write_csv(table.folder / "fits.csv", FITS_COLUMNS, (f.cells() for f in fits))
