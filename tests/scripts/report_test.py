# SPDX-License-Identifier: MIT
import re
from pathlib import Path

import pytest

from attnplot import figures
from attnplot.document import Grid, markdown
from attnplot.report import readme_block, report, update_readme, write_report
from attnplot.table import Table, TableError, load
from attnplot.tables import analyse, terminal
from synthetic import SQRT2, Run, Value, default_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return load(default_sweep().write(tmp_path_factory.mktemp("run")))


def row(text: str, name: str) -> list[str]:
    found = [x for x in text.split("\n") if x.startswith(f"| {name} |")]
    assert found, name
    return [c.strip() for c in found[0].strip("|").split("|")]


def test_the_result_table_of_a_known_run() -> None:
    run = Run()
    for name, factor in (("cpu.naive", 4), ("blas.three_step", 1)):
        for n in SQRT2:
            cells = {"mem_scratch_bytes": 4 * n * n, "mem_tensors_bytes": 1024 * n}
            run.point(name, n, factor * 1e-8 * n**2, dict(cells))
    for n in SQRT2:
        run.row("cuda.naive", n, status="unavailable", status_reason="no CUDA | toolkit")
    text = terminal(analyse(run.table()))
    assert row(text, "cpu.naive") == [
        "cpu.naive",
        "2.000 [1.988, 2.012]",
        "0.0 %",
        "2.00 2.00 2.00 2.00 2.00 2.00",
        "consistent with 2; 1.90 and 2.10 excluded; one process",
        "2 (4·n² B), 2 (4·n² B)",
        "2.68 s at n = 8192",
        "4.00× of 671 ms",
    ]
    assert row(text, "blas.three_step")[-1] == "baseline"
    assert "unavailable: no CUDA \\| toolkit" in text
    other = terminal(analyse(run.table(), baseline="cpu.naive"))
    assert row(other, "blas.three_step")[-1] == "0.25× of 2.68 s"


def test_the_terminal_says_everything_once(sweep: Table) -> None:
    text = terminal(analyse(sweep))
    titles = re.findall("^## (.*)$", text, re.M)
    assert titles == [
        "Attention: time and memory in n",
        "Recurrent layers: time in n",
        "Attention layers: time in n",
        "Attention against recurrence",
        "Prefill with shared KV heads",
        "Decode",
        "Rows without a time",
    ]
    assert "nan" not in text
    assert "None" not in text
    assert row(text, "cpu.rnn")[1].startswith("0.99")
    assert "| cpu.naive | layer prefill | cutoff | 8192 | a call is predicted" in text
    assert "local slopes only: 4 points at n >= 1024, an exponent needs 7" in text
    assert text.count("- Between n = 128 and") == 8


def test_decode_states_bytes_always_and_bandwidth_where_allowed(sweep: Table) -> None:
    text = terminal(analyse(sweep))
    lines = [
        x for x in text.split("\n") if re.match(r"\| blas\.\w+ \| M[HQ]A|\| blas\.\w+ \| GQA", x)
    ]
    assert len(lines) == 12
    assert all("not stated: below 4 × the last-level cache" in x for x in lines[:6])
    assert all(x.endswith("GB/s |") for x in lines[6:])
    assert lines[9].startswith("| blas.gqa | MHA (4) | 32 | 8192 | 555 µs | 537 MB | ")
    assert [x.split("|")[6].strip() for x in lines[:3]] == ["16.8 MB", "8.39 MB", "4.19 MB"]


def test_the_layer_sentence_shows_model_and_measurement(sweep: Table) -> None:
    text = terminal(analyse(sweep))
    (sentence,) = [x for x in text.split("\n") if x.startswith("- cpu.naive: t = ")]
    match = re.search(r"n² takes over at n = (\d+)", sentence)
    assert match is not None
    assert int(match[1]) == pytest.approx(3.2e-4 / (4.4 * 4.1e-8), rel=0.05)
    assert "measured 1.0" in sentence
    assert "by the model 1.1" in sentence


def test_report_stands_on_its_own(sweep: Table) -> None:
    results = analyse(sweep)
    written = write_report(results)
    path = sweep.folder / "report.md"
    assert path in written
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((figures/\w+\.png)\)", text):
        assert (sweep.folder / link).is_file()
    assert text.count("](figures/") == 7
    for said in (
        "219 of 240 points have a time.",
        "| machine: cpu model | Synthetic CPU |",
        "| machine: l2 | 1 MiB |",
        "| compiler: flags.blas | -O3 |",
        "| fma | f32 | 2 | 218.0 GFLOP/s |",
        "Warm decode at batch 1 measures the cache",
        "(16.8 MB at most, in a last-level cache of 32 MiB). GB/s are stated at batch 32 only",
        "Nothing on this page speaks of cuda.naive, cuda.tiled: unavailable: built without",
        "No accelerator was measured.",
        "a floor of 0.012 is added in quadrature",
    ):
        assert said in text, said
    assert "nan" not in text
    assert "None" not in text
    assert report(results, figures.KINDS) == text


def test_report_needs_no_field_of_run_json(tmp_path: Path) -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-8 * n**2)
    run.write(tmp_path)
    (tmp_path / "run.json").write_text('{"schema_version": 1, "machine": null, "roofs": [{}, 3]}')
    text = report(analyse(load(tmp_path)), ())
    assert "7 of 7 points have a time." in text
    assert "None" not in text


def test_report_confesses(tmp_path: Path) -> None:
    run = Run(rounds=7)
    run.curve("cpu.naive", lambda n: 1e-8 * n**2)
    run.rows[0]["noisy"] = True
    run.sample("p1", 5, 9, 1.0)
    run.lines.append(["r", "p0", "offence", 5, 9, None, None, None, None, "{}"])
    run.write(tmp_path)
    path = tmp_path / "run.json"
    path.write_text('{"schema_version": 1, "interrupted": true, "git_dirty": true}')
    with (tmp_path / "samples.csv").open("a") as out:
        out.write("r,p0,sam")
    text = report(analyse(load(tmp_path)), ())
    for said in (
        "was interrupted",
        "uncommitted changes",
        "1 of them are noisy",
        "1 samples taken beside a failing backend were left out",
        "torn",
    ):
        assert said in text, said


def test_five_processes_are_named_in_the_method() -> None:
    text = report(analyse(default_sweep(processes=5).table()), ())
    assert "Student's t over the means of the 5 processes" in text
    assert "floor" not in text.split("## Attention")[0]


def test_readme_is_replaced_between_its_markers_only(sweep: Table, tmp_path: Path) -> None:
    (sweep.folder / "figures").mkdir(exist_ok=True)
    (sweep.folder / "figures" / "time.png").touch()
    readme = tmp_path / "README.md"
    readme.write_text("# a\r\n<!-- attnplot:begin -->\nold\n<!-- attnplot:end -->\r\nz", newline="")
    update_readme(analyse(sweep), readme)
    once = readme.read_bytes().decode()
    assert once.startswith("# a\r\n<!-- attnplot:begin -->\n![")
    assert once.endswith("|\n<!-- attnplot:end -->\r\nz")
    assert "old" not in once
    match = re.search(r"\]\(([^)]*time\.png)\)", once)
    assert match is not None
    target = (readme.parent / match[1]).resolve()
    assert target == (sweep.folder / "figures" / "time.png").resolve()
    assert row(once, "cpu.naive")[-1] == "5.36× of 509 ms"
    update_readme(analyse(sweep), readme)
    assert readme.read_bytes().decode() == once
    assert "\\" not in readme_block(analyse(sweep), readme).split("\n")[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "marker '<!-- attnplot:begin -->' stands 0 times"),
        ("<!-- attnplot:begin -->", "marker '<!-- attnplot:end -->' stands 0 times"),
        ("<!-- attnplot:begin -->" * 2, "begin -->' stands 2 times"),
        ("<!-- attnplot:end --><!-- attnplot:begin -->", "stands before"),
    ],
)
def test_a_readme_without_markers_is_refused(
    sweep: Table, tmp_path: Path, text: str, said: str
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(TableError, match=said):
        update_readme(analyse(sweep), readme)
    assert readme.read_text() == text


def test_a_grid_of_mixed_threads_is_shown_whole() -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 4e-8 * n**2, (128, 256), heads=4)
    run.curve("blas.three_step", lambda n: 1e-8 * n**2, (128, 256), heads=4, threads=2)
    run.curve("cpu.naive", lambda n: 9e-8 * n**2, (128, 256), heads=4, batch=3)
    text = terminal(analyse(run.table()))
    assert row(text, "blas.three_step (2 threads)")[-1] == "baseline"
    assert row(text, "blas.three_step (2 threads)")[4].startswith("local slopes only: 2 threads")
    further = text.split("## Further curves")[1]
    assert row(further, "cpu.naive")[1:3] == [
        "core prefill",
        "4 heads of 64, batch 3, 1 thread, f32, MHA",
    ]


def test_markdown_cells_cannot_break_the_table() -> None:
    grid = Grid(["a", "b"], [["x|y\nz", ""]])
    assert markdown(grid) == "| a | b |\n| --- | --- |\n| x\\|y z | – |\n"


def test_cross_attention_has_a_row_for_each_n_q() -> None:
    run = Run()
    for n_q in (64, 512):
        for n in SQRT2:
            run.point("cpu.naive", n, 1e-9 * n_q * n, {"n_q": n_q, "heads": 4, "heads_kv": 4})
    run.point("cpu.naive", 512, 1e-9 * 512 * 512, {"heads": 4, "heads_kv": 4})
    row_of = {"n_q": 64, "heads": 4, "heads_kv": 4}
    run.row("cpu.naive", 16384, **row_of, status="cutoff", status_reason="too long")
    lines = terminal(analyse(run.table())).split("\n")
    start = lines.index("## Cross attention (n_q ≠ n_kv)")
    assert lines[start + 2] == "| backend | part | shape | n_q | local slopes in n_kv | time |"
    cells = [[c.strip() for c in x.strip("|").split("|")] for x in lines[start + 4 : start + 6]]
    shape = "4 heads of 64, batch 1, 1 thread, f32, MHA"
    assert cells[0] == [
        "cpu.naive",
        "core prefill",
        shape,
        "64",
        " ".join(["1.00"] * 6),
        "524 µs at n_kv = 8192",
    ]
    # The point with n_q = n_kv = 512 lies on the second curve.
    assert cells[1][3:] == ["512", " ".join(["1.00"] * 7), "4.19 ms at n_kv = 8192"]
    assert "| cpu.naive | core prefill, n_q = 64 | cutoff | 16384 | too long |" in lines


def test_a_median_without_an_interval_says_so() -> None:
    run = Run()
    run.curve("blas.three_step", lambda n: 1e-8 * n**2)
    for backend, count in (("cpu.naive", 1), ("cpu.online", 3)):
        for n in SQRT2:
            run.point(backend, n, 4e-8 * n**2, rounds=range(count))
    decode: dict[str, Value] = {"regime": "decode", "n_q": 1}
    run.point("blas.gqa", 4096, 1e-3, decode, rounds=range(1))
    text = terminal(analyse(run.table()))
    assert row(text, "cpu.naive")[-2:] == [
        "2.68 s at n = 8192 (1 sample, no interval)",
        "4.00× of 671 ms (no interval)",
    ]
    assert "2.68 s at n = 8192 (3 samples, no interval)" in text
    assert row(text, "blas.three_step")[-2:] == ["671 ms at n = 8192", "baseline"]
    assert "| 4096 | 1.00 ms (1 sample, no interval) |" in text
