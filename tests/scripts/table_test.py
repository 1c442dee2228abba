# SPDX-License-Identifier: MIT
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnplot.files import format_cell, write_csv
from attnplot.table import (
    RESULT_COLUMNS,
    SAMPLE_COLUMNS,
    TableError,
    bandwidth_may_be_stated,
    load,
    roofs,
)
from synthetic import Run, default_sweep

QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# Word for word what the columns are promised to be.
PROMISED = (
    "schema_version, run_id, point_id, env_id, build_id, timestamp_utc, tags, "
    "backend, resolved_impl, family, sharing, scope, regime, device, device_name, threads, "
    "acc_dtype, projection_impl, "
    "n_q, n_kv, batch, heads, heads_kv, head_dim, head_dim_v, d_model, output_projection, width, "
    "causal, scale, dtype, input_dist, seed, "
    "status, status_reason, "
    "samples, processes, rounds, time_median_s, ci95_lo_s, ci95_hi_s, time_min_s, time_q1_s, "
    "time_q3_s, outliers, noisy, stop_reason, timer, cache_mode, order, "
    "flops_model, flops_executed, exps, bytes_min, bytes_model, seq_steps, gflops, gbps, pct_peak, "
    "pct_roof, "
    "mem_scratch_bytes, mem_state_bytes, mem_tensors_bytes, mem_kv_cache_bytes, mem_peak_bytes, "
    "verify_mode, rows_checked, err_max_abs, err_scaled, err_bound, err_vs_exact, "
    "repro_cmd, git_sha, git_dirty"
).split(", ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-8 * n**2, (128, 256))
    run.row("cuda.naive", 128, status="unavailable", status_reason='no "CUDA",\nnone at all')
    return run.write(tmp_path / "run")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) >= 1, old
    path.write_text(text.replace(old, new, 1), encoding="utf-8", newline="")


def set_cell(folder: Path, row: int, column: str, value: str) -> None:
    path = folder / "results.csv"
    lines = path.read_text(encoding="utf-8").split("\n")
    cells = lines[row - 1].split(",")
    cells[list(RESULT_COLUMNS).index(column)] = value
    lines[row - 1] = ",".join(cells)
    path.write_text("\n".join(lines), encoding="utf-8", newline="")


def test_columns_are_the_promised_ones() -> None:
    assert list(RESULT_COLUMNS) == PROMISED


def test_a_run_is_read_with_its_types(folder: Path) -> None:
    table = load(folder)
    assert table.notes == ()
    assert [p.n for p in table.measured] == [128, 256]
    first = table.points[0]
    assert first.time_s == pytest.approx(1e-8 * 128**2)
    assert first.cells["causal"] is False
    assert first.cells["d_model"] is None
    assert table.points[2].text("status_reason") == 'no "CUDA",\nnone at all'
    assert table.points[2].time_s is None
    assert len(table.samples[first.point_id]) == 6


@pytest.mark.parametrize("name", ["results.csv", "samples.csv", "run.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(TableError, match=name):
        load(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="nowhere: no such folder"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("results.csv", "time_median_s", "time_median_ms", "column 'time_median_s' is missing"),
        ("results.csv", "git_dirty", "git_dirty,extra", "column 'extra' is unknown"),
        ("results.csv", "n_q,n_kv", "n_kv,n_q", "column 'n_kv' is not in its place"),
        ("results.csv", "git_sha,git_dirty", "git_sha", "column 'git_dirty' is missing"),
        ("samples.csv", "time_s", "time", "column 'time_s' is missing"),
        ("samples.csv", "process,round", "round,process", "column 'round' is not in its place"),
    ],
)
def test_a_foreign_header_is_refused_by_name(
    folder: Path, name: str, old: str, new: str, said: str
) -> None:
    edit(folder / name, old, new)
    with pytest.raises(TableError, match=said):
        load(folder)


def test_another_schema_is_refused(folder: Path) -> None:
    set_cell(folder, 3, "schema_version", "2")
    with pytest.raises(TableError, match="row 3 has schema_version '2'"):
        load(folder)


@pytest.mark.parametrize(
    "text", ['{"schema_version": 2}', "{}", "[]", "{", '{"schema_version": 1, "x": NaN}', "true"]
)
def test_a_foreign_run_json_is_refused(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text)
    with pytest.raises(TableError, match=r"run\.json"):
        load(folder)


@pytest.mark.parametrize(
    "text",
    ['"x": NaN', '"x": 1e999', '"x": "\\ud800"', '"x": "\\u0000"', '"x": ' + 40 * "[" + 40 * "]"],
)
def test_a_run_json_that_no_report_could_show_is_refused(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(f'{{"schema_version": 1, {text}}}')
    with pytest.raises(TableError, match=r"run\.json: is not JSON"):
        load(folder)


def test_run_json_needs_nothing_but_its_version(folder: Path) -> None:
    (folder / "run.json").write_text('{"schema_version": 1}')
    table = load(folder)
    assert table.llc_bytes() is None
    assert roofs(table) == ()
    assert not bandwidth_may_be_stated(table, table.points[0])


@pytest.mark.parametrize(
    "value",
    [
        "nan",
        "-inf",
        "0",
        "0.0",
        "-1",
        "fast",
        "1_0",
        " 1",
        "1,5e",
        "0x1p3",
        "1e999",
        "1e10",
        "1e-13",
    ],
)
def test_a_bad_time_is_named_and_left_out(folder: Path, value: str) -> None:
    set_cell(folder, 2, "time_min_s", value.replace(",", ";"))
    table = load(folder)
    assert [p.n for p in table.measured] == [256]
    assert len(table.notes) == 1
    assert "results.csv row 2: time_min_s" in table.notes[0]


@pytest.mark.parametrize(
    ("column", "value"),
    [("causal", "yes"), ("n_q", "1e3"), ("status", "fine"), ("scope", "whole"), ("gflops", "NaN")],
)
def test_a_bad_word_is_named_and_left_out(folder: Path, column: str, value: str) -> None:
    set_cell(folder, 2, column, value)
    table = load(folder)
    assert [p.n for p in table.measured] == [256]
    assert f"row 2: {column} '{value}'" in table.notes[0]


def test_an_infinite_error_keeps_its_row(folder: Path) -> None:
    set_cell(folder, 2, "err_max_abs", "inf")
    table = load(folder)
    assert table.points[0].cells["err_max_abs"] is None
    assert table.notes == ()


@pytest.mark.parametrize("value", ["nan", "0", "-1e-3", "quick", ""])
def test_a_bad_sample_is_named_and_left_out(folder: Path, value: str) -> None:
    with (folder / "samples.csv").open("a", encoding="utf-8") as out:
        out.write(f"r,p0,sample,0,6,0,{value},3000,false,{{}}\n")
    table = load(folder)
    assert len(table.samples["p0"]) == 6
    assert f"time_s '{value}'" in table.notes[0]


@pytest.mark.parametrize(
    ("torn", "goes_on"),
    [
        ("r,p0,sam", False),
        ("r,p0,sam", True),
        ("r,p0,sample,0,6,0,99.0,3000,false,", False),
        ('r,p0,check,0,,,1,,false,"{""sta', False),
        ('r,p0,check,0,,,1,,false,"{""sta', True),
    ],
)
def test_a_torn_line_is_named_and_never_glued_to(folder: Path, torn: str, goes_on: bool) -> None:
    path = folder / "samples.csv"
    after = "\nr,p0,finish,,,,,,,{}\n" if goes_on else ""
    rows = path.read_text(encoding="utf-8").count("\n")
    path.write_text(path.read_text(encoding="utf-8") + torn + after, encoding="utf-8")
    table = load(folder)
    assert len(table.samples["p0"]) == 6
    assert len(table.notes) == 1
    assert f"samples.csv row {rows + 1}: torn" in table.notes[0]


def test_a_forged_median_is_refused_by_name(folder: Path) -> None:
    row = load(folder).points[1]
    set_cell(folder, 3, "time_median_s", repr((row.time_s or 0) * (1 + 3e-6)))
    with pytest.raises(TableError, match=r"row 3, point 'p1': time_median_s .* is not the median"):
        load(folder)


def test_a_median_within_its_rounding_is_accepted(folder: Path) -> None:
    row = load(folder).points[1]
    set_cell(folder, 3, "time_median_s", repr((row.time_s or 0) * (1 + 3e-7)))
    assert len(load(folder).measured) == 2


def test_a_removed_median_is_refused(folder: Path) -> None:
    set_cell(folder, 3, "time_median_s", "")
    with pytest.raises(TableError, match="time_median_s is empty"):
        load(folder)


def test_a_median_without_samples_is_refused(folder: Path) -> None:
    path = folder / "samples.csv"
    lines = [x for x in path.read_text().split("\n") if not x.startswith("r,p1,sample")]
    path.write_text("\n".join(lines))
    with pytest.raises(TableError, match="has no sample"):
        load(folder)


def test_two_rows_with_one_point_id_are_refused(folder: Path) -> None:
    set_cell(folder, 3, "point_id", "p0")
    with pytest.raises(TableError, match="rows 2 and 3 have point_id 'p0'"):
        load(folder)


def test_a_repeated_key_is_named_and_left_out(tmp_path: Path) -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-9 * n, (128, 128))
    run.rows[1]["cache_mode"] = "mixed"  # counts as warm
    table = load(run.write(tmp_path))
    assert len(table.points) == 1
    assert "repeats the point of row 2" in table.notes[0]


def test_samples_of_an_offended_round_are_suspect_for_every_point(tmp_path: Path) -> None:
    run = Run(rounds=7)
    for n in (128, 256):
        run.point("cpu.naive", n, 1e-6 * n)
    for point_id in ("p0", "p1"):
        run.sample(point_id, 0, 7, 123.0)  # process 0, round 7: the offended one
        run.sample(point_id, 1, 7, 1e-6 * (128 if point_id == "p0" else 256))  # taken again
    run.lines.append(["r", "p9", "offence", 0, 7, None, None, None, None, '{"kind":"crash"}'])
    run.lines.append(["r", "p9", "offence", 1, None, None, None, None, None, '{"kind":"hang"}'])
    table = load(run.write(tmp_path))
    assert table.suspect == 2
    assert [s.process for s in table.samples["p0"] if s.round == 7] == [1]
    assert len(table.measured) == 2


def test_roof_samples_and_resumed_points_are_no_trouble(tmp_path: Path) -> None:
    run = Run()
    run.lines.append(["r", "roof:fma:f32:1", "sample", 0, 0, 0, 0.01, 1, False, '{"gflops":1}'])
    run.curve("cpu.naive", lambda n: 1e-9 * n, (128,))
    run.lines.append(
        ["r", "p0", "finish", None, None, None, None, None, None, '{"status":"resumed"}']
    )
    table = load(run.write(tmp_path))
    assert list(table.samples) == ["p0"]
    assert table.notes == ()


def test_the_default_sweep_loads_whole(tmp_path: Path) -> None:
    table = load(default_sweep().write(tmp_path))
    assert table.notes == ()
    cut = [p for p in table.points if p.status == "cutoff"]
    assert [p.n for p in cut] == [8192]
    assert table.predicted_s[cut[0].point_id] > 10
    assert {r.kind for r in roofs(table)} == {"fma", "gemm", "read", "triad"}


def test_bandwidth_is_stated_from_four_caches_on(tmp_path: Path) -> None:
    run = Run(llc_bytes=1000)
    for n, size in ((128, 3999), (256, 4000)):
        run.point("cpu.naive", n, 1e-3, {"mem_tensors_bytes": size})
    run.point("cpu.naive", 512, 1e-3, {"mem_tensors_bytes": 1})
    run.rows[2]["cache_mode"] = "cold"
    table = load(run.write(tmp_path))
    assert [bandwidth_may_be_stated(table, p) for p in table.points] == [False, True, True]


@pytest.mark.parametrize(
    ("machine", "size"),
    [
        ('{"llc_bytes": 5, "llc_total_bytes": 10}', 10),
        ('{"llc_bytes": 5}', 5),
        ('{"caches": {"llc_bytes": 7}}', 7),
        ('{"llc_bytes": null}', None),
        ('{"llc_bytes": "5"}', None),
        ("3", None),
    ],
)
def test_the_last_level_cache_is_found(folder: Path, machine: str, size: int | None) -> None:
    (folder / "run.json").write_text(f'{{"schema_version": 1, "machine": {machine}}}')
    assert load(folder).llc_bytes() == size


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not be written"):
        write_csv(tmp_path / "x.csv", ["a"], [[float("nan")]])


@QUICK
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive_writing(value: float) -> None:
    assert float(format_cell(value)) == value


@QUICK
@given(column=st.sampled_from(list(RESULT_COLUMNS)), value=st.text(max_size=8))
def test_any_cell_loads_or_is_refused_or_named(folder: Path, column: str, value: str) -> None:
    path = folder / "results.csv"
    whole = path.read_bytes()
    try:
        quoted = '"' + value.replace('"', '""').replace("\n", " ") + '"'
        set_cell(folder, 2, column, quoted.replace(",", ";").encode("utf-8", "replace").decode())
        table = load(folder)
    except TableError as error:
        assert "results.csv" in str(error)  # noqa: PT017  (an error is one of two good answers)
    else:
        named = [note for note in table.notes if note.startswith("results.csv row 2: ")]
        assert len(table.points) + len(named) == 3
    finally:
        path.write_bytes(whole)


@QUICK
@given(
    rows=st.lists(
        st.lists(st.text(max_size=6), min_size=len(SAMPLE_COLUMNS), max_size=len(SAMPLE_COLUMNS)),
        max_size=4,
    )
)
def test_any_journal_line_is_read_or_named(folder: Path, rows: list[list[str]]) -> None:
    path = folder / "samples.csv"
    whole = path.read_bytes()
    try:
        text = "".join(",".join(json.dumps(c) for c in row) + "\n" for row in rows)
        path.write_bytes(whole + text.encode("utf-8", "replace"))
        table = load(folder)
        assert len(table.samples["p0"]) == 6
    finally:
        path.write_bytes(whole)
