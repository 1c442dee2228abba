# SPDX-License-Identifier: MIT
"""The whole tool on an emulated device that fails as it is told to.

`attnbench_emulated` has the real device backends; `attnbench_planted` two honest ones and, named
`bad.*`, some with one fault each.
"""

import csv
import json
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from attnplot.table import load
from binary import ROOT, Ended, attnbench, binary, rows

EMULATED, PLANTED = "attnbench_emulated", "attnbench_planted"
SMALL = ["--heads", "1", "--head-dim", "8", "--max-samples", "3", "--quiet", "--out", "run"]


def run(
    cwd: Path,
    name: str,
    *arguments: str,
    code: int = 0,
    device: str = "",
    env: Mapping[str, str] | None = None,
) -> Ended:
    """`run` on the emulated device that the words of `device` describe."""
    variables = {"CUDA_EMULATOR_DEVICE": device, **(env or {})}
    return attnbench(cwd, "run", *arguments, *SMALL, name=name, code=code, env=variables)


def events(folder: Path) -> list[dict[str, str]]:
    """samples.csv, without the roofs."""
    with (folder / "samples.csv").open(encoding="utf-8", newline="") as file:
        return [e for e in csv.DictReader(file) if not e["point_id"].startswith("roof:")]


def plan(cwd: Path, *arguments: str) -> list[str]:
    """Ids and labels of --dry-run."""
    out = attnbench(cwd, "run", *arguments, "--dry-run", name=EMULATED).out
    return out.splitlines()[:-1]


# ---- what a device row says ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, without NVML."""
    cwd = tmp_path_factory.mktemp("emulated")
    run(cwd, EMULATED, "--only", "cuda.naive", "--n", "16,32")
    return cwd / "run"


def test_a_device_is_measured_warm_and_cold(measured: Path) -> None:
    table = rows(measured)
    assert [(r["n_kv"], r["cache_mode"]) for r in table] == [
        ("16", "warm"),
        ("16", "cold"),
        ("32", "warm"),
        ("32", "cold"),
    ]
    assert len({r["point_id"] for r in table}) == 4
    for row in table:
        assert row["status"] == "ok", row["status_reason"]
        assert row["timer"] == "cuda_event"
        assert row["device_name"] == "emulated on the CPU"
    assert not load(measured).notes


def test_a_cache_mode_can_be_chosen(tmp_path: Path) -> None:
    both = plan(tmp_path, "--only", "cuda.naive", "--n", "16")
    warm = plan(tmp_path, "--only", "cuda.naive", "--n", "16", "--cache", "warm")
    cold = plan(tmp_path, "--only", "cuda.naive", "--n", "16", "--cache", "cold")
    assert both == warm + cold
    assert "/cold/" in cold[0]
    assert "/cold/" not in warm[0]


def test_repro_cmd_gives_one_of_the_two(tmp_path: Path, measured: Path) -> None:
    for row in rows(measured):
        (again,) = plan(tmp_path, *shlex.split(row["repro_cmd"])[2:])
        assert again.split()[0] == row["point_id"]


def test_the_roofs_are_the_devices_own(measured: Path) -> None:
    record = json.loads((measured / "run.json").read_text())
    assert record["roofs"] == []  # no point used the host
    peak, copy = record["cuda"]["fma_gflops"], record["cuda"]["copy_gbps"]
    assert peak > 0
    assert copy > 0
    for row in rows(measured):
        assert float(row["pct_peak"]) == pytest.approx(100 * float(row["gflops"]) / peak)
        bound = float(row["flops_model"]) / float(row["bytes_min"]) * copy
        # So small a problem lies in the cache: memory bounds it only where that was flushed.
        if row["cache_mode"] == "cold" or bound >= peak:
            roof = 100 * float(row["gflops"]) / min(peak, bound)
            assert float(row["pct_roof"]) == pytest.approx(roof)
        else:
            assert row["pct_roof"] == ""


def test_run_json_says_what_the_device_is(measured: Path) -> None:
    cuda = json.loads((measured / "run.json").read_text())["cuda"]
    wanted = {
        "name": "emulated on the CPU",
        "compute_capability": "8.0",
        "memory_bytes": 8 << 30,
        "l2_bytes": 1 << 20,
        "multiprocessors": 1,
        "driver": "13.0",
        "runtime": "13.0",
        "clock_mhz": 1000,
        "memory_clock_mhz": 1000,
    }
    assert {key: cuda.get(key) for key in wanted} == wanted


# ---- clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reasons", "throttled"), [("0x20", "true"), ("0x3", "false")])
def test_samples_say_clock_and_throttling(tmp_path: Path, reasons: str, throttled: str) -> None:
    nvml = {
        "LD_LIBRARY_PATH": str(binary(EMULATED).parent / "nvml"),
        "NVML_EMULATOR_REASONS": reasons,
    }
    run(tmp_path, EMULATED, "--only", "cuda.naive", "--n", "16", env=nvml)
    samples = [e for e in events(tmp_path / "run") if e["event"] == "sample"]
    assert samples
    assert {(e["clock_mhz"], e["throttled"]) for e in samples} == {("1410", throttled)}
    table = rows(tmp_path / "run")
    assert [r["status"] for r in table] == ["ok", "ok"]
    assert sum(int(r["samples"]) for r in table) == len(samples)  # marked, never dropped
    assert json.loads((tmp_path / "run/run.json").read_text())["cuda"]["no_sample_clocks"] == ""


def test_without_nvml_the_clock_is_empty_and_run_json_says_why(measured: Path) -> None:
    assert {(e["clock_mhz"], e["throttled"]) for e in events(measured)} == {("", "")}
    cuda = json.loads((measured / "run.json").read_text())["cuda"]
    assert "nvml" in cuda["no_sample_clocks"].lower() or "nvidia-ml" in cuda["no_sample_clocks"]


# ---- failures ------------------------------------------------------------------------------------


def statuses(folder: Path) -> dict[str, set[str]]:
    """backend -> the statuses of its rows."""
    found: dict[str, set[str]] = {}
    for row in rows(folder):
        found.setdefault(row["backend"], set()).add(row["status"])
    return found


def test_a_sticky_error_costs_its_own_rows_alone(tmp_path: Path) -> None:
    only = "a.honest,bad.fault,z.honest"
    run(tmp_path, PLANTED, "--only", only, "--n", "16,24", code=1)
    assert statuses(tmp_path / "run") == {
        "a.honest": {"ok"},
        "bad.fault": {"error"},
        "z.honest": {"ok"},
    }
    bad = [r for r in rows(tmp_path / "run") if r["status"] == "error"]
    assert len(bad) == 4
    journal = events(tmp_path / "run")
    for row in bad:
        said = row["status_reason"]
        assert "cudaErrorIllegalAddress: an illegal memory access was encountered" in said
        assert str(ROOT) not in said
        mine = [e for e in journal if e["point_id"] == row["point_id"] and e["event"] == "offence"]
        assert len({e["process"] for e in mine}) == len(mine) == 2


def test_a_hang_is_a_timeout_of_its_own_row(tmp_path: Path) -> None:
    only = ["--only", "a.honest,bad.hang,z.honest", "--n", "16", "--cache", "warm"]
    run(tmp_path, PLANTED, *only, "--timeout", "1", code=1)
    assert statuses(tmp_path / "run") == {
        "a.honest": {"ok"},
        "bad.hang": {"timeout"},
        "z.honest": {"ok"},
    }


def test_a_broken_contract_is_found_on_the_device(tmp_path: Path) -> None:
    wanted = {
        "bad.before": ("error", "wrote before the start of a tensor on the device"),
        "bad.past": ("error", "wrote after the end of a tensor on the device"),
        "bad.scratch": ("error", "wrote after the end of the scratch on the device"),
        "bad.poke": ("error", "changed its inputs on the device"),
        "bad.zeros": ("mismatch", "is NaN"),
        "bad.hurry": ("error", "more than 105 % of the FMA peak"),
    }
    only = ",".join(["a.honest", *wanted])
    run(tmp_path, PLANTED, "--only", only, "--n", "16", "--cache", "warm", code=1)
    for row in rows(tmp_path / "run"):
        status, reason = wanted.get(row["backend"], ("ok", ""))
        assert row["status"] == status, row
        assert reason in row["status_reason"]


def test_memory_that_is_predicted_to_lack(tmp_path: Path) -> None:
    only = ["--only", "cuda.naive", "--n", "16,2048"]
    run(tmp_path, EMULATED, *only, device="memory=20000000")
    small, large = rows(tmp_path / "run")[1:3]
    assert small["status"] == "ok", small["status_reason"]
    assert large["status"] == "oom_predicted"
    scratch = 4 * 2048 * 2048
    assert int(large["status_reason"].split()[1]) > scratch
    assert large["status_reason"].endswith("60 % of what is free there are 12000000")


def test_a_limit_in_per_cent_holds_on_the_device_too(tmp_path: Path) -> None:
    only = ["--only", "cuda.naive", "--n", "16", "--cache", "warm"]
    run(tmp_path, EMULATED, *only, "--mem-limit", "30%", device="memory=20000000", code=4)
    (row,) = rows(tmp_path / "run")
    assert row["status"] == "oom_predicted"
    assert row["status_reason"].endswith("30 % of what is free there are 6000000")


def test_memory_that_lacks_all_the_same(tmp_path: Path) -> None:
    only = ["--only", "cuda.naive", "--n", "16,2048", "--cutoff-time", "1000"]
    run(tmp_path, EMULATED, *only, device="largest=10000000")
    for row in rows(tmp_path / "run"):
        if row["n_kv"] == "16":
            assert row["status"] == "ok", row["status_reason"]
        else:
            assert row["status"] == "oom"
            assert row["status_reason"].endswith("of the device's memory: out of memory")


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("no_driver", "CUDA driver version is insufficient for CUDA runtime version"),
        ("no_device", "no CUDA-capable device is detected"),
    ],
)
def test_without_a_device_rows_are_unavailable(tmp_path: Path, device: str, reason: str) -> None:
    env = {"CUDA_EMULATOR_DEVICE": device}
    said = attnbench(tmp_path, "list", name=EMULATED, env=env).out
    assert f"built, unavailable: needs a CUDA device: {reason}" in said
    run(tmp_path, EMULATED, "--only", "cuda.*", "--n", "16", device=device, code=4)
    for row in rows(tmp_path / "run"):
        assert row["status"] == "unavailable"
        assert row["status_reason"] == f"needs a CUDA device: {reason}"
    assert set(json.loads((tmp_path / "run/run.json").read_text())["cuda"]) == {"toolkit"}


def test_the_tool_starts_without_a_driver(tmp_path: Path) -> None:
    linked = subprocess.run(
        ["ldd", str(binary())], capture_output=True, encoding="utf-8", check=True
    ).stdout
    assert "libc.so" in linked
    assert "libcuda" not in linked
    assert "libnvidia-ml" not in linked
    attnbench(tmp_path, "list")
