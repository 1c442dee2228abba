# SPDX-License-Identifier: MIT
"""The promises of attnbench's command line: exit codes, sentences, files."""

import csv
import io
import json
import os
import random
import re
import shlex
import statistics
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

from attnplot.table import RESULT_COLUMNS, STATUSES, load
from binary import ROOT, attnbench, binary, environment, german_locale, planned, refused, rows

SMALL = ["--only", "cpu.naive", "--n", "32", "--heads", "1", "--max-samples", "5", "--quiet"]
GRID = ["--only", "cpu.naive,cpu.online,blas.three_step,blas.gqa,cuda.*", "--n", "16,96"]
GRID += ["--heads", "2", "--heads-kv", "2,1", "--causal", "both", "--max-samples", "8"]
GRID += ["--tag", "who=me", "--tag", 'why="a, b"', "--quiet"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small grid, measured once."""
    cwd = tmp_path_factory.mktemp("measured")
    attnbench(cwd, "run", *GRID, "--out", "run", "--benchmark_out=google.json")
    return cwd / "run"


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    """What `list --json` says."""
    answer: dict[str, list[dict[str, object]]] = json.loads(
        attnbench(tmp_path_factory.mktemp("list"), "list", "--json").out
    )
    return answer


# ---- what is refused -----------------------------------------------------------------------------

# (arguments, what the sentence must hold)
COMMANDS: list[tuple[list[str], str]] = [
    ([], "list, run, compare"),
    (["runn"], "runn"),
    (["apply"], "backend"),
    (["apply", "cpu.naive"], "--q"),
    (["doctor"], "doctor"),
    (["selftest", "--without", "luck"], "luck"),
    (["calc"], "calc"),
    (["conform", "cpu.naive"], "conform"),
    (["new-backend", "cpu.mine"], "new-backend"),
    (["list", "nothing"], "nothing"),
    (["list", "--nothing"], "--nothing"),
    (["run", "extra"], "extra"),
    (["run", "--nothing"], "--nothing"),
    (["run", "--budget", "5m"], "--budget"),
    (["run", "--budget=5m"], "--budget"),
    (["compare"], "A"),
    (["compare", "cpu.naive"], "B"),
    (["compare", "cpu.naive", "cpu.naive"], "cpu.naive"),
    (["compare", "cpu.naiv?", "cpu.naive", "--n", "16"], "cpu.naiv?"),
    (["compare", "cpu.naive", "cpu.online", "cpu.rnn"], "cpu.rnn"),
    (["compare", "cpu.naive", "cpu.online", "--only", "cpu.rnn"], "--only"),
    (["compare", "cpu.naive", "cpu.online", "--threshold", "much"], "--threshold"),
    (["compare", "cpu.naive", "cpu.online", "--threshold", "0"], "--threshold"),
    (["compare", "cpu.naive", "cpu.online", "--fail-on", "faster"], "--fail-on"),
]

# (arguments of run, what the sentence must hold)
VALUES: list[tuple[list[str], str]] = [
    (["--only", "cpu.nave"], "cpu.naive"),
    (["--only", "blas.threestep"], "blas.three_step"),
    (["--only", "CPU.LSTM"], "cpu.lstm"),
    (["--only", "cuda.tile"], "cuda.tiled"),
    (["--only", ""], "--only"),
    (["--only", "gpu.*"], "gpu.*"),
    (["--skip", "cpu.onlin"], "cpu.online"),
    (["--skip", "*"], "--skip"),
    (["--only", "cpu.*", "--skip", "cpu.*"], "--skip"),
    (["--only", "cpu.rnn", "--preset", "nothing"], "nothing"),
    (["--preset", "quick", "--n", "128"], "--n"),
    (["--causal", "maybe"], "--causal"),
    (["--scope", "cores"], "core"),
    (["--regime", "training"], "prefill"),
    (["--dtype", "f64"], "f32"),
    (["--scale", "nan"], "--scale"),
    (["--scale", "inf"], "--scale"),
    (["--scale", "1e39"], "--scale"),
    (["--scale", "0,125"], "--scale"),
    (["--scale", "12%"], "--scale"),
    (["--output-projection", "maybe", "--scope", "layer"], "--output-projection"),
    (["--output-projection", "maybe"], "--output-projection"),
    (["--heads", "6", "--heads-kv", "4"], "--heads-kv"),
    (["--heads", "2", "--heads-kv", "4"], "--heads-kv"),
    (["--threads", "some"], "--threads"),
    (["--max-ci", "0"], "--max-ci"),
    (["--max-ci", "-2%"], "--max-ci"),
    (["--max-ci", "2%%"], "--max-ci"),
    (["--max-ci", "%"], "--max-ci"),
    (["--max-ci", "2,5%"], "--max-ci"),
    (["--max-ci", "nan"], "--max-ci"),
    (["--mem-limit", "0"], "--mem-limit"),
    (["--mem-limit", "101%"], "--mem-limit"),
    (["--mem-limit", "8T"], "--mem-limit"),
    (["--mem-limit", "1e300"], "--mem-limit"),
    (["--mem-limit", "much"], "--mem-limit"),
    (["--max-samples", "2"], "--max-samples"),
    (["--min-samples", "31"], "--max-samples"),
    (["--order", "sorted"], "--order"),
    (["--cache", "tepid"], "--cache"),
    (["--input-dist", "cauchy"], "--input-dist"),
    (["--tag", "alone"], "--tag"),
    (["--tag", "a=b;c=d"], "--tag"),
    (["--benchmark_filter=("], "--benchmark_filter"),
    (["--benchmark_filter=no_such_point"], "no_such_point"),
    (["--resume"], "--out"),
    (["--resume", "--out", "nowhere"], "nowhere"),
    (["--n"], "--n"),
]

# What no option takes: nothing, letters and digits outside ASCII, what a terminal obeys, no text.
ODD = ["", "größe", "１２", "1\x1b[31m2", "1\n2", "\udcff", "nan", "inf", "-inf", "1e400"]
NUMBERS = [
    "-1",
    "+1",
    "1.5",
    "1e3",
    "0x10",
    " 8",
    "8 ",
    "1k5",
    "5%",
    "many",
    "99999999999999999999",
]
NUMBERS += ["9223372036854775807", "9223372036854775808", "1, 2", "1,,2", ",", "1_000", *ODD]
RANGES = [
    "8:",
    ":8",
    "8:2",
    "2:8:x3",
    "2:8:x1",
    "2:8:x0.5",
    "2:8:",
    "2:4:8:16",
    "0:8",
    "2147483648",
]
RANGES += ["2097152k", "9223372036854775807:9223372036854775808", "1:9223372036854775807", *NUMBERS]
POSITIVE_RANGES = ["0", *RANGES]
COUNTS = ["0", "7,8", "1:2", "1000001", "977k", *NUMBERS]
NAMES = ["cpu.nave", "no*thing", "cpu.naive,", "a,,b", ",", *ODD]
WORDS = ["0", "1e3", "none", "yes", "TRUE", "core,layer", "true ", *ODD]
SHARES = ["0", "-2%", "2%%", "%", "2,5%", "200%", "1", "2", "5s", "much", "1e-400%", *ODD]
TIMES = ["0", "0s", "-1", "-1s", "5x", "5 s", "soon", "5%", "1e999", "2m30s", "1e9", *ODD]
SIZES = ["0", "-1", "101%", "%", "8T", "8 G", "8GB", "1e300", "much", "5s", *ODD]
SCALES = ["1e39", "-1e39", "1e29", "0,125", "12%", "1:2", " 1", "0x1p3", "much", *ODD]
TAGS = ["alone", "=v", "+a=b", "-a=b", "@a=b", "a=b;c=d", "a=größe", "a=\n", "a=\udcff", *ODD]

# option of run -> (values that it takes, values that it refuses)
OPTIONS: dict[str, tuple[list[str], list[str]]] = {
    "--only": (["cpu.naive", "cpu.*,blas.gqa", "cpu.[no]*"], NAMES),
    "--skip": (["cpu.naive"], ["*", *NAMES]),
    "--preset": (["quick", "lesson,llama3-8b"], NAMES),
    "--n": (["1", "1k", "16:64:xsqrt2", "3,1:4,3"], POSITIVE_RANGES),
    "--n-q": (["0", "3"], ["3,5", *RANGES]),
    "--n-kv": (["0", "3"], ["3,5", *RANGES]),
    "--batch": (["0", "1,2"], RANGES),
    "--heads": (["3"], POSITIVE_RANGES),
    "--heads-kv": (["4,2,1"], ["3", "8", *POSITIVE_RANGES]),
    "--head-dim": (["1", "257"], POSITIVE_RANGES),
    "--head-dim-v": (["1"], POSITIVE_RANGES),
    "--d-model": ([], ["64", *POSITIVE_RANGES]),  # with --scope layer alone
    "--output-projection": ([], ["true", *WORDS]),
    "--dtype": (["f32", "f16", "f32,bf16"], ["f64", "f32,", *WORDS]),
    "--threads": (["1", "1,2", "all"], ["ALL", "all,1", *POSITIVE_RANGES]),
    "--causal": (["both"], WORDS),
    "--scale": (["0", "-2.5", "1e-3", "1e28"], SCALES),
    "--scope": (["layer"], WORDS),
    "--regime": (["decode"], WORDS),
    "--min-samples": (["1", "010"], ["31", *COUNTS]),
    "--max-samples": (["1k"], ["2", *COUNTS]),
    "--max-ci": (["1%", "100%", "0.02", ".5", "1e-3"], SHARES),
    "--timeout": (["5", "5s", "200ms", "2m", "1e-3"], TIMES),
    "--cutoff-time": (["5"], TIMES),
    "--mem-limit": (["1", "8G", "1.5M", "100%", "1e-9%"], SIZES),
    "--rounds": (["12"], COUNTS),
    "--processes": (["2"], ["1001", *COUNTS]),
    "--order": (["block"], WORDS),
    "--cache": (["cold"], WORDS),
    "--input-dist": (["zeros"], WORDS),
    "--seed": (
        ["0", "18446744073709551615"],
        ["-1", "1.5", "1e3", "5%", "18446744073709551616", *ODD],
    ),
    "--out": (["new", "größe/a b", "x'y\n\"z"], [""]),
    "--tag": (["a=", "a=b=c"], TAGS),
    "--benchmark_filter": (["naive", "-naive"], ["(", "no_such_point", "-.*", ""]),
    "--benchmark_list_tests": (["true", "false"], ["yes", "1", ""]),
    "--benchmark_format": (["json"], ["csv", "console", "JSON", ""]),
    "--benchmark_out": (["file"], [""]),
}
COMPARE_OPTIONS: dict[str, tuple[list[str], list[str]]] = {
    "--threshold": ([], SHARES),
    "--fail-on": ([], ["faster", "SLOWER", *ODD]),
}
FLAGS = ["--resume", "--quiet", "--dry-run", "--help"]
MAY_REPEAT = ["--only", "--skip", "--preset", "--tag"]


def spaced(argument: list[str] | str) -> str:
    """The id of a parameter: a command line as it is typed; nothing for what is looked for."""
    return " ".join(argument) if isinstance(argument, list) else ""


FOREIGN = [
    ("--benchmark_repetitions=3", "--rounds"),
    ("--benchmark_min_time=1", "--min-samples"),
    ("--benchmark_enable_random_interleaving=true", "--order"),
    ("--benchmark_format=console", "results.csv"),
    ("--benchmark_format=csv", "results.csv"),
    ("--benchmark_out_format=csv", "results.csv"),
    ("--benchmark_out=", "--benchmark_out=FILE"),
    ("--benchmark_color=false", "--help"),
    ("--benchmark_counters_tabular=true", "--help"),
    ("--benchmark_report_aggregates_only", "--help"),
    ("--benchmark_perf_counters=CYCLES", "--help"),
    ("--benchmark_nothing", "--help"),
]


@pytest.mark.parametrize(("arguments", "word"), COMMANDS, ids=spaced)
def test_a_wrong_command_is_refused(tmp_path: Path, arguments: Sequence[str], word: str) -> None:
    assert word in refused(tmp_path, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("arguments", "word"), VALUES, ids=spaced)
def test_a_wrong_value_is_refused(tmp_path: Path, arguments: Sequence[str], word: str) -> None:
    # --dry-run so that what should be refused and is not costs no time.
    assert word in refused(tmp_path, "run", "--dry-run", *arguments)
    assert not list(tmp_path.iterdir())


def options_in_help(cwd: Path, command: str) -> set[str]:
    found = set(re.findall(r"--[a-z][a-z_-]*", attnbench(cwd, command, "--help").out))
    return found - {"--benchmark_"}


def test_every_option_has_its_wrong_values(tmp_path: Path) -> None:
    of_run = options_in_help(tmp_path, "run")
    assert of_run == {*OPTIONS, *FLAGS}, "give the new option values that it takes and refuses"
    of_compare = options_in_help(tmp_path, "compare")
    shared = {o for o in of_run if not o.startswith("--benchmark_")}
    assert of_compare == shared | set(COMPARE_OPTIONS)
    assert options_in_help(tmp_path, "list") == {"--help", "--json"}


def explained(said: str, option: str, value: str) -> None:
    """The sentence names the option and what would work, and quotes the value on one line."""
    assert option in said, said
    assert re.search(r"; |, ", said), said
    assert said.rstrip("\n").isprintable(), f"{value!r} reaches the terminal: {said!r}"


@pytest.mark.parametrize("option", OPTIONS)
def test_every_wrong_value_of_an_option_is_refused(tmp_path: Path, option: str) -> None:
    # A fitted grid: --rounds and --processes are held against each other whatever the points.
    command = (
        ["run", "--dry-run", "--only", "cpu.*"] if option != "--only" else ["run", "--dry-run"]
    )
    if not {"--n", "--preset", "--batch"} & {option}:
        command += ["--n", "16"]
    taken, wrong = OPTIONS[option]
    for value in taken:
        attnbench(tmp_path, *command, f"{option}={value}")
    for value in wrong:
        explained(refused(tmp_path, *command, f"{option}={value}"), option, value)
        if not option.startswith("--benchmark_"):
            explained(refused(tmp_path, *command, option, value), option, value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", COMPARE_OPTIONS)
def test_every_wrong_value_of_compare_is_refused(tmp_path: Path, option: str) -> None:
    for value in COMPARE_OPTIONS[option][1]:
        said = refused(tmp_path, "compare", "cpu.naive", "cpu.online", f"{option}={value}")
        explained(said, option, value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [*OPTIONS, *FLAGS])
def test_options_without_a_value_doubled_or_misspelt(tmp_path: Path, option: str) -> None:
    run = ["run", "--dry-run"]
    if option in FLAGS:
        assert f"{option} takes no value" in refused(tmp_path, *run, f"{option}=maybe")
    elif option.startswith("--benchmark_"):
        good = f"{option}={OPTIONS[option][0][0]}"
        assert f"{option} is given twice" in refused(tmp_path, *run, good, good)
    else:
        assert f"{option}: a value is missing" in refused(tmp_path, *run, option)
        assert f"{option}: a value is missing" in refused(tmp_path, *run, option, "--quiet")
        if option not in MAY_REPEAT:
            twice = refused(tmp_path, *run, option, "1", f"{option}=1")
            assert f"{option} is given twice" in twice
    if not option.startswith("--benchmark_"):
        assert f"the nearest is {option}," in refused(tmp_path, *run, f"{option}x", "1")
        assert f"the nearest is {option}," in refused(tmp_path, *run, f"{option}x=1")
    assert not list(tmp_path.iterdir())


CONFLICTS = [
    (["--n", "8,16", "--n-q", "4", "--n-kv", "4"], "--n:"),
    (["--d-model", "64"], "--scope layer"),
    (["--output-projection", "false", "--scope", "core"], "--scope layer"),
    (["--tag", "a=1", "--tag", "a=2"], "--tag"),
    (["--rounds", "7", "--processes", "2"], "--rounds"),
    (["--preset", "default", "--heads", "2"], "--heads"),
    (["--resume", "--out", "nowhere", "--n", "16"], "nowhere"),
    (["--batch", "1:2147483647:xsqrt2", "--heads", "1:2147483647:xsqrt2", "--n", "1"], "--batch"),
    (
        ["--batch", "1:65536:xsqrt2", "--heads", "1:1024", "--n", "1:1024", "--head-dim", "1:256"],
        "100000 points",
    ),
    (["--only", "cpu.naive", "blas.gqa"], "blas.gqa"),
    (["--n", "16", "32"], "32"),
    (["--", "extra"], "extra"),
]


@pytest.mark.parametrize(("arguments", "word"), CONFLICTS, ids=spaced)
def test_a_contradiction_is_refused(tmp_path: Path, arguments: list[str], word: str) -> None:
    assert word in refused(tmp_path, "run", "--dry-run", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_glob_without_a_match_names_the_backends(tmp_path: Path) -> None:
    said = refused(tmp_path, "run", "--dry-run", "--only", "gpu.*")
    assert '"gpu.*"' in said
    for name in ("cpu.naive", "blas.three_step", "cuda.tiled"):
        assert name in said


def test_a_glob_of_many_stars_takes_no_time(tmp_path: Path) -> None:
    ended = attnbench(tmp_path, "run", "--dry-run", "--only", "*a" * 40 + "b", code=2, timeout=20)
    assert "--only" in ended.err


def test_the_nearest_command_is_named(tmp_path: Path) -> None:
    for typed, meant in [("RUN", "run"), ("rum", "run"), ("lists", "list"), ("compair", "compare")]:
        assert f"the nearest is {meant}," in refused(tmp_path, typed)
        assert f"the nearest is {meant}," in refused(tmp_path, "help", typed)


@pytest.mark.parametrize("command", ["run", "compare", "list"])
def test_every_way_to_ask_for_help(tmp_path: Path, command: str) -> None:
    wanted = attnbench(tmp_path, command, "--help").out
    assert f"attnbench {command}" in wanted
    for words in ([command, "-h"], ["help", command], ["--help", command], ["-h", command]):
        assert attnbench(tmp_path, *words).out == wanted
    help_and_more = attnbench(
        tmp_path, command, "--help", "--json" if command == "list" else "--quiet"
    )
    assert help_and_more.out == wanted
    general = attnbench(tmp_path, "--help").out
    assert general == attnbench(tmp_path, "help").out == attnbench(tmp_path, "-h").out
    assert f"attnbench {command}" in general


def test_options_of_a_list_do_not_swallow_the_backends(tmp_path: Path) -> None:
    pair = ["cpu.naive", "cpu.naive"]
    assert "A and B are both" in refused(tmp_path, "compare", "--tag", "a=b", *pair)


@pytest.mark.parametrize(("flag", "word"), FOREIGN)
def test_flags_of_google_benchmark_name_ours(tmp_path: Path, flag: str, word: str) -> None:
    said = refused(tmp_path, "run", *SMALL, flag)
    assert flag in said
    assert word in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", [("cpu.onlin", "cpu.naive"), ("cpu.naive", "cpu.onlin")])
def test_compare_names_the_nearest_backend(tmp_path: Path, names: tuple[str, str]) -> None:
    said = refused(tmp_path, "compare", *names)
    assert "cpu.online" in said
    assert "--only" not in said, "compare has no such option"
    assert not list(tmp_path.iterdir())


def test_a_tag_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    assert "--tag" in refused(tmp_path, "run", *SMALL, "--tag", "k=\udcff")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["x" * 300, "file", "file/run", "loop/run"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    assert out in refused(tmp_path, "run", *SMALL, "--out", out, code=6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "loop"]


def test_a_full_standard_output_is_said(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(binary()), "list", "--json"],
            cwd=tmp_path,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            check=False,
        )
    assert done.returncode == 6, done.stderr
    assert done.stderr.count("\n") == 1


# ---- list ----------------------------------------------------------------------------------------


def test_list_names_every_file_of_impls(
    tmp_path: Path, listed: dict[str, list[dict[str, object]]]
) -> None:
    files = [*ROOT.glob("impls/*/*.cpp"), *ROOT.glob("impls/*/*.cu")]
    names = sorted(f"{f.parent.name}.{f.stem}" for f in files)
    assert [b["name"] for b in listed["backends"]] == names
    text = attnbench(tmp_path, "list").out.splitlines()[1:]
    assert [line.split()[0] for line in text] == names
    assert text == attnbench(tmp_path, "list", "backends").out.splitlines()[1:]
    for backend, line in zip(listed["backends"], text, strict=True):
        assert backend["runs"] is (backend["reason"] == "")
        assert backend["built"] or not backend["runs"]
        if backend["runs"]:
            assert line.split()[1] == backend["family"]
            assert line.endswith("runs")
        else:
            assert str(backend["reason"]) in line
        if backend["built"]:
            wanted = {"name", "built", "runs", "reason", "peer", "family", "device"}
            assert set(backend) == wanted | {"threaded", "exploits_sharing", "layer_default"}
    assert {b["name"] for b in listed["backends"] if b["runs"]} >= {"cpu.naive", "cpu.lstm"}


def test_list_of_presets_columns_and_statuses(
    tmp_path: Path, listed: dict[str, list[dict[str, object]]]
) -> None:
    for what, column in (("presets", 0), ("columns", 1), ("statuses", 0)):
        lines = attnbench(tmp_path, "list", what).out.splitlines()
        assert [line.split()[column] for line in lines] == [x["name"] for x in listed[what]]
    assert {x["name"] for x in listed["statuses"]} == STATUSES
    assert [x["name"] for x in listed["columns"]] == list(RESULT_COLUMNS)
    assert {"default", "quick", "lesson"} <= {str(x["name"]) for x in listed["presets"]}
    assert not list(tmp_path.iterdir())


def test_every_preset_has_points(
    tmp_path: Path, listed: dict[str, list[dict[str, object]]]
) -> None:
    for preset in listed["presets"]:
        assert planned(tmp_path, "--preset", str(preset["name"]))


def test_help_and_version(tmp_path: Path) -> None:
    for words in (["--help"], ["run", "--help"], ["compare", "--help"], ["list", "--help"]):
        said = attnbench(tmp_path, *words).out
        assert "attnbench" in said
        assert "--budget" not in said
    assert attnbench(tmp_path, "--version").out.startswith("attnbench ")
    assert not list(tmp_path.iterdir())


# ---- what a run writes ---------------------------------------------------------------------------


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    points = planned(tmp_path, *GRID)
    listed = json.loads(attnbench(tmp_path, "list", "--json").out)["backends"]
    # Each problem once; on a device, where one is known of, once warm and once cold.
    modes = {b["name"]: 2 if b.get("device") == "cuda" else 1 for b in listed}
    chosen = [name for name in modes if any(fnmatch(name, x) for x in GRID[1].split(","))]
    assert len(points) == 8 * sum(modes[name] for name in chosen)
    assert len(chosen) >= 6
    assert not list(tmp_path.iterdir())


def test_a_run_has_every_point_in_the_listed_columns(tmp_path: Path, measured: Path) -> None:
    lines = attnbench(tmp_path, "list", "columns").out.splitlines()
    header = (measured / "results.csv").read_text().split("\n", 1)[0]
    assert header.split(",") == [line.split()[1] for line in lines]
    table = rows(measured)
    assert [r["point_id"] for r in table] == list(planned(tmp_path, *GRID))
    loaded = load(measured)
    assert not loaded.notes
    assert [p.point_id for p in loaded.points] == [r["point_id"] for r in table]
    for row in table:
        wanted = {"unavailable"} if row["backend"].startswith("cuda") else {"ok"}
        assert row["status"] in wanted | {"ok"}, row["status_reason"]
        assert (row["status"] == "ok") is (row["status_reason"] == "")
        assert row["tags"] == 'who=me;why="a, b"'
        assert row["sharing"] == ("mha" if row["heads_kv"] == "2" else "mqa")


def test_the_median_is_that_of_the_samples(measured: Path) -> None:
    text = (measured / "samples.csv").read_text()
    events = list(csv.DictReader(io.StringIO(text), strict=True))
    bad = {(e["process"], e["round"]) for e in events if e["event"] == "offence"}
    for row in rows(measured):
        times = [
            float(e["time_s"])
            for e in events
            if e["event"] == "sample"
            and e["point_id"] == row["point_id"]
            and (e["process"], e["round"]) not in bad
        ]
        if row["status"] != "ok":
            assert not times
            assert row["time_median_s"] == ""
            continue
        assert float(row["time_median_s"]) == pytest.approx(statistics.median(times), rel=1e-12)
        assert int(row["samples"]) == len(times)
        assert float(row["time_min_s"]) == min(times)


def test_no_file_names_the_folder_or_the_host(measured: Path) -> None:
    for path in measured.iterdir():
        text = path.read_text()
        for private in (str(measured.parent), str(ROOT), str(Path.home()) + "/", '"hostname"'):
            assert private not in text, path.name


def test_without_out_the_folder_is_named_by_the_time(tmp_path: Path) -> None:
    attnbench(tmp_path, "run", *SMALL)
    (folder,) = (tmp_path / "out").iterdir()
    assert re.fullmatch(r"\d{8}T\d{6}Z", folder.name)
    names = {"results.csv", "samples.csv", "phases.csv", "run.json"}
    assert {p.name for p in folder.iterdir()} == names


def test_repro_cmd_gives_the_same_point(tmp_path: Path, measured: Path) -> None:
    row = next(r for r in rows(measured) if r["backend"] == "blas.gqa" and r["causal"] == "true")
    words = shlex.split(row["repro_cmd"])
    assert words[0] == "attnbench"
    attnbench(tmp_path, *words[1:], "--out", "again")
    (again,) = rows(tmp_path / "again")
    assert again["point_id"] == row["point_id"]
    assert again["status"] == "ok"


CURVE = ["--only", "cpu.naive", "--n", "1,2,3,4,5,6,7", "--heads", "1", "--quiet"]


@pytest.mark.parametrize(
    "given",
    [
        [*CURVE, "--rounds", "8", "--processes", "2"],
        [*CURVE, "--rounds", "40"],
        [*SMALL[:6], "--min-samples", "7", "--max-samples", "7", "--max-ci", "2.5%"],
    ],
    ids=spaced,
)
def test_repro_cmd_gives_as_many_samples(tmp_path: Path, given: list[str]) -> None:
    attnbench(tmp_path, "run", *given, "--out", "run", code=None)
    row = rows(tmp_path / "run")[-1]
    words = shlex.split(row["repro_cmd"])
    attnbench(tmp_path, *words[1:], "--quiet", "--out", "again", code=None)
    (again,) = rows(tmp_path / "again")
    for column in ("point_id", "samples", "rounds", "processes"):
        assert again[column] == row[column], column
    if "--max-ci" in given:  # which decides what is noisy
        assert words[words.index("--max-ci") + 1] == "2.5%"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "*"],
        ["--only", "*", "--preset", "lesson,llama3-8b"],
        ["--only", "*", "--scope", "layer", "--causal", "both", "--n-kv", "48"],
        ["--only", "*", "--cache", "cold", "--input-dist", "zeros", "--seed", "9", "--n", "7"],
        ["--only", "cpu.*", "--n", "16", "--scale", "0", "--head-dim", "3", "--head-dim-v", "5"],
        ["--only", "cpu.*", "--n", "16", "--n-kv", "0"],
        ["--only", "cpu.*", "--n", "16", "--n-q", "0"],
        ["--only", "cpu.*", "--n", "16", "--batch", "0", "--scope", "layer"],
        ["--only", "cpu.naive", "--n", "16", "--regime", "decode", "--n-q", "3", "--scale", "-2.5"],
    ],
    ids=spaced,
)
def test_every_repro_cmd_plans_its_point(tmp_path: Path, arguments: list[str]) -> None:
    # Under a limit of one byte every point has its row, and none is measured.
    attnbench(tmp_path, "run", *arguments, "--mem-limit", "1", "--quiet", "--out", "run", code=4)
    table = rows(tmp_path / "run")
    assert {r["status"] for r in table} <= {"oom_predicted", "unsupported", "unavailable"}
    assert all(r["status_reason"] for r in table)
    for row in random.Random(1).sample(table, min(40, len(table))):
        words = shlex.split(row["repro_cmd"])[2:]
        assert list(planned(tmp_path, *words)) == [row["point_id"]], row["repro_cmd"]


def test_the_seed_is_part_of_a_point(tmp_path: Path) -> None:
    points = planned(tmp_path, *SMALL)
    assert planned(tmp_path, *SMALL, "--seed", "1") == points
    other = planned(tmp_path, *SMALL, "--seed", "2")
    assert list(other.values()) == list(points.values())
    assert not set(other) & set(points)


def test_no_value_of_an_axis_is_dropped(tmp_path: Path) -> None:
    for axis in ("--n-q", "--n-kv"):
        refused = attnbench(tmp_path, "run", *SMALL, axis, "3,5", "--dry-run", code=2)
        assert axis in refused.err


def test_rounds_that_were_asked_for_hold(tmp_path: Path) -> None:
    curve = ["--only", "cpu.naive", "--n", "1,2,3,4,5,6,7", "--heads", "1", "--quiet"]
    for rounds in ("8", "4"):
        wanted = ["--rounds", rounds, "--processes", "4"]
        attnbench(tmp_path, "run", *curve, *wanted, "--out", rounds)
        assert {r["rounds"] for r in rows(tmp_path / rounds)} == {rounds}


# ---- rows without a time, and exit codes ---------------------------------------------------------


def test_refused_points_alone_are_exit_4(tmp_path: Path) -> None:
    attnbench(tmp_path, "run", *SMALL, "--dtype", "f16", "--out", "run", code=4)
    (row,) = rows(tmp_path / "run")
    assert row["status"] == "unsupported"
    assert row["status_reason"]
    assert row["time_median_s"] == row["samples"] == ""
    assert not load(tmp_path / "run").notes


def test_an_absurd_max_ci_is_exit_5(tmp_path: Path) -> None:
    attnbench(tmp_path, "run", *SMALL, "--max-ci", "0.0000001%", "--out", "run", code=5)
    (row,) = rows(tmp_path / "run")
    assert row["status"] == "ok"
    assert row["noisy"] == "true"


def test_a_small_mem_limit_predicts(tmp_path: Path) -> None:
    attnbench(tmp_path, "run", *SMALL, "--mem-limit", "1K", "--out", "run", code=4)
    (row,) = rows(tmp_path / "run")
    assert row["status"] == "oom_predicted"
    assert "--mem-limit" in row["status_reason"]


@pytest.mark.parametrize(
    "shape",
    [
        ["--n", "2147483647"],
        ["--n", "2147483647", "--heads", "2147483647"],
        ["--n", "2147483647", "--heads", "2147483647", "--head-dim", "2147483647"],
        ["--n", "1048576", "--batch", "2147483647", "--heads", "65536", "--head-dim", "256"],
    ],
    ids=spaced,
)
@pytest.mark.parametrize("backend", ["cpu.naive", "cpu.online"])
def test_sizes_past_64_bits_are_not_started(tmp_path: Path, shape: list[str], backend: str) -> None:
    command = ["run", "--only", backend, *shape, "--quiet", "--out", "run"]
    ended = attnbench(tmp_path, *command, code=None, timeout=20)
    if ended.code == 2:
        return
    assert ended.code == 4, ended.err
    (row,) = rows(tmp_path / "run")
    assert row["status"] in ("oom_predicted", "unsupported"), row["status_reason"]
    counts = [v for k, v in row.items() if k.endswith("_bytes") or k.startswith(("flops", "bytes"))]
    assert not [c for c in counts if c.startswith("-")], "a count has wrapped"


def test_a_small_cutoff_cuts(tmp_path: Path) -> None:
    cut = ["--only", "cpu.naive", "--n", "32,64,128", "--heads", "1", "--max-samples", "3"]
    attnbench(tmp_path, "run", *cut, "--cutoff-time", "1e-9", "--quiet", "--out", "run")
    first, *others = rows(tmp_path / "run")
    assert first["status"] == "ok"
    assert [r["status"] for r in others] == ["cutoff", "cutoff"]
    assert all("n = 32" in r["status_reason"] for r in others)


def test_a_call_without_end_is_exit_1_and_tried_again(tmp_path: Path) -> None:
    long = ["--only", "cpu.naive", "--n", "8192", "--heads", "1", "--timeout", "1ms", "--quiet"]
    attnbench(tmp_path, "run", *long, "--out", "run", code=1)
    (row,) = rows(tmp_path / "run")
    assert row["status"] == "timeout"
    assert row["status_reason"]
    attnbench(tmp_path, "run", "--resume", "--quiet", "--out", "run", code=1)
    journal = (tmp_path / "run/samples.csv").read_text()
    assert journal.count(",offence,") == 4


def test_an_endless_timeout_never_ends_a_call(tmp_path: Path) -> None:
    long = ["--only", "cpu.naive", "--n", "2048", "--heads", "2", "--min-samples", "1", "--quiet"]
    ended = attnbench(
        tmp_path, "run", *long, "--max-samples", "1", "--timeout=1e300", "--out", "run", code=None
    )
    assert ended.code in (0, 2), ended.out


# ---- Google Benchmark's flags --------------------------------------------------------------------


def test_list_tests_and_filter(tmp_path: Path) -> None:
    labels = attnbench(tmp_path, "run", *GRID, "--benchmark_list_tests").out.splitlines()
    assert labels == list(planned(tmp_path, *GRID).values())
    assert (
        labels
        == attnbench(tmp_path, "run", *GRID, "--benchmark_list_tests=true").out.split("\n")[:-1]
    )
    some = ["run", *GRID, "--benchmark_filter=gqa.*n:96/.*causal"]
    few = attnbench(tmp_path, *some, "--benchmark_list_tests").out.splitlines()
    assert few == [x for x in labels if re.search("gqa.*n:96/.*causal", x)]
    assert not list(tmp_path.iterdir())
    attnbench(tmp_path, *some, "--out", "run")
    assert {(r["backend"], r["n_q"], r["causal"]) for r in rows(tmp_path / "run")} == {
        ("blas.gqa", "96", "true")
    }


def test_benchmark_format_and_out_are_json(tmp_path: Path, measured: Path) -> None:
    def times(document: dict[str, list[dict[str, object]]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for entry in document["benchmarks"]:
            if "error_occurred" not in entry:
                scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[str(entry["time_unit"])]
                assert isinstance(entry["real_time"], float)
                found[str(entry["name"])] = entry["real_time"] * scale
        return found

    written = json.loads((measured.parent / "google.json").read_text())
    labels = planned(tmp_path, *GRID)
    good = [r for r in rows(measured) if r["status"] == "ok"]
    wanted = {labels[r["point_id"]]: float(r["time_median_s"]) for r in good}
    assert times(written) == pytest.approx(wanted)
    assert set(written) >= {"context", "benchmarks"}
    ended = attnbench(tmp_path, "run", *SMALL, "--benchmark_format=json", "--out", "run")
    (row,) = rows(tmp_path / "run")
    assert list(times(json.loads(ended.out)).values()) == pytest.approx(
        [float(row["time_median_s"])]
    )


# ---- compare -------------------------------------------------------------------------------------

# A GEMM against plain loops: several times faster on any machine.
FAST, SLOW = "blas.three_step", "cpu.naive"
PAIR = ["--n", "384", "--heads", "1", "--threads", "1", "--rounds", "12", "--quiet"]


def verdict(out: str) -> str:
    line = next(x for x in out.splitlines() if "n:384" in x)
    return line.split()[-1]


def test_compare_says_who_is_faster(tmp_path: Path) -> None:
    assert verdict(attnbench(tmp_path, "compare", FAST, SLOW, *PAIR).out) == "faster"
    assert verdict(attnbench(tmp_path, "compare", SLOW, FAST, *PAIR).out) == "slower"
    assert not list((tmp_path / "out").iterdir()), "a compare without --out leaves nothing"


def test_compare_fails_on_slower(tmp_path: Path) -> None:
    strict = [*PAIR, "--fail-on", "slower"]
    assert verdict(attnbench(tmp_path, "compare", SLOW, FAST, *strict, code=3).out) == "slower"
    assert verdict(attnbench(tmp_path, "compare", FAST, SLOW, *strict).out) == "faster"


def test_compare_of_refused_points_is_exit_4(tmp_path: Path) -> None:
    attnbench(tmp_path, "compare", SLOW, FAST, *PAIR, "--dtype", "f16", code=4)


def test_compare_keeps_its_folder_and_refuses_to_resume_it(tmp_path: Path) -> None:
    kept = ["compare", "cpu.naive", "cpu.online", *SMALL[2:], "--rounds", "6", "--out", "pair"]
    attnbench(tmp_path, *kept)
    before = (tmp_path / "pair/samples.csv").read_bytes()
    assert "--resume" in attnbench(tmp_path, *kept, "--resume", code=2).err
    assert (tmp_path / "pair/samples.csv").read_bytes() == before


def test_a_dry_compare_measures_nothing(tmp_path: Path) -> None:
    dry = attnbench(tmp_path, "compare", "cpu.naive", "cpu.online", *PAIR, "--dry-run", code=None)
    assert dry.code in (0, 2)
    assert "A/B" not in dry.out
    assert not list(tmp_path.iterdir())


# ---- locale --------------------------------------------------------------------------------------


def test_a_locale_with_decimal_commas_changes_nothing(tmp_path: Path) -> None:
    german = german_locale(tmp_path)
    if "LOCPATH" in german:
        said = subprocess.run(
            ["locale", "decimal_point"],
            env={**os.environ, **german},
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        assert said.stdout == ",\n"
    arguments = [*SMALL, "--scale", "0.125", "--max-ci", "2.5%", "--timeout", "7.5s"]
    plain = attnbench(tmp_path, "run", *arguments, "--dry-run").out
    assert attnbench(tmp_path, "run", *arguments, "--dry-run", env=german).out == plain
    ended = attnbench(tmp_path, "run", *arguments, "--out", "run", env=german, code=None)
    assert ended.code in (0, 5), ended.err  # --max-ci may well be exceeded
    table = load(tmp_path / "run")
    assert not table.notes
    (point,) = table.measured
    assert point.number("scale") == 0.125
    assert attnbench(tmp_path, "list", "--json", env=german).out == (
        attnbench(tmp_path, "list", "--json").out
    )
