# SPDX-License-Identifier: MIT
import csv
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnplot.curves import (
    ONE_PROCESS_FLOOR,
    Curve,
    complete_rounds,
    interval,
    local_slopes,
    log_slope,
    table_curves,
)
from attnplot.fit import (
    FITS_COLUMNS,
    Fit,
    exact_polynomial,
    exponent_verdict,
    fit_all,
    fit_memory,
    fit_models,
    fit_time,
    polynomial_text,
    slope_drift,
    takeover_n,
    write_fits,
)
from attnplot.table import TableError, load
from synthetic import COMPLEXITY, DOUBLING, SQRT2, Law, Noise, Run, Value, default_sweep

SEEDS = 300


def one(run: Run) -> Curve:
    (curve,) = table_curves(run.table())
    return curve


def time_fit(run: Run, min_n: int = 1024) -> Fit:
    fit = fit_time(one(run), min_n)
    assert fit is not None
    return fit


def power(exponent: float) -> Run:
    run = Run()
    run.curve("cpu.naive", lambda n: 3e-9 * n**exponent)
    return run


@pytest.mark.parametrize("exponent", [1.0, 1.5, 2.0, 2.37])
def test_an_exact_power_is_found_exactly(exponent: float) -> None:
    fit = time_fit(power(exponent))
    assert fit.exponent == pytest.approx(exponent, abs=1e-9)
    assert fit.lo == pytest.approx(exponent - ONE_PROCESS_FLOOR, abs=1e-9)
    assert fit.hi == pytest.approx(exponent + ONE_PROCESS_FLOOR, abs=1e-9)
    assert fit.max_deviation == pytest.approx(0, abs=1e-6)
    assert fit.slopes == pytest.approx([exponent] * 6, abs=1e-9)
    assert fit.n == SQRT2


@pytest.mark.parametrize(
    ("exponent", "verdict"),
    [
        (1.0, "consistent with 1; 0.90 and 1.10 excluded; one process"),
        (2.0, "consistent with 2; 1.90 and 2.10 excluded; one process"),
        (1.5, "between 1 and 2; both excluded; one process"),
        (2.05, "near 2 but not 2; 1.90 and 2.10 excluded; one process"),
    ],
)
def test_verdicts_on_powers(exponent: float, verdict: str) -> None:
    assert time_fit(power(exponent)).verdict == verdict


@pytest.mark.parametrize(
    ("lo", "hi", "verdict"),
    [
        (1.91, 2.09, "consistent with 2; 1.90 and 2.10 excluded"),
        (1.90, 2.05, "undecided: 1.90 to 2.05 is too wide"),
        (1.95, 2.10, "undecided: 1.95 to 2.10 is too wide"),
        (1.70, 2.20, "undecided: 1.70 to 2.20 is too wide"),
        (2.01, 2.05, "near 2 but not 2; 1.90 and 2.10 excluded"),
        (1.92, 1.99, "near 2 but not 2; 1.90 and 2.10 excluded"),
        (2.05, 2.15, "between 2 and 3; both excluded"),
        (1.20, 1.80, "between 1 and 2; both excluded"),
        (1.20, 2.00, "undecided: 1.20 to 2.00 is too wide"),
        (-0.02, 0.03, "consistent with 0; -0.10 and 0.10 excluded"),
    ],
)
def test_the_vocabulary(lo: float, hi: float, verdict: str) -> None:
    assert exponent_verdict(lo, hi) == verdict


def test_the_estimate_is_the_slope_of_the_medians() -> None:
    run = Run(rounds=7)
    for n in SQRT2:
        run.point("cpu.naive", n, 1e-9 * n**2)
    # The last round is far slower at the largest n: it moves a mean, not a median.
    table = run.table()
    last = run.rows[-1]["point_id"]
    for line in run.lines:
        if line[1] == last and line[2] == "sample" and line[4] == 6:
            line[6] = 50.0
    table = run.table()
    fit = fit_time(table_curves(table)[0])
    assert fit is not None
    assert fit.exponent == pytest.approx(2.0, abs=1e-9)
    assert fit.lo is not None
    assert fit.lo < 1.9


def test_the_half_width_is_student_over_rounds_and_the_floor_in_quadrature() -> None:
    slopes = [2.0, 2.01, 1.99, 2.02, 1.98, 2.0]
    found = interval(slopes, [0] * 6, 0.012)
    assert found is not None
    half_t = 2.570582 * np.std(slopes, ddof=1) / math.sqrt(6)
    assert found.half == pytest.approx(math.sqrt(half_t**2 + 0.012**2), rel=1e-6)
    assert found.label == "one process"


def test_three_processes_are_the_sample_and_have_no_floor() -> None:
    values = [2.0, 2.3, 1.9, 2.2, 2.1, 2.0]  # means 2.1, 2.2, 1.95 of processes 0, 1, 2
    found = interval(values, [0, 1, 2, 0, 1, 2], 99.0)
    assert found is not None
    means = [2.1, 2.2, 1.95]
    assert found.half == pytest.approx(4.302653 * np.std(means, ddof=1) / math.sqrt(3), rel=1e-6)
    assert found.label == "3 processes"


def test_two_processes_keep_the_floor() -> None:
    found = interval([2.0] * 6, [0, 1] * 3, 0.012)
    assert found is not None
    assert found.half == pytest.approx(0.012)
    assert found.label == "two processes"


def test_five_rounds_of_one_process_have_no_interval() -> None:
    assert interval([2.0] * 5, [0] * 5, 0.012) is None
    run = Run(rounds=5)
    run.curve("cpu.naive", lambda n: 1e-9 * n**2)
    fit = time_fit(run)
    assert fit.exponent == pytest.approx(2)
    assert (fit.lo, fit.hi) == (None, None)
    assert fit.verdict == "no interval: 5 complete rounds from 1 processes"


def coverage(processes: int, rounds: int, noise: Noise, floor: bool = True) -> tuple[float, float]:
    hits, widths = 0, []
    for seed in range(SEEDS):
        run = Run(rounds=rounds, processes=processes, noise=noise, seed=seed)
        run.curve("cpu.naive", lambda n: 1e-8 * n**2)
        fit = time_fit(run)
        assert fit.exponent is not None
        assert fit.lo is not None
        half = fit.exponent - fit.lo
        half = half if floor else math.sqrt(max(half**2 - ONE_PROCESS_FLOOR**2, 0.0))
        hits += abs(fit.exponent - 2) <= half
        widths.append(half)
    return hits / SEEDS, float(np.mean(widths))


# 300 runs of a true 95 % interval give 0.95 ± 0.0126: 0.90 is four of those away.
def test_one_process_covers_with_its_floor_and_not_without() -> None:
    # Luck of 1.1 % a point is a standard deviation of 0.006 of the slope, what real runs show.
    noise = Noise(sample=0.004, round=0.03, luck=0.011)
    covered, width = coverage(1, 6, noise)
    assert covered >= 0.90
    assert width < 0.02
    assert coverage(1, 6, noise, floor=False)[0] < 0.80


def test_five_processes_cover_without_a_floor() -> None:
    covered, width = coverage(5, 10, Noise(sample=0.004, round=0.03, luck=0.011))
    assert 0.90 <= covered <= 0.99
    assert width < 0.012


def test_drift_between_rounds_does_not_touch_the_slopes_of_rounds() -> None:
    run = Run(noise=Noise(round=0.2))
    run.curve("cpu.naive", lambda n: 1e-8 * n**2)
    fit = time_fit(run)
    assert fit.exponent == pytest.approx(2, abs=1e-9)
    assert fit.hi == pytest.approx(2 + ONE_PROCESS_FLOOR, abs=1e-9)


def test_a_floor_bends_the_curve_and_the_model_finds_it() -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 0.02 + 1e-8 * n**2, COMPLEXITY)
    fit = time_fit(run)
    assert fit.max_deviation is not None
    assert fit.max_deviation > 5
    assert "not a power law" in fit.verdict
    assert list(fit.slopes) == sorted(fit.slopes)
    _, model = fit_models(one(run))
    assert model.a == pytest.approx(0.02, rel=1e-6)
    assert model.b == pytest.approx(0, abs=1e-12)
    assert model.c == pytest.approx(1e-8, rel=1e-6)
    assert model.takeover == pytest.approx(math.sqrt(0.02 / 1e-8), rel=1e-6)


def test_a_cache_cliff_is_no_power_law() -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: (1e-8 if n < 3000 else 1.6e-8) * n**2)
    fit = time_fit(run)
    assert fit.verdict.split("; ")[-2].startswith("not a power law: ")
    assert "% off the line" in fit.verdict
    assert max(fit.slopes) == pytest.approx(2 + math.log(1.6) / math.log(4096 / 2896))


def test_n_log_n_is_no_power_law() -> None:
    run = Run(rounds=10, processes=5, noise=Noise(sample=0.0005, luck=0.0005))
    run.curve("cpu.naive", lambda n: 1e-8 * n * math.log(n))
    fit = time_fit(run)
    assert fit.verdict.startswith(
        "between 1 and 2; both excluded; not exactly a power law: the slope drifts"
    )
    assert fit.slopes[0] > fit.slopes[-1]


def test_one_process_does_not_call_its_own_luck_a_drift() -> None:
    said = 0
    for seed in range(100):
        run = Run(noise=Noise(sample=0.004, luck=0.011), seed=seed)
        run.curve("cpu.naive", lambda n: 1e-8 * n**2)
        said += "a power law" in time_fit(run).verdict
    assert said <= 12


def test_slope_drift_is_that_of_a_parabola() -> None:
    times = [math.exp(0.3 + 2 * math.log(n) + 0.1 * math.log(n) ** 2) for n in SQRT2]
    assert slope_drift(SQRT2, times) == pytest.approx(0.2 * math.log(8))


@pytest.mark.parametrize(
    ("sizes", "cells", "why"),
    [
        (DOUBLING, {}, "local slopes only: 4 points at n >= 1024, an exponent needs 7"),
        (SQRT2[1:], {}, "local slopes only: 6 points at n >= 1024, an exponent needs 7"),
        (SQRT2, {"threads": 2}, "local slopes only: 2 threads, an exponent needs one"),
        (SQRT2, {"regime": "decode"}, "local slopes only: decode promises no exponent"),
    ],
)
def test_local_slopes_only_and_why(sizes: Sequence[int], cells: dict[str, Value], why: str) -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-9 * n**2, sizes, **cells)
    fit = time_fit(run)
    assert fit.verdict == why
    assert (fit.exponent, fit.lo, fit.hi) == (None, None, None)
    assert fit.slopes == pytest.approx([2.0] * len(fit.slopes))
    assert len(fit.slopes) == len(fit.n) - 1 >= 3


def test_min_n_decides_what_enters() -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-9 * n**2 * (3 if n < 1024 else 1), COMPLEXITY)
    assert time_fit(run).exponent == pytest.approx(2)
    assert time_fit(run, 128).n == COMPLEXITY
    assert time_fit(run, 128).exponent != pytest.approx(2, abs=0.05)


def test_incomplete_rounds_give_no_slope() -> None:
    run = Run(rounds=8)
    for n in SQRT2:
        run.point("cpu.naive", n, 1e-9 * n**2, rounds=range(7 if n == 8192 else 8))
    rounds = complete_rounds(one(run), SQRT2)
    assert [r.number for r in rounds] == list(range(7))
    run = Run(rounds=8)
    for n in SQRT2:
        run.point("cpu.naive", n, 1e-9 * n**2, rounds=range(5) if n == 2048 else range(8))
    assert time_fit(run).verdict.startswith("no interval: 5 complete rounds")


def test_a_rounds_process_holds_most_of_its_samples_and_repeats_take_the_median() -> None:
    run = Run(rounds=1)
    for n in SQRT2:
        run.point("cpu.naive", n, 1.0)
    for point_id, process in (("p0", 3), ("p0", 3), ("p1", 3)):
        run.sample(point_id, process, 0, 9.0)
    (found,) = complete_rounds(one(run), SQRT2)
    assert found.process == 0
    assert found.time_s == (9.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0)


def test_suspect_samples_change_nothing(tmp_path: Path) -> None:
    run = Run(rounds=6)
    run.curve("cpu.naive", lambda n: 1e-8 * n**2)
    clean = fit_time(table_curves(load(run.write(tmp_path / "a")))[0])
    for point in range(7):
        run.sample(f"p{point}", 4, 9, 1e3)
    run.lines.append(["r", "p0", "offence", 4, 9, None, None, None, None, "{}"])
    soiled = fit_time(table_curves(load(run.write(tmp_path / "b")))[0])
    assert clean is not None
    assert soiled is not None
    assert clean.cells() == soiled.cells()


def test_rows_that_are_not_ok_are_gaps_not_points() -> None:
    run = power(2)
    run.rows[3]["status"] = "mismatch"
    assert time_fit(run).verdict.startswith("local slopes only: 6 points")


# --- models -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "c"), [(0.0, 4e-6, 9e-9), (3e-4, 0.0, 9e-9), (1.23456e-4, 2.34567e-6, 9.87654e-9)]
)
def test_models_recover_their_terms(a: float, b: float, c: float) -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: a + b * n + c * n * n, DOUBLING)
    two, three = fit_models(one(run))
    assert (three.a, three.b, three.c) == pytest.approx((a, b, c), rel=1e-6, abs=1e-15)
    assert three.max_deviation == pytest.approx(0, abs=1e-5)
    assert three.takeover == pytest.approx(takeover_n(a, b, c), rel=1e-6)
    if a == 0:
        assert (two.b, two.c) == pytest.approx((b, c), rel=1e-6)
        assert two.takeover == pytest.approx(b / c, rel=1e-6)
    else:
        assert two.max_deviation is not None
        assert two.max_deviation > 1


def test_takeover_is_where_the_terms_are_equal() -> None:
    n = takeover_n(2.0, 3.0, 0.5)
    assert 0.5 * n * n == pytest.approx(2.0 + 3.0 * n)


def test_models_never_go_below_zero_and_weigh_sizes_alike() -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-8 * n**2 - 5e-7 * n, DOUBLING)
    for model in fit_models(one(run)):
        assert min(x for x in (model.a, model.b, model.c) if x is not None) >= 0
    # Relative residuals: a doubled smallest size must not vanish against the largest.
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-8 * n**2 + (2e-4 if n == 128 else 0), DOUBLING)
    assert (fit_models(one(run))[1].a or 0) > 5e-5


def test_linear_time_has_no_quadratic_term() -> None:
    run = Run()
    run.curve("cpu.rnn", lambda n: 2e-6 * n, DOUBLING, family="rnn")
    two, _ = fit_models(one(run))
    assert two.takeover is None or two.takeover > 1e9
    assert two.b == pytest.approx(2e-6)


def test_a_model_predicts_the_local_slopes_of_its_own_curve() -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 4e-6 * n + 9e-9 * n * n, DOUBLING)
    two, _ = fit_models(one(run))
    n, times = one(run).medians()
    assert two.slopes == pytest.approx(local_slopes(n, times), abs=1e-6)


# --- memory -------------------------------------------------------------------------------------


def memory(law: Law, sizes: Sequence[int], tensors: Law = lambda n: 1024 * n) -> list[Fit]:
    run = Run()
    for n in sizes:
        cells: dict[str, Value] = {"mem_scratch_bytes": int(law(n))}
        run.point("cpu.naive", n, 1e-9 * n, {**cells, "mem_tensors_bytes": int(tensors(n))})
    return fit_memory(one(run))


@pytest.mark.parametrize("sizes", [SQRT2, DOUBLING, COMPLEXITY])
def test_memory_is_exact_in_sqrt2_steps_too(sizes: Sequence[int]) -> None:
    scratch, both = memory(lambda n: 4 * n * n + 12, sizes)
    assert (scratch.exponent, scratch.a, scratch.b, scratch.c) == (2, 12, 0, 4)
    assert scratch.verdict == "exactly 4·n² + 12"
    assert both.verdict == "exactly 4·n² + 1024·n + 12"
    assert (both.lo, both.hi) == (None, None)


@pytest.mark.parametrize(
    ("law", "degree", "text"),
    [
        (lambda n: 0, 0, "exactly 0"),
        (lambda n: 256, 0, "exactly 256"),
        (lambda n: 4 * n, 1, "exactly 4·n"),
        (lambda n: n**3 - n, 3, "exactly 1·n³ − 1·n"),
        (lambda n: n * (n + 1) // 2, 2, "exactly 1/2·n² + 1/2·n"),
    ],
)
def test_degrees(law: Law, degree: int, text: str) -> None:
    scratch, _ = memory(law, SQRT2)
    assert (scratch.exponent, scratch.verdict) == (degree, text)


@pytest.mark.parametrize("law", [lambda n: n**4, lambda n: 64 * math.ceil(n * n / 16), math.isqrt])
def test_what_is_no_polynomial_is_said_to_be_none(law: Law) -> None:
    scratch, _ = memory(lambda n: law(int(n)), SQRT2)
    assert scratch.verdict == "not a polynomial of degree <= 3"
    assert scratch.exponent is None


def test_one_byte_too_many_is_seen() -> None:
    scratch, _ = memory(lambda n: 4 * n * n + (n == 5793), SQRT2)
    assert scratch.verdict == "not a polynomial of degree <= 3"


def test_a_degree_needs_a_point_to_check_it() -> None:
    assert memory(lambda n: n * n, (128, 256, 512))[0].verdict == "3 points do not fix a degree"
    assert memory(lambda n: n * n, (128, 256, 512, 1024))[0].exponent == 2


def test_rows_without_a_time_still_state_their_bytes() -> None:
    run = Run()
    for n in SQRT2:
        row = run.row("cpu.naive", n, status="cutoff", mem_scratch_bytes=4 * n)
        assert row["status"] == "cutoff"
    assert fit_memory(one(run))[0].exponent == 1


@settings(max_examples=80, deadline=None)
@given(
    coefficients=st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=4),
    sizes=st.sets(st.integers(1, 200_000), min_size=6, max_size=10),
)
def test_any_integer_polynomial_comes_back(coefficients: list[int], sizes: set[int]) -> None:
    while len(coefficients) > 1 and coefficients[-1] == 0:
        coefficients.pop()
    values = [sum(c * n**p for p, c in enumerate(coefficients)) for n in sizes]
    assert exact_polynomial(list(sizes), values) == [Fraction(c) for c in coefficients]


def test_polynomials_are_written_highest_power_first() -> None:
    assert polynomial_text([Fraction(-3), Fraction(1, 2), Fraction(0), Fraction(2)]) == (
        "2·n³ + 1/2·n − 3"
    )


# --- file ---------------------------------------------------------------------------------------


def test_fits_csv_has_its_columns_and_no_nan(tmp_path: Path) -> None:
    table = load(default_sweep().write(tmp_path))
    write_fits(table, fit_all(table))
    text = (tmp_path / "fits.csv").read_bytes()
    assert b"nan" not in text
    assert b"inf" not in text
    rows = list(csv.DictReader(text.decode().splitlines()))
    header = list(rows[0])
    assert (
        header[-13:]
        == (
            "quantity exponent exponent_lo exponent_hi n_min n_max points local_slopes "
            "max_deviation a b c verdict"
        ).split()
    )
    assert header[:6] == "backend scope regime device threads cache_mode".split()
    assert not {"n_q", "n_kv"} & set(header)
    assert tuple(header) == FITS_COLUMNS
    times = [r for r in rows if r["quantity"] == "time" and r["exponent"]]
    assert {r["backend"] for r in times} == {
        *("cpu.naive cpu.online blas.three_step blas.gqa".split()),
        *("cpu.rnn cpu.lstm blas.rnn blas.lstm".split()),
    }
    assert all(float(r["exponent_lo"]) < float(r["exponent"]) for r in times)
    write_fits(table, fit_all(table))
    assert (tmp_path / "fits.csv").read_bytes() == text


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    table = load(default_sweep().write(tmp_path))
    (tmp_path / "fits.csv").mkdir()
    with pytest.raises(TableError, match=r"fits\.csv: cannot be written"):
        write_fits(table, fit_all(table))


def test_log_slope_of_two_points() -> None:
    assert log_slope([2, 8], [3.0, 48.0]) == pytest.approx(2)
