# SPDX-License-Identifier: MIT
"""scripts/device_check.sh: what it refuses, and its flow on the emulated device."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from binary import ROOT, Ended, environment, rows

TESTS = ROOT / "build/ci/tests"
GOLDEN = TESTS / "golden_emulated"
STEPS = ["golden", "golden_compare", "conformance", "memcheck", "racecheck", "run", "table"]


def built(*programs: str) -> None:
    for program in programs:
        if not (TESTS / program).is_file():
            pytest.fail(f"there is no {TESTS / program}: build preset ci", pytrace=False)


def device_check(*arguments: str, root: Path = ROOT) -> Ended:
    done = subprocess.run(
        [str(root / "scripts/device_check.sh"), *arguments],
        env=environment({"PATH": f"{root / 'bin'}:{os.environ['PATH']}"}),
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def golden(*arguments: str | Path, code: int = 0) -> str:
    built("golden_emulated")
    done = subprocess.run(
        [GOLDEN, *arguments], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def outcomes(folder: Path) -> dict[str, str]:
    """The table of summary.md: step -> outcome."""
    text = (folder / "summary.md").read_text()
    return dict(re.findall(r"^\| (\w[\w-]*) \| \d+ \| (.*) \|$", text, re.MULTILINE))


# ---- usage ---------------------------------------------------------------------------------------


def test_help_says_what_it_does() -> None:
    said = device_check("--help")
    assert said.code == 0
    for step in STEPS:
        assert step in said.out
    assert "eight minutes" in said.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--frobnicate"], "--frobnicate"),
        (["--out"], "--out"),
        (["--preset"], "--preset"),
        (["--out", "tests"], "tests is there already"),
        (["--emulated", "--no-build", "--preset", "nowhere"], "build/nowhere"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], words: str) -> None:
    said = device_check(*arguments)
    assert said.code == 2
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.skipif(
    any(name.startswith(("nvidia", "nvhost", "dxg")) for name in os.listdir("/dev")),
    reason="there is a device",
)
def test_without_a_device_it_ends_with_4(tmp_path: Path) -> None:
    said = device_check("--out", str(tmp_path / "out"))
    assert said.code == 4
    assert said.err.startswith("device_check: no CUDA device")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert not list(tmp_path.iterdir())


# ---- its flow ------------------------------------------------------------------------------------


def test_the_whole_flow_on_the_emulated_device(tmp_path: Path) -> None:
    built("attnbench_emulated", "emulated_conformance_test", "golden_emulated")
    out = tmp_path / "out"
    said = device_check("--emulated", "--no-build", "--preset", "ci", "--out", str(out))
    assert said.code == 0, said.out + said.err
    assert said.out.splitlines()[-1] == str(out)
    assert [step for step in outcomes(out) if step in STEPS] == STEPS
    assert "WRONG" not in (out / "summary.md").read_text()
    assert "emulated" in (out / "summary.md").read_text()
    assert outcomes(out)["golden_compare"] == "the emulator agrees"
    assert re.match(r"passed: [1-9]", outcomes(out)["conformance"])
    assert "compute-sanitizer" in outcomes(out)["memcheck"]
    table = rows(out / "run")
    assert {row["status"] for row in table} == {"ok"}
    assert {row["backend"].partition(".")[0] for row in table} == {"cuda"}
    shapes = {(row["head_dim"], row["causal"]) for row in table}
    assert shapes == {(d, causal) for d in ("64", "128") for causal in ("true", "false")}
    assert (out / "conformance.xml").is_file()
    assert {path.name for path in (out / "golden").iterdir()} >= {"device.txt", "shuffles.txt"}


GOOD = {
    "golden": "exit 0",
    "golden_emulated": "exit 0",
    "attnbench": "echo '4 points, 4 ok'",
    "attnbench_emulated": "echo '4 points, 4 ok'",
    "conformance_test": "echo '[  PASSED  ] 3 tests.'",
    "emulated_conformance_test": "echo '[  PASSED  ] 3 tests.'",
}
TOOLS = {
    "nvidia-smi": "echo a report",
    "compute-sanitizer": 'shift 4; exec "$@"',
}


def stand_ins(tmp_path: Path, programs: dict[str, str]) -> Path:
    """A tree with the script alone, shell scripts for programs, and a device of its own."""
    root = tmp_path / "tree"
    for folder in ("scripts", "build/x", "bin", "dev"):
        (root / folder).mkdir(parents=True)
    (root / "dev/nvidia0").touch()
    script = (ROOT / "scripts/device_check.sh").read_text()
    (root / "scripts/device_check.sh").write_text(script.replace("/dev/nv", f"{root}/dev/nv"))
    (root / "scripts/device_check.sh").chmod(0o755)
    for name, text in {**GOOD, **programs}.items():
        path = root / ("bin" if name in TOOLS else "build/x") / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return root


def flow(
    tmp_path: Path, code: int, programs: dict[str, str], options: tuple[str, ...] = ("--emulated",)
) -> dict[str, str]:
    """Outcomes of a run on stand-ins; whatever happens, the summary is there and named last."""
    out = tmp_path / "out"
    root = stand_ins(tmp_path, programs)
    said = device_check(*options, "--no-build", "--preset", "x", "--out", str(out), root=root)
    assert said.code == code, said.out + said.err
    assert said.out.splitlines()[-1] == str(out)
    return outcomes(out)


def test_a_step_that_fails_stops_no_other(tmp_path: Path) -> None:
    found = flow(tmp_path, 1, {"emulated_conformance_test": "echo 'one is wrong'; exit 1"})
    assert found["conformance"] == "WRONG: ended with 1: one is wrong"
    assert found["run"] == "4 points, 4 ok"


@pytest.mark.parametrize("says", ["[  PASSED  ] 0 tests.", "nothing"])
def test_a_conformance_that_ran_no_case_is_wrong(tmp_path: Path, says: str) -> None:
    found = flow(tmp_path, 1, {"emulated_conformance_test": f"echo '{says}'"})
    assert found["conformance"] == "WRONG: no case passed, 0 refused"


def test_an_emulator_that_disagrees_is_wrong(tmp_path: Path) -> None:
    found = flow(tmp_path, 1, {"golden_emulated": '[ "$1" = write ] || { echo differs; exit 1; }'})
    assert found["golden_compare"] == "WRONG: ended with 1: differs"


def test_nothing_measured_is_4_and_a_wrong_result_is_1(tmp_path: Path) -> None:
    assert flow(tmp_path / "a", 4, {"attnbench_emulated": "exit 4"})["run"].startswith("nothing")
    assert "ended with 1" in flow(tmp_path / "b", 1, {"attnbench_emulated": "exit 1"})["run"]


def test_with_a_device_the_tools_of_the_vendor_are_used(tmp_path: Path) -> None:
    found = flow(tmp_path, 0, TOOLS, options=())
    assert found["memcheck"] == found["racecheck"] == "nothing found: 3 cases, and 0 refused"
    for when in ("before", "after"):
        assert (tmp_path / "out" / f"nvidia-smi-{when}.txt").read_text() == "a report\n"


def test_what_the_sanitizer_finds_is_wrong(tmp_path: Path) -> None:
    finds = {"compute-sanitizer": '[ "$2" = memcheck ] || { echo a race; exit 9; }; shift 4; "$@"'}
    found = flow(tmp_path, 1, {**TOOLS, **finds}, options=())
    assert found["memcheck"] == "nothing found: 3 cases, and 0 refused"
    assert found["racecheck"] == "WRONG: ended with 9: a race"
    assert found["run"] == "4 points, 4 ok"


def test_a_golden_program_without_a_device_ends_it(tmp_path: Path) -> None:
    root = stand_ins(tmp_path, {"golden": "echo 'golden: needs a CUDA device: why'; exit 4"})
    out = tmp_path / "out"
    said = device_check("--no-build", "--preset", "x", "--out", str(out), root=root)
    assert said.code == 4
    assert said.err == "device_check: needs a CUDA device: why; nothing was run\n"
    assert not out.exists()


# ---- golden outputs ------------------------------------------------------------------------------


def test_golden_outputs_agree_with_themselves(tmp_path: Path) -> None:
    golden("write", tmp_path)
    assert "0 of" in golden("compare", tmp_path)


def test_no_golden_outputs_yet_is_a_skip(tmp_path: Path) -> None:
    said = golden("compare", tmp_path, code=77)
    assert said == ("golden: no golden outputs yet: no device has run scripts/device_check.sh\n")


def test_every_golden_output_is_compared_to_its_last_word(tmp_path: Path) -> None:
    golden("write", tmp_path)
    files = [path for path in sorted(tmp_path.iterdir()) if path.name != "device.txt"]
    assert files
    for path in files:
        text = path.read_text()
        words = text.splitlines()
        changed = f"{int(words[-1], 16) ^ 0x40000000:08x}"
        for wrong, what in [
            ([*words[:-1], changed], f"{path.stem}: word {len(words) - 1} is"),
            (words[:-1], f"{path.stem}: {len(words)} words here, {len(words) - 1} of"),
        ]:
            path.write_text("\n".join(wrong) + "\n")
            said = golden("compare", tmp_path, code=1)
            assert what in said
            assert "golden: 1 of" in said
        path.write_text(text)
    files[0].unlink()
    assert f"{files[0].stem}: emulated on the CPU has not run it yet" in golden("compare", tmp_path)
