# SPDX-License-Identifier: MIT
"""The README's backend, added and built as the README says, and the commands that it names."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from attnplot.table import load
from binary import ROOT, attnbench, binary, planned, rows

README = (ROOT / "README.md").read_text(encoding="utf-8")


def example() -> str:
    """The C++ block between the markers."""
    _, _, rest = README.partition("<!-- example:begin -->")
    block, end, _ = rest.partition("<!-- example:end -->")
    assert end, "README.md has no example between its markers"
    found = re.fullmatch(r"\s*```cpp\n(.*)```\s*", block, re.DOTALL)
    assert found, "the example of README.md is not one block of C++"
    return found[1]


def backend_file() -> Path:
    """Where the README says to save it."""
    before = README.partition("<!-- example:begin -->")[0].rstrip()
    found = re.search(r"`(impls/\w+/\w+\.cpp)`:$", before)
    assert found, "README.md does not say where to save its example"
    return Path(found[1])


def command(*words: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Runs what must end well; returns all it says."""
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, (
        f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-4000:]}"
    )
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files and the example, its folder compiled with warnings as errors."""
    tree = tmp_path_factory.mktemp("clone") / "attnbench"
    for name in command("git", "ls-files", "-z", cwd=ROOT).split("\0")[:-1]:
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    file = tree / backend_file()
    assert not file.exists()
    file.write_text(example(), encoding="utf-8")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DATTN_WERROR=ON"]
    options += ["-DATTN_TESTS=OFF", "-DATTN_CUDA=OFF"]
    command("cmake", "-S", ".", "-B", "build/ci", "-G", "Ninja", *options, cwd=tree)
    command("cmake", "--build", "build/ci", "--target", "attn_impls_cpu", cwd=tree)
    return tree


@pytest.fixture
def own_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH", str(binary("attnbench_example")))


def test_the_example_is_short() -> None:
    lines = [line for line in example().splitlines() if line.strip()]
    assert 50 <= len(lines) <= 75
    assert backend_file() == Path("impls/cpu/two_pass.cpp")


def test_the_file_is_the_whole_change(clone: Path) -> None:
    registry = (clone / "build/ci/generated/registry.cpp").read_text(encoding="utf-8")
    assert '{"cpu.two_pass", {}, cpu_two_pass()}' in registry
    folder = clone / "build/ci/CMakeFiles/attn_impls_cpu.dir"
    assert (folder / f"{backend_file()}.o").is_file()


@pytest.mark.usefixtures("own_binary")
def test_the_example_is_listed(tmp_path: Path) -> None:
    lines = attnbench(tmp_path, "list").out.splitlines()
    (line,) = (x for x in lines if x.startswith("cpu.two_pass "))
    assert line.endswith(" runs")


@pytest.mark.usefixtures("own_binary")
def test_the_example_is_right(tmp_path: Path) -> None:
    grid = ["--only", "cpu.two_pass,cpu.naive", "--n", "64,128", "--heads", "1"]
    points = planned(tmp_path, *grid)
    attnbench(tmp_path, "run", *grid, "--quiet", "--out", "run")
    table = rows(tmp_path / "run")
    assert [r["point_id"] for r in table] == list(points)
    assert {(r["backend"], r["status"]) for r in table} == {
        ("cpu.two_pass", "ok"),
        ("cpu.naive", "ok"),
    }
    assert not load(tmp_path / "run").notes


@pytest.mark.usefixtures("own_binary")
def test_the_example_can_be_compared(tmp_path: Path) -> None:
    pair = ["compare", "cpu.two_pass", "cpu.naive", "--n", "128", "--heads", "1", "--quiet"]
    said = attnbench(tmp_path, *pair).out
    (line,) = (x for x in said.splitlines() if "n:128" in x)
    assert line.split()[-1] in ("faster", "slower", "undecided")


def test_every_script_that_the_readme_names_has_help() -> None:
    scripts = sorted(set(re.findall(r"scripts/\w+\.sh", README)))
    assert {"scripts/reproduce.sh", "scripts/test.sh", "scripts/setup.sh"} <= set(scripts)
    for script in scripts:
        assert script in command(f"./{script}", "--help", cwd=ROOT)


def test_every_command_of_the_readme_exists(tmp_path: Path) -> None:
    # Options and names in the README's command lines are planned, not measured.
    lines = [x for x in re.findall(r"`(attnbench [^`]+)`", README) if "list" not in x]
    lines += re.findall(r"^build/release/(attnbench \w+ [^#\n]+)", README, re.MULTILINE)
    known = [x for x in lines if "--resume" not in x and "two_pass" not in x]
    tried = 0
    for line in known:
        words = [w.strip("'") for w in line.split()[1:]]
        if words[0] == "run":
            assert planned(tmp_path, *words[1:])
            tried += 1
    assert tried >= 2
    for words in (["presets"], ["columns"], ["statuses"], ["--json"]):
        assert attnbench(tmp_path, "list", *words).out


def test_every_file_that_the_readme_links_exists() -> None:
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    links = [x for x in re.findall(r"\]\(([^)#]+)\)", prose) if "://" not in x]
    missing = [x for x in links if not (ROOT / x).exists()]
    assert links
    assert not missing
