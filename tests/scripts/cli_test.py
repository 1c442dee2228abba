# SPDX-License-Identifier: MIT
import subprocess
import sys
from pathlib import Path

import pytest

from attnplot.cli import main
from synthetic import COMPLEXITY, Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = Run()
    run.curve("cpu.naive", lambda n: 4e-8 * n**2, COMPLEXITY)
    run.curve("blas.three_step", lambda n: 1e-8 * n**2, COMPLEXITY)
    return run.write(tmp_path / "run")


def fails(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        found = main(arguments)
    except SystemExit as error:
        found = int(str(error.code))
    said = capsys.readouterr().err
    assert found == code, said
    assert said.startswith("attnplot: ")
    assert said.count("\n") == 1
    return said


def test_fit_writes_two_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(folder)]) == 0
    out = capsys.readouterr()
    assert out.out.split() == [str(folder / "fits.csv"), str(folder / "crossovers.csv")]
    assert out.err == ""


def test_fit_takes_min_n(folder: Path) -> None:
    main(["fit", str(folder), "--min-n", "128"])
    assert ",128,8192,10," in (folder / "fits.csv").read_text()


def test_plot_draws_all_or_some(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(folder), "--kind", "time"]) == 0
    names = sorted(p.name for p in (folder / "figures").iterdir())
    assert names == ["time.png", "time.svg"]
    assert capsys.readouterr().err == ""
    assert main(["plot", str(folder)]) == 0
    names = sorted(p.name for p in (folder / "figures").iterdir())
    assert names == ["ratio.png", "ratio.svg", "time.png", "time.svg"]
    said = capsys.readouterr()
    assert "note: no figure 'decode': no measured point of decode" in said.err
    assert "ratio.svg" in said.out


def test_table_prints_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.iterdir())
    assert main(["table", str(folder), "--baseline", "cpu.naive"]) == 0
    assert "time ÷ cpu.naive's" in capsys.readouterr().out
    assert sorted(folder.iterdir()) == before


def test_report_writes_everything(folder: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("<!-- attnplot:begin --><!-- attnplot:end -->")
    assert main(["report", str(folder), "--format", "md", "--readme", str(readme)]) == 0
    for name in ("fits.csv", "crossovers.csv", "report.md", "figures/ratio.svg"):
        assert (folder / name).is_file()
    assert "run/figures/time.png" in readme.read_text()


def test_report_in_both_formats(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--format", "html,md"]) == 0
    written = capsys.readouterr().out.split()
    for name in ("report.md", "report.html", "figures/time.png"):
        assert str(folder / name) in written
        assert (folder / name).is_file()


def test_report_refuses_before_it_writes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fails(["report", str(folder), "--readme", str(tmp_path / "no.md")], 6, capsys)
    assert "no.md: cannot be read" in said
    assert not (folder / "fits.csv").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["check", "DIR"],
        ["compare", "DIR", "DIR"],
        ["claims", "DIR"],
        ["fit"],
        ["fit", "DIR", "--min-n", "many"],
        ["fit", "DIR", "--min-n", "0"],
        ["fit", "DIR", "--min-n", "²"],
        ["fit", "DIR", "--baseline", "cpu.naive"],
        ["plot", "DIR", "--kind", "heatmap"],
        ["plot", "DIR", "--min-n", "128"],
        ["report", "DIR", "--format", "tex"],
        ["report", "DIR", "--format", "md,pdf"],
        ["report", "DIR", "--format", ""],
        ["table", "DIR", "--base", "cpu.naive"],
    ],
)
def test_usage_errors_end_with_2(
    folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = fails([str(folder) if a == "DIR" else a for a in arguments], 2, capsys)
    assert "--help" in said


@pytest.mark.parametrize("command", ["plot", "table", "report"])
def test_an_unknown_baseline_ends_with_2(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fails([command, str(folder), "--baseline", "cuda.naive"], 2, capsys)
    assert "cuda.naive" in said
    assert "blas.three_step" in said


@pytest.mark.parametrize("command", ["fit", "plot", "table", "report"])
def test_a_foreign_or_missing_file_ends_with_6(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "results.csv"
    text = path.read_text()
    path.write_text(text.replace("heads_kv", "kv_heads", 1))
    assert "column 'heads_kv' is missing" in fails([command, str(folder)], 6, capsys)
    path.unlink()
    assert "results.csv: cannot be read" in fails([command, str(folder)], 6, capsys)
    assert "no such folder" in fails([command, str(folder / "no")], 6, capsys)


@pytest.mark.parametrize("command", ["fit", "plot", "table", "report"])
def test_a_forged_sample_ends_with_6(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "samples.csv"
    lines = path.read_text().split("\n")
    mine = [i for i, line in enumerate(lines) if line.startswith("r,p0,sample")]
    for i in mine:
        cells = lines[i].split(",")
        cells[6] = repr(float(cells[6]) * 1.00001)
        lines[i] = ",".join(cells)
    path.write_text("\n".join(lines))
    assert "row 2, point 'p0': time_median_s" in fails([command, str(folder)], 6, capsys)


@pytest.mark.parametrize("command", ["fit", "plot", "table", "report"])
def test_nothing_measured_ends_with_4(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run()
    run.row("cuda.naive", 128, status="unavailable", status_reason="no toolkit")
    said = fails([command, str(run.write(tmp_path))], 4, capsys)
    assert "nothing was measured (unavailable)" in said
    assert "no rows" in fails([command, str(Run().write(tmp_path / "none"))], 4, capsys)


def test_nothing_to_fit_ends_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run()
    run.point("cpu.naive", 128, 1e-3, {"n_q": 64})
    folder = run.write(tmp_path)
    assert "nothing to fit" in fails(["fit", str(folder)], 4, capsys)
    assert not (folder / "fits.csv").exists()
    assert main(["table", str(folder)]) == 0
    assert "| 64 | – | 1.00 ms at n_kv = 128 |" in capsys.readouterr().out


def test_a_kind_without_points_ends_with_4_when_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "decode" in fails(["plot", str(folder), "--kind", "decode"], 4, capsys)


def test_what_is_left_out_is_said_on_stderr(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "samples.csv").open("a") as out:
        out.write("r,p0,sam")
    assert main(["table", str(folder)]) == 0
    said = capsys.readouterr()
    assert "attnplot: note: samples.csv row" in said.err
    assert "torn" in said.err
    assert "torn" not in said.out


@pytest.mark.parametrize("arguments", [["--help"], ["report", "--help"], ["plot", "--help"]])
def test_help_teaches_and_hides_what_is_not_there(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "DIR" in out or "exit codes" in out
    for hidden in ("claims", "compare", "tex"):
        assert hidden not in out.replace("text", "")


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "attnplot", "table", str(tmp_path / "no")],
        cwd=root / "scripts",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 6
    assert "no such folder" in done.stderr
