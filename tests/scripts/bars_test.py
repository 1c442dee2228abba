# SPDX-License-Identifier: MIT
import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from attnplot.bars import (
    Bar,
    Estimate,
    Reached,
    Runs,
    bars,
    bars_table,
    evaluate,
    median_interval,
    peers_text,
    pools_text,
    rate_tables,
)
from attnplot.cli import main
from synthetic import SQRT2, Noise, Run, Value, core_cells

SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
PEAK = 100.0
SELECT = {"backend": ["simd.fused"], "heads": ["1"], "head_dim": ["64"], "n": ["2048"]}


def bar(quantity: str, least: float, other: Mapping[str, list[str]] | None = None) -> Bar:
    return Bar("work", quantity, SELECT, other or {}, ["all"], (least,), least + 0.1, "")


def add(run: Run, backend: str, n: int, rate: float, **cells: Value) -> None:
    """A point at a rate in GFLOP/s of the model's operations; half of them when causal."""
    shape = core_cells("cpu.online", n)
    flops = int(4 * 64 * n * (n + 1) / 2) if cells.get("causal") else 4 * 64 * n * n
    shape |= {"flops_model": flops, "threads": 2, **cells}
    run.point(backend, n, flops / rate / 1e9, shape)
    run.rows[-1]["pct_peak"] = 100 * rate / PEAK


def one(run: Run, wanted: Bar, peers: tuple[str, ...] = ("torch.sdpa", "zendnn.sdpa")) -> Reached:
    (found,) = [r for r in evaluate(Runs([run.table()], peers), [wanted]) if r.threads == "all"]
    return found


def estimate(found: Reached) -> Estimate:
    assert found.estimate is not None, found.why
    return found.estimate


def against_peers(own: float, peer: float, noise: float = 0.0) -> Reached:
    run = Run(rounds=12, noise=Noise(sample=noise, round=0.3))
    add(run, "simd.fused", 2048, own)
    add(run, "torch.sdpa", 2048, peer)
    add(run, "zendnn.sdpa", 2048, peer / 2)
    return one(run, bar("rate", 1.05, {"backend": ["peers"]}))


def test_a_ratio_is_that_of_paired_rounds_against_the_quickest_peer() -> None:
    # The round's factor of 30 % stands in both times and cancels.
    found = against_peers(80, 50)
    assert estimate(found).against == "torch.sdpa"
    assert estimate(found).value == pytest.approx(1.6)
    assert (estimate(found).lo, estimate(found).hi) == pytest.approx((1.6, 1.6))
    assert found.verdict == "reached"
    assert found.stretched


@pytest.mark.parametrize(
    ("own", "noise", "verdict"),
    [
        (52.0, 0.0, "missed"),
        (52.5, 0.05, "undecided"),
        (53.0, 0.0, "reached"),
        (40, 0.05, "missed"),
    ],
)
def test_the_whole_interval_decides(own: float, noise: float, verdict: str) -> None:
    assert against_peers(own, 50, noise).verdict == verdict


def test_without_an_interval_nothing_is_decided() -> None:
    run = Run(rounds=5)
    add(run, "simd.fused", 2048, 99)
    found = one(run, bar("peak", 0.5))
    assert estimate(found).value == pytest.approx(0.99)
    assert found.verdict == "undecided"


def test_a_share_of_the_peak_has_the_interval_of_its_time() -> None:
    run = Run(rounds=6, noise=Noise(sample=0.02))
    add(run, "simd.fused", 2048, 90)
    row = run.rows[-1]
    found = estimate(one(run, bar("peak", 0.5)))
    times = [float(str(row[c])) for c in ("ci95_lo_s", "ci95_hi_s")]
    flops = 4 * 64 * 2048**2
    rates = [flops / t / 1e9 / PEAK for t in times]
    median = float(str(row["time_median_s"])) * 0.9 * 1e11 / flops
    assert (found.hi, found.lo) == pytest.approx([median * r for r in rates])


def test_rates_and_not_times_are_held_against_other_shapes() -> None:
    run = Run()
    add(run, "simd.fused", 2049, 97)
    add(run, "simd.fused", 2064, 100)
    add(run, "simd.fused", 2048, 80, causal=True)
    add(run, "simd.fused", 2048, 100)
    tail = Bar("t", "rate", {**SELECT, "n": ["2049"]}, {"n": ["next 16"]}, ["all"], (0.9,), 1, "")
    assert estimate(one(run, tail)).value == pytest.approx(0.97)
    select = {**SELECT, "causal": ["true"]}
    causal = Bar("c", "rate", select, {"causal": ["false"]}, ["all"], (0.9,), 1, "")
    assert estimate(one(run, causal)).value == pytest.approx(0.8)
    assert one(run, causal).verdict == "missed"


def test_absent_peers_are_named_with_their_reason() -> None:
    run = Run()
    add(run, "simd.fused", 2048, 90)
    reason = "needs the PyPI wheel: run scripts/setup.sh --peers"
    row = run.row("torch.sdpa", 2048, threads=2, status="unavailable", status_reason=reason)
    assert row
    found = one(run, bar("rate", 1.05, {"backend": ["peers"]}))
    assert found.verdict == "not measured"
    assert reason in found.why
    said = peers_text(Runs([run.table()], ("torch.sdpa", "zendnn.sdpa")))
    assert said == [
        f"torch.sdpa did not take part: unavailable: {reason}",
        "zendnn.sdpa did not take part: this build has no such backend",
    ]


def test_decode_is_a_share_of_the_bandwidth_only_out_of_cache() -> None:
    wanted = next(b for b in bars()[0] if b.quantity == "read")
    for llc, verdict in ((32 << 20, "reached"), (1 << 30, "not measured")):
        roof = {"kind": "read", "dtype": "f32", "threads": 2, "value": 40.0, "unit": "gbps"}
        run = Run(llc_bytes=llc, roofs=[roof])
        size = 2 * 4 * 8 * 128 * 65536
        cells: dict[str, Value] = {"regime": "decode", "n_q": 1, "threads": 2, "heads": 32}
        cells |= {"heads_kv": 8, "head_dim": 128, "bytes_min": size, "mem_tensors_bytes": size}
        run.point("simd.decode", 65536, size / 36e9, cells)
        found = one(run, wanted)
        assert found.verdict == verdict
        assert found.estimate is None or found.estimate.value == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("beside", "verdict"), [(98.0, "reached"), (40.0, "missed"), (80.0, "undecided")]
)
def test_two_pools_show_in_the_rate_beside_others(beside: float, verdict: str) -> None:
    alone = Run(rounds=6, noise=Noise(sample=0.01))
    add(alone, "simd.fused", 2048, 100)
    mixed = Run(rounds=6, noise=Noise(sample=0.01))
    add(mixed, "simd.fused", 2048, beside)
    add(mixed, "torch.sdpa", 2048, 70)
    runs = Runs([alone.table(), mixed.table()], ())
    (found,) = [r for r in evaluate(runs, [bar("beside", 0.8)]) if r.threads == "all"]
    assert estimate(found).value == pytest.approx(beside / 100, rel=0.02)
    assert found.verdict == verdict
    only = Runs([mixed.table()], ())
    (found,) = [r for r in evaluate(only, [bar("beside", 0.8)]) if r.threads == "all"]
    assert (found.verdict, found.why) == ("not measured", "no run holds simd.fused alone here")


def test_pools_are_named_from_the_runs_own_record() -> None:
    run = Run()
    add(run, "simd.fused", 2048, 90)
    table = run.table()
    assert "not said" in pools_text(Runs([table], ()))
    table.run["thread_runtimes"] = ["libgomp.so.1", "libtbb.so.12"]  # type: ignore[index]
    assert "libgomp.so.1, libtbb.so.12" in pools_text(Runs([table], ()))


def test_exponent_and_memory_of_a_curve() -> None:
    run = Run(rounds=12)
    for n in SQRT2:
        run.point("simd.fused", n, 1e-9 * n**2, core_cells("cpu.online", n))
    wanted = [b for b in bars()[0] if b.quantity in ("exponent", "memory")]
    found = evaluate(Runs([run.table()], ()), wanted)
    assert [(r.bar.quantity, r.verdict, r.stretched) for r in found] == [
        ("exponent", "reached", False),
        ("memory", "reached", True),
    ]
    quadratic = Run(rounds=12)
    for n in SQRT2:
        cells = core_cells("cpu.naive", n) | {"mem_scratch_bytes": 4 * n * n}
        quadratic.point("simd.fused", n, 1e-9 * n**2.2, cells)
    found = evaluate(Runs([quadratic.table()], ()), wanted)
    assert [r.verdict for r in found] == ["missed", "missed"]


def test_the_interval_is_that_of_attnbench() -> None:
    values = [float(v) for v in range(1, 31)]
    assert median_interval(values[:5]) is None
    assert median_interval(values[:6]) == (1, 6)
    assert median_interval(values[:8]) == (1, 8)
    assert median_interval(values[:9]) == (2, 8)
    assert median_interval(values) == (10, 21)


def test_a_line_shows_its_worst_point_and_says_what_is_missing() -> None:
    run = Run()
    for n in (2048, 4096):
        add(run, "simd.fused", n, 96 if n == 2048 else 60)
    wanted = bars()[0][0]
    grid = bars_table(evaluate(Runs([run.table()], ()), [wanted]))
    cells = grid.rows[0]
    assert cells[4] == "0.600 [0.600, 0.600], the worst of 2: n = 4096"
    assert cells[5].startswith("missed at 1 of 3 points; not measured at 1 of 3 points (no run")


def whole(folder: Path, **cells: Value) -> Path:
    run = Run()
    for n in SIZES:
        add(run, "simd.fused", n, 90, **cells)
        add(run, "torch.sdpa", n, 60, **cells)
    for row in run.rows:
        row["git_sha"] = cells.get("git_sha", "0123456789abcdef")
    return run.write(folder)


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = whole(tmp_path / "a" / "one")
    assert main(["bars", str(folder), "--out", str(tmp_path / "b")]) == 0
    said = capsys.readouterr()
    assert said.out == (tmp_path / "b" / "bars.md").read_text(encoding="utf-8")
    assert said.err == ""
    assert "torch.sdpa took part in 7 points" in said.out
    assert "| 128 | 90 | 60 |" in said.out
    with (tmp_path / "b" / "bars.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    ratio = [r for r in rows if r["against"] == "torch.sdpa" and r["threads"] == "2"]
    assert len(ratio) == 7
    assert {(round(float(r["value"]), 9), r["verdict"]) for r in ratio} == {(1.5, "reached")}


def test_the_readme_gets_a_link_and_the_bars(tmp_path: Path) -> None:
    folder, readme = whole(tmp_path / "a" / "one"), tmp_path / "README.md"
    readme.write_text("# a\n<!-- bars:begin -->\nold\n<!-- bars:end -->\nz")
    assert main(["bars", str(folder), "--readme", str(readme)]) == 0
    bars = (tmp_path / "a" / "bars.md").read_text(encoding="utf-8").partition("## Bars\n\n")[2]
    head = "# a\n<!-- bars:begin -->\n[All rates, and who took part](a/bars.md).\n\n"
    shown = bars.partition("\n## ")[0]
    assert readme.read_text(encoding="utf-8") == f"{head}{shown}<!-- bars:end -->\nz"


def test_a_readme_without_markers_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder, readme = whole(tmp_path / "a" / "one"), tmp_path / "README.md"
    readme.write_text("# a")
    assert main(["bars", str(folder), "--readme", str(readme)]) == 6
    assert not (tmp_path / "a" / "bars.md").exists()
    assert readme.read_text() == "# a"


def test_runs_that_do_not_belong_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = str(whole(tmp_path / "one"))
    for column, usual in (("env_id", "e1"), ("build_id", "b1")):
        run = Run()
        add(run, "simd.fused", 128, 90, git_sha="0123456789abcdef", **{column: "x1"})
        other = tmp_path / column
        run.write(other)
        path = other / "run.json"
        path.write_text(path.read_text().replace(f'"{column}": "{usual}"', f'"{column}": "x1"'))
        assert main(["bars", first, str(other)]) == 6, column
        assert "one table holds runs of one build on one machine" in capsys.readouterr().err


def test_nothing_measured_writes_nothing(tmp_path: Path) -> None:
    run = Run()
    run.row("simd.fused", 128, status="unavailable", status_reason="needs Highway")
    assert main(["bars", str(run.write(tmp_path / "one"))]) == 4
    assert not (tmp_path / "bars.md").exists()


def test_rates_stand_beside_each_other() -> None:
    run = Run()
    add(run, "simd.fused", 128, 90)
    add(run, "torch.sdpa", 128, 60)
    run.row("onednn.three_step", 128, threads=2, status="unsupported", status_reason="no")
    ((title, grid),) = rate_tables(Runs([run.table()], ()))
    assert title == "f32, bidirectional, 1 head, d = 64, 2 threads"
    assert grid.header == ["n", "simd.fused", "torch.sdpa"]
    assert grid.rows == [["128", "90", "60"]]
