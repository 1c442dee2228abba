# SPDX-License-Identifier: MIT
"""The built attnbench, for tests that run it as a user does."""

import csv
import io
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str


def binary(name: str = "attnbench") -> Path:
    """ATTNBENCH, else the build of preset ci, else of preset release; without it a test fails.

    Another name is that of a tool on the emulated device, in the folder tests of the same build.
    """
    given = os.environ.get("ATTNBENCH")
    builds = [ROOT / "build" / preset for preset in ("ci", "release")]
    tried = [Path(given)] if given else [build / "attnbench" for build in builds]
    if name != "attnbench":
        tried = [path.parent / "tests" / name for path in tried]
    for path in tried:
        if path.is_file():
            return path.resolve()
    pytest.fail(
        f"there is no {' or '.join(str(p) for p in tried)}: build it with "
        f"'cmake --preset ci && cmake --build --preset ci --target {name}'",
        pytrace=False,
    )


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """That of the tests, with OpenMP's threads asleep while they wait: cores may be shared."""
    return {**os.environ, "OMP_WAIT_POLICY": "passive", **(extra or {})}


def german_locale(tmp_path: Path) -> dict[str, str]:
    """Variables of a locale with decimal commas, made in `tmp_path` where the system can make it.

    Elsewhere it has to be installed to have an effect.
    """
    locales = tmp_path / "locales"
    locales.mkdir()
    if shutil.which("localedef"):
        subprocess.run(
            [*"localedef -i de_DE -f UTF-8 --no-archive".split(), str(locales / "de_DE.UTF-8")],
            capture_output=True,
            check=False,
        )
    found = dict.fromkeys(("LC_ALL", "LC_NUMERIC", "LANG"), "de_DE.UTF-8")
    return {**found, "LOCPATH": str(locales)} if any(locales.iterdir()) else found


def attnbench(
    cwd: Path,
    *arguments: str,
    code: int | None = 0,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    name: str = "attnbench",
) -> Ended:
    """Runs it in `cwd` and checks the exit code (`None`: any)."""
    done = subprocess.run(
        [str(binary(name)), *arguments],
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=timeout,
        check=False,
    )
    if code is not None:
        said = f"attnbench {' '.join(arguments)} ended with {done.returncode}, not {code}:\n"
        assert done.returncode == code, f"{said}{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return Ended(done.returncode, done.stdout, done.stderr)


def refused(cwd: Path, *arguments: str, code: int = 2) -> str:
    """Runs what must end with an error: one sentence on stderr and nothing on stdout."""
    ended = attnbench(cwd, *arguments, code=code)
    assert ended.err.startswith("attnbench: ")
    assert ended.err.count("\n") == 1, ended.err
    assert ended.err.endswith("\n")
    assert ended.out == ""
    return ended.err


def rows(folder: Path) -> list[dict[str, str]]:
    """results.csv, cell by cell as written."""
    text = (folder / "results.csv").read_bytes().decode()
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def planned(cwd: Path, *arguments: str) -> dict[str, str]:
    """What --dry-run says: point_id -> label."""
    lines = attnbench(cwd, "run", *arguments, "--dry-run").out.splitlines()
    assert lines[-1].endswith(" points")
    points = dict(line.split(maxsplit=1) for line in lines[:-1])
    assert len(points) == len(lines) - 1 == int(lines[-1].split()[0])
    return points
