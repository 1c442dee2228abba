# SPDX-License-Identifier: MIT
import csv
import math
from pathlib import Path

import numpy as np
import pytest

from attnplot.crossover import (
    RATIO_FLOOR,
    Crossover,
    crossings,
    crossover_all,
    log_ratio,
    write_crossovers,
)
from attnplot.table import load
from synthetic import COMPLEXITY, DOUBLING, Law, Noise, Run, Value, default_sweep

ATTENTION: dict[str, Value] = {"scope": "layer", "d_model": 256}
RECURRENT: dict[str, Value] = {**ATTENTION, "family": "lstm", "causal": None}


def quadratic(n: float) -> float:
    return 1e-8 * n**2


def linear(n: float) -> float:
    return 1e-5 * n  # equal to quadratic at n = 1000


def pair(run: Run, a: Law = quadratic, b: Law = linear, **cells: Value) -> Run:
    run.curve("cpu.naive", a, DOUBLING, **{**ATTENTION, **cells})
    run.curve("cpu.lstm", b, COMPLEXITY, **RECURRENT)
    return run


def only(run: Run) -> Crossover:
    (found,) = crossover_all(run.table())
    return found


def test_a_known_crossover_is_found() -> None:
    found = only(pair(Run()))
    assert found.n_star == pytest.approx(1000, rel=1e-9)
    assert found.winner == "cpu.naive below, cpu.lstm above"
    assert (found.n_min, found.n_max) == (128, 8192)
    # The ratio grows as n¹, so the floor of log ratio is that of log n.
    assert found.lo == pytest.approx(1000 * math.exp(-RATIO_FLOOR), rel=1e-9)
    assert found.hi == pytest.approx(1000 * math.exp(RATIO_FLOOR), rel=1e-9)
    assert "up to n = 1000 (95 % interval 969 to 1032, one process), then slower" in found.sentence


def test_a_flatter_meeting_has_a_wider_floor() -> None:
    found = only(pair(Run(), a=lambda n: 1e-5 * n * (n / 1000) ** 0.5))
    assert found.hi == pytest.approx(1000 * math.exp(RATIO_FLOOR / 0.5), rel=1e-9)


def test_rounds_share_their_drift_and_the_crossover_does_not_move() -> None:
    found = only(pair(Run(noise=Noise(round=0.3))))
    assert found.n_star == pytest.approx(1000, rel=1e-9)
    assert found.hi == pytest.approx(1000 * math.exp(RATIO_FLOOR), rel=1e-9)


def test_the_interval_covers_over_processes() -> None:
    hits, seeds = 0, 200
    for seed in range(seeds):
        run = Run(rounds=10, processes=5, noise=Noise(sample=0.01, luck=0.011), seed=seed)
        found = only(pair(run))
        assert found.label == "5 processes"
        assert found.lo is not None
        assert found.hi is not None
        hits += found.lo <= 1000 <= found.hi
    assert 0.88 <= hits / seeds <= 0.995  # 0.95 ± 4.5 × 0.0154


def test_five_rounds_give_a_point_and_no_interval() -> None:
    found = only(pair(Run(rounds=5)))
    assert found.n_star == pytest.approx(1000)
    assert (found.lo, found.hi) == (None, None)
    assert "no interval: too few complete rounds" in found.sentence


def test_an_incomplete_round_is_not_used() -> None:
    run = pair(Run(rounds=6))
    run.lines = [x for x in run.lines if not (x[1] == "p3" and x[4] == 5)]
    assert only(run).lo is None


def test_one_side_wins_with_a_one_sided_bound() -> None:
    found = only(pair(Run(), b=lambda n: 1e-7 * n))  # 12.8 times at 128, more above
    assert found.n_star is None
    assert found.winner == "cpu.lstm"
    assert (found.lo, found.hi) == (None, 128)
    assert found.ratio == pytest.approx(12.8)
    assert found.ratio_n == 128
    assert found.ratio_bound == pytest.approx(12.8 * math.exp(-RATIO_FLOOR))
    assert (
        "cpu.lstm is faster than cpu.naive throughout: by 12.80 times at n = 128" in found.sentence
    )
    assert "at least 12.41 times with 95 % confidence" in found.sentence


def test_the_one_sided_bound_is_student_at_95_percent_with_the_floor() -> None:
    run = pair(Run(noise=Noise(sample=0.03)), b=lambda n: 1e-7 * n)
    found = only(run)
    smallest = {str(r["backend"]): r["point_id"] for r in run.rows if r["n_q"] == 128}
    times = {
        name: np.array([x[6] for x in run.lines if x[1] == point and x[2] == "sample"], float)
        for name, point in smallest.items()
    }
    ratios = np.log(times["cpu.naive"] / times["cpu.lstm"])
    half_t = 2.015048 * np.std(ratios, ddof=1) / math.sqrt(6)
    middle = np.median(times["cpu.naive"]) / np.median(times["cpu.lstm"])
    assert found.ratio_n == 128
    assert found.ratio_bound == pytest.approx(middle * math.exp(-math.hypot(half_t, RATIO_FLOOR)))


@pytest.mark.parametrize(("factor", "open_low"), [(10.0, True), (0.1, False)])
def test_a_round_without_a_crossover_leaves_its_side_open(factor: float, open_low: bool) -> None:
    run = pair(Run(rounds=7))
    attention = {r["point_id"] for r in run.rows if r["backend"] == "cpu.naive"}
    for line in run.lines:
        if line[1] in attention and line[2] == "sample" and line[4] == 3:
            assert isinstance(line[6], float)
            line[6] *= factor
    found = only(run)
    assert found.n_star == pytest.approx(1000)
    assert (found.lo is None, found.hi is None) == (open_low, not open_low)
    assert ("below the range to" if open_low else "to above the range") in found.sentence


def test_attention_may_win_throughout() -> None:
    found = only(pair(Run(), b=lambda n: 1e-3 * n))
    assert (found.winner, found.lo, found.hi) == ("cpu.naive", 8192, None)
    assert found.ratio_n == 8192
    assert "cpu.naive is faster than cpu.lstm throughout" in found.sentence


def test_a_win_within_the_noise_has_no_winner() -> None:
    found = only(pair(Run(), a=lambda n: 1.01e-5 * n))
    assert found.n_star is None
    assert found.winner == ""
    assert "does not exclude a tie" in found.sentence


def test_the_common_range_only() -> None:
    run = Run()
    run.curve("cpu.naive", quadratic, (128, 256, 512), **ATTENTION)
    run.curve("cpu.lstm", linear, COMPLEXITY, **RECURRENT)
    found = only(run)
    assert found.n_star is None
    assert (found.n_min, found.n_max, found.winner) == (128, 512, "cpu.naive")


@pytest.mark.parametrize("column", ["d_model", "threads", "batch"])
def test_other_shapes_are_not_compared(column: str) -> None:
    cells: dict[str, Value] = {**ATTENTION, column: 7}
    run = Run()
    run.curve("cpu.naive", quadratic, DOUBLING, **cells)
    run.curve("cpu.lstm", linear, COMPLEXITY, **RECURRENT)
    assert crossover_all(run.table()) == []


def test_causal_attention_is_compared_too() -> None:
    assert only(pair(Run(), causal=True)).n_star == pytest.approx(1000)


def test_cores_are_not_compared_with_layers() -> None:
    assert crossover_all(pair(Run(), scope="core").table()) == []


def test_several_crossings_are_counted_and_the_last_is_taken() -> None:
    found = only(pair(Run(), a=lambda n: linear(n) * (2 if n in (256, 8192) else 0.5)))
    assert found.crossings == 3
    assert found.n_star == pytest.approx(math.sqrt(4096 * 8192))
    assert "the curves cross 3 times" in found.sentence


def test_crossings_of_a_piecewise_line() -> None:
    ((x, slope),) = crossings([1, 10, 100], [-1.0, 1.0, 3.0])
    assert x == pytest.approx(math.log(10) / 2)
    assert slope == pytest.approx(2 / math.log(10))
    assert crossings([1, 10], [1.0, 2.0]) == []
    assert [x for x, _ in crossings([1, 10, 100], [-1.0, 0.0, 1.0])] == [
        pytest.approx(math.log(10))
    ]


def test_interpolation_is_log_log() -> None:
    (value,) = log_ratio([4], ([2, 8], [4.0, 64.0]), ([2, 8], [1.0, 1.0]))
    assert value == pytest.approx(math.log(16))


def test_crossovers_csv(tmp_path: Path) -> None:
    table = load(default_sweep().write(tmp_path))
    found = crossover_all(table)
    write_crossovers(table, found)
    text = (tmp_path / "crossovers.csv").read_bytes().decode()
    rows = list(csv.DictReader(text.splitlines()))
    assert list(rows[0]) == ("a b scope causal d_model n_star n_star_lo n_star_hi winner".split())
    assert len(rows) == 8
    assert "nan" not in text
    for row in rows:
        assert row["scope"] == "layer"
        assert row["n_star"] or row["winner"] in (row["a"], row["b"])
