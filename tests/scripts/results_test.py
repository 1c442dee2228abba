# SPDX-License-Identifier: MIT
"""What is committed under results/: it loads, it is what README.md shows, and it names no host."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

from attnplot.cli import main
from attnplot.files import split_readme
from attnplot.table import load
from binary import ROOT, attnbench

# What no committed file may hold: somebody's folders and machines. The system's own folders, as in
# the path of a library, are the same everywhere.
FOLDER = re.compile(
    r"(?<![\w.])/(?:home|Users|root|tmp|work|workspace|builds?|mnt|srv|opt|var|private|github)/"
)
TEXT = re.compile(FOLDER.pattern + r'|\b[A-Za-z]:\\|"?\bhost_?name"?\s*[:=]')


def private(data: bytes) -> str | None:
    """The first private thing in a file; in a compressed one three bytes prove nothing."""
    try:
        found = TEXT.search(data.decode("utf-8"))
    except UnicodeDecodeError:
        found = FOLDER.search(data.decode("latin-1"))
    return found and found[0]


def committed() -> list[str]:
    """The tracked files under results/, from the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "results"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def folders() -> list[Path]:
    """Every committed run, oldest first."""
    found = {ROOT / n for n in committed() if re.fullmatch(r"results/[^/]+/[^/]+/results\.csv", n)}
    if not found:
        pytest.fail(
            "nothing is committed under results/<cpu or gpu model>/<date>-<build_id>/: measure "
            "with 'scripts/reproduce.sh --publish' and commit the folder that it names",
            pytrace=False,
        )
    return sorted((path.parent for path in found), key=lambda f: (f.name, f.parent.name))


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the build says of itself."""
    said: dict[str, str] = json.loads(
        attnbench(tmp_path_factory.mktemp("id"), "list", "--json").out
    )
    return said


def shown_in_readme() -> Path:
    """The run that README.md's generated part points into."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.split("<!-- attnplot:begin -->")[1].split("<!-- attnplot:end -->")[0]
    found = re.search(r"\((results/[^/)]+/[^/)]+)/figures/", block)
    assert found, "the part of README.md between the attnplot markers shows no figure of results/"
    return ROOT / unquote(found[1])


def test_every_folder_loads(folders: list[Path]) -> None:
    for folder in folders:
        table = load(folder)
        assert not table.notes, f"{folder.name}: {table.notes}"
        assert table.measured, folder.name
        assert table.field("interrupted") is False
        assert table.field("finished_utc")
        build_id = str(table.field("build_id"))
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}-" + build_id, folder.name)
        assert {p.text("build_id") for p in table.points} == {build_id}
        assert {p.text("env_id") for p in table.points} == {table.field("env_id")}
        assert {p.text("run_id") for p in table.points} == {table.field("run_id")}


def test_every_folder_is_committed_whole(folders: list[Path]) -> None:
    names = set(committed())
    wanted = "results.csv samples.csv phases.csv run.json fits.csv crossovers.csv".split()
    wanted += ["report.md", "report.html"]
    for folder in folders:
        there = folder.relative_to(ROOT).as_posix()
        missing = [name for name in wanted if f"{there}/{name}" not in names]
        assert not missing, there
        assert any(name.startswith(f"{there}/figures/") for name in names), there


def test_the_readme_shows_the_newest_current_run(
    folders: list[Path], identity: dict[str, str]
) -> None:
    current = [f for f in folders if load(f).field("build_id") == identity["build_id"]]
    newest = (current or folders)[-1]
    date = newest.name[:10]
    same_day = [f for f in current or folders if f.name[:10] == date]
    assert shown_in_readme() in same_day


def test_the_readme_is_what_attnplot_makes_of_it(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = shown_in_readme()
    assert shown in folders
    there = shown.relative_to(ROOT)
    shutil.copytree(shown, tmp_path / there)
    readme = Path(shutil.copy(ROOT / "README.md", tmp_path / "README.md"))
    assert main(["report", str(tmp_path / there), "--readme", str(readme)]) == 0, (
        capsys.readouterr().err
    )
    split_readme(readme, "attnplot")
    assert readme.read_text(encoding="utf-8") == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_shows_the_newest_bars() -> None:
    found = [n for n in committed() if re.fullmatch(r"results/[^/]+/[^/]+-peers/bars\.md", n)]
    newest = max(found, key=lambda name: name.split("/")[2])
    bars = (ROOT / newest).read_text(encoding="utf-8").partition("## Bars\n")[2]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("<!-- bars:begin -->")[2].partition("<!-- bars:end -->")[0]
    link, _, table = shown.strip().partition("\n\n")
    assert table == bars.partition("\n## ")[0].strip()
    assert f"({newest})" in link


def test_no_committed_file_names_a_folder_or_a_host(folders: list[Path]) -> None:
    assert folders
    found = {name: private((ROOT / name).read_bytes()) for name in committed()}
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    ("text", "is_private"),
    [
        ("x /home/me/y", True),
        ('"/tmp/a"', True),
        ("C:\\Users", True),
        ('"hostname": "box"', True),
        ("host_name=box", True),
        ("scripts/tmp/a", False),
        ("/usr/lib/x86_64-linux-gnu/openblas-openmp/libopenblas.so", False),
        ("2026-01-02T03:04:05Z", False),
    ],
)
def test_private_text_is_recognised(text: str, is_private: bool) -> None:
    assert (private(text.encode()) is not None) is is_private
    if is_private and "/" in text:
        assert private(b"\x89PNG\xff " + text.encode())


def test_stale_folders_are_listed(
    folders: list[Path], identity: dict[str, str], record_property: object
) -> None:
    """Not a failure: older results stay true for their build. `pytest -rA` shows the list."""
    assert callable(record_property)
    stale = [f for f in folders if load(f).field("build_id") != identity["build_id"]]
    for folder in stale:
        name = folder.relative_to(ROOT).as_posix()
        print(f"stale: {name} is not of the tree's build {identity['build_id']}")
        record_property("stale", name)
