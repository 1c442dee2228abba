# SPDX-License-Identifier: MIT
"""Synthetic runs with known answers: what attnbench would write for times that we choose."""

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from attnplot.table import RESULT_COLUMNS, SAMPLE_COLUMNS, Point, Sample, Table

SQRT2 = (1024, 1448, 2048, 2896, 4096, 5793, 8192)
COMPLEXITY = (128, 256, 512, *SQRT2)
DOUBLING = (128, 256, 512, 1024, 2048, 4096, 8192)

Value = str | int | float | bool | None
Law = Callable[[float], float]


@dataclass
class Noise:
    """Relative noise of a sample: own to it, common to its round, own to (process, point)."""

    sample: float = 0.0
    round: float = 0.0
    luck: float = 0.0


@dataclass
class Run:
    """Rows and journal lines of a run, to be written with `write`."""

    rounds: int = 6
    processes: int = 1
    noise: Noise = field(default_factory=Noise)
    seed: int = 1
    llc_bytes: int | None = 32 << 20
    roofs: list[dict[str, object]] = field(default_factory=list)
    rows: list[dict[str, Value]] = field(default_factory=list)
    lines: list[list[Value]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._round_factor = 1 + self.noise.round * self._rng.standard_normal(self.rounds)

    def point(
        self,
        backend: str,
        n: int,
        seconds: float,
        cells: Mapping[str, Value] | None = None,
        rounds: Iterable[int] | None = None,
    ) -> str:
        """Adds an `ok` point that takes the given seconds, and one sample of it per round."""
        row = self.row(backend, n, **(cells or {}))
        point_id = str(row["point_id"])
        luck = 1 + self.noise.luck * self._rng.standard_normal(self.processes)
        numbers = list(range(self.rounds) if rounds is None else rounds)
        times = []
        self.lines.append(["r", point_id, "check", 0, None, None, seconds * 1.2, None, False, "{}"])
        for number in numbers:
            process = number % self.processes
            noise = 1 + self.noise.sample * self._rng.standard_normal()
            time = seconds * luck[process] * noise * self._round_factor[number]
            times.append(float(time))
            self.sample(point_id, process, number, times[-1])
        self.lines.append(["r", point_id, "finish", None, None, None, None, None, None, "{}"])
        row["status"] = "ok"
        self.time(row, times)
        return point_id

    def time(self, row: dict[str, Value], times: Sequence[float]) -> None:
        """Fills the timing columns of a row from its samples, and what follows from them."""
        ordered = sorted(times)
        median = statistics.median(ordered)
        row.update(
            samples=len(times),
            processes=self.processes,
            rounds=len(times),
            time_median_s=median,
            time_min_s=ordered[0],
            time_q1_s=ordered[len(ordered) // 4],
            time_q3_s=ordered[(3 * len(ordered)) // 4],
            outliers=0,
            noisy=False,
            stop_reason="rounds",
            timer="monotonic",
            cache_mode="mixed" if median > 0.05 else "warm",
            order="random",
        )
        if len(times) >= 6:
            row.update(ci95_lo_s=ordered[0], ci95_hi_s=ordered[-1])
        flops, bytes_model = row.get("flops_model"), row.get("bytes_model")
        if isinstance(flops, (int, float)):
            row["gflops"] = flops / median / 1e9
        if isinstance(bytes_model, (int, float)):
            row["gbps"] = bytes_model / median / 1e9

    def sample(self, point_id: str, process: int, number: int, seconds: float) -> None:
        """One journal line of a timed call."""
        self.lines.append(
            ["r", point_id, "sample", process, number, 0, seconds, 3000, False, '{"cache":"warm"}']
        )

    def row(self, backend: str, n: int, **cells: Value) -> dict[str, Value]:
        """A row without samples; columns default to the Complexity part's."""
        row: dict[str, Value] = {
            "schema_version": 1,
            "run_id": "r",
            "point_id": f"p{len(self.rows)}",
            "env_id": "e1",
            "build_id": "b1",
            "backend": backend,
            "family": "attention",
            "scope": "core",
            "regime": "prefill",
            "sharing": "mha",
            "device": "cpu",
            "threads": 1,
            "n_q": n,
            "n_kv": n,
            "batch": 1,
            "heads": 1,
            "heads_kv": 1,
            "head_dim": 64,
            "head_dim_v": 64,
            "causal": False,
            "scale": 0.125,
            "dtype": "f32",
            "input_dist": "normal",
            "seed": 1,
            "git_dirty": False,
        }
        row.update(cells)
        self.rows.append(row)
        return row

    def curve(self, backend: str, law: Law, sizes: Iterable[int] = SQRT2, **cells: Value) -> None:
        """One `ok` point per size, taking law(n) seconds."""
        for n in sizes:
            self.point(backend, n, law(n), cells)

    def write(self, folder: Path) -> Path:
        """Writes results.csv, samples.csv and run.json."""
        folder.mkdir(parents=True, exist_ok=True)
        results = [[_text(row.get(c)) for c in RESULT_COLUMNS] for row in self.rows]
        _write(folder / "results.csv", list(RESULT_COLUMNS), results)
        _write(folder / "samples.csv", SAMPLE_COLUMNS, [[_text(v) for v in x] for x in self.lines])
        (folder / "run.json").write_text(json.dumps(self.json(), indent=1), encoding="utf-8")
        return folder

    def table(self) -> Table:
        """The same run without a file, for tests that need many."""
        samples: dict[str, list[Sample]] = {}
        for line in self.lines:
            if line[2] == "sample":
                process, number, seconds = line[3], line[4], line[6]
                assert isinstance(process, int)
                assert isinstance(number, int)
                assert isinstance(seconds, float)
                samples.setdefault(str(line[1]), []).append(Sample(process, number, seconds))
        points = [
            Point(
                i, {c: row.get(c, "" if k == "text" else None) for c, k in RESULT_COLUMNS.items()}
            )
            for i, row in enumerate(self.rows, start=2)
        ]
        frozen = {k: tuple(v) for k, v in samples.items()}
        return Table(Path("nowhere"), tuple(points), frozen, 0, {}, self.json(), ())

    def json(self) -> Mapping[str, object]:
        """The run's description."""
        return {
            "schema_version": 1,
            "run_id": "r",
            "argv": ["attnbench", "run"],
            "started_utc": "2026-01-02T03:04:05Z",
            "finished_utc": "2026-01-02T03:09:05Z",
            "interrupted": False,
            "build_id": "b1",
            "env_id": "e1",
            "git_sha": "0123456789abcdef",
            "git_dirty": False,
            "machine": {
                "cpu_model": "Synthetic CPU",
                "cores": 2,
                "cpus": [0, 1],
                "l1d_bytes": 32768,
                "l2_bytes": 1 << 20,
                "llc_bytes": self.llc_bytes,
                "llc_total_bytes": self.llc_bytes,
                "memory_total_bytes": 8 << 30,
                "governor": "",
                "os": "Linux",
                "limits": {},
            },
            "compiler": {"toolchain": "GNU 12.2.0", "flags": {"cpu": "-O3", "blas": "-O3"}},
            "blas": {
                "name": "OpenBLAS",
                "version": "0.3.21",
                "core": "Zen",
                "parallel": "openmp",
                "threads": 2,
            },
            "cuda": None,
            "roofs": self.roofs,
            "noise": {},
        }


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    path.write_text(buffer.getvalue(), encoding="utf-8", newline="")


def core_bytes(n: int, batch: int = 1, heads: int = 1, heads_kv: int = 1) -> int:
    """Bytes of q, k, v and out of f32 core attention with heads of 64."""
    return 4 * 64 * n * batch * 2 * (heads + heads_kv)


def core_cells(backend: str, n: int, heads: int = 1, heads_kv: int = 1) -> dict[str, Value]:
    """Work and memory columns of core prefill attention with heads of 64."""
    flops = 2 * heads * n * n * 128
    scratch = {"cpu.naive": 4 * n, "cpu.online": 4 * 64, "blas.gqa": 4 * n * n * heads // heads_kv}
    size = core_bytes(n, 1, heads, heads_kv)
    return {
        "heads": heads,
        "heads_kv": heads_kv,
        "sharing": "mha" if heads == heads_kv else "mqa" if heads_kv == 1 else "gqa",
        "flops_model": flops,
        "flops_executed": flops,
        "bytes_min": size,
        "bytes_model": size + 8 * n * n * heads,
        "mem_scratch_bytes": scratch.get(backend, 4 * n * n),
        "mem_state_bytes": 0,
        "mem_tensors_bytes": size,
    }


def default_sweep(seed: int = 7, processes: int = 1) -> Run:
    """A run that looks like the default sweep on two cores, with every kind of row."""
    run = Run(
        rounds=6 if processes == 1 else 2 * processes,
        processes=processes,
        noise=Noise(sample=0.006, round=0.01, luck=0.004),
        seed=seed,
        roofs=[
            {"kind": k, "dtype": "f32", "threads": t, "value": v, "unit": u, "samples": 9}
            for k, u, values in (
                ("fma", "gflops", (110.0, 218.0)),
                ("gemm", "gflops", (98.0, 190.0)),
                ("read", "gbps", (22.0, 38.0)),
                ("triad", "gbps", (17.0, 29.0)),
            )
            for t, v in zip((1, 2), values, strict=True)
        ],
    )
    laws: dict[str, Law] = {
        "cpu.naive": lambda n: 4e-7 + 4.1e-8 * n**2,
        "cpu.online": lambda n: 6e-7 + 6.0e-8 * n**2,
        "blas.three_step": lambda n: 9e-6 + 2e-8 * n + 6.4e-9 * n**2.02,
        "blas.gqa": lambda n: 1.1e-5 + 2e-8 * n + 6.3e-9 * n**2.02,
    }
    for backend, law in laws.items():
        for n in COMPLEXITY:
            run.point(backend, n, law(n), core_cells(backend, n))
    reason = "built without the CUDA toolkit: install nvidia-cuda-toolkit and configure again"
    for backend in ("cuda.naive", "cuda.tiled"):
        for n in COMPLEXITY:
            run.row(backend, n, family="", status="unavailable", status_reason=reason)
    for backend in ("blas.three_step", "blas.gqa"):
        for heads_kv in (4, 2, 1):
            for n in DOUBLING:
                cells = core_cells(backend, n, 4, heads_kv)
                gain = 1 - 0.05 * (4 // heads_kv - 1) * (backend == "blas.gqa")
                run.point(backend, n, 2.1 * gain * laws[backend](n), {**cells, "threads": 2})
            for batch in (1, 32):
                for n in DOUBLING:
                    _decode_point(run, backend, n, batch, heads_kv)
    _layer_part(run, laws)
    return run


def _decode_point(run: Run, backend: str, n: int, batch: int, heads_kv: int) -> None:
    cache = 2 * 4 * 64 * n * heads_kv * batch
    rate = 60e9 if cache < 16 << 20 else 30e9
    share = 1.0 if backend == "blas.three_step" else heads_kv / 4 * 0.9 + 0.1
    seconds = 3e-6 + 2.5e-8 * batch + cache * 4 / heads_kv * share / rate
    flops = 2 * batch * 4 * n * 128
    run.point(
        backend,
        n,
        seconds,
        {
            "regime": "decode",
            "n_q": 1,
            "n_kv": n,
            "threads": 2,
            "batch": batch,
            "heads": 4,
            "heads_kv": heads_kv,
            "sharing": {4: "mha", 2: "gqa", 1: "mqa"}[heads_kv],
            "flops_model": flops,
            "bytes_min": cache + 2 * 4 * 256 * batch,
            "bytes_model": cache + 2 * 4 * 256 * batch,
            "mem_scratch_bytes": 4 * 4 * n,
            "mem_tensors_bytes": cache + 2 * 4 * 256 * batch,
            "mem_kv_cache_bytes": cache,
        },
    )


def _layer_part(run: Run, laws: Mapping[str, Law]) -> None:
    shape: dict[str, Value] = {"scope": "layer", "d_model": 256}
    attention = {**shape, "heads": 4, "heads_kv": 4, "output_projection": True}
    for backend, projection in (("cpu.naive", 3.2e-4), ("blas.three_step", 7e-6)):
        for n in DOUBLING:
            seconds = 4.4 * laws[backend](n) + projection * n
            tensors = 4 * (2 * n * 256 + 4 * 256 * 256)
            cells: dict[str, Value] = {**attention, "mem_tensors_bytes": tensors}
            cells["mem_scratch_bytes"] = 4 * (4 * 256 * n + n * n)
            if seconds > 10:
                row = run.row(backend, n, **cells)
                why = f"a call is predicted to take {seconds:.1f} s, more than the cut-off of 5 s"
                row.update(status="cutoff", status_reason=why)
                detail = json.dumps({"status": "cutoff", "predicted_s": seconds})
                run.lines.append(
                    ["r", row["point_id"], "check", 0, None, None, None, None, None, detail]
                )
                continue
            run.point(backend, n, seconds, cells)
    for folder, flop_time in (("cpu", 4.5e-10), ("blas", 6e-11)):
        for family, work in (("rnn", 4), ("lstm", 16)):
            for n in COMPLEXITY:
                run.point(
                    f"{folder}.{family}",
                    n,
                    2e-6 + n * (work * 256**2 * flop_time + 2e-6),
                    dict(
                        family=family,
                        sharing="",
                        causal=None,
                        heads=None,
                        heads_kv=None,
                        head_dim=None,
                        head_dim_v=None,
                        scale=None,
                        mem_scratch_bytes=4 * 5 * 256,
                        mem_tensors_bytes=4 * (2 * n * 256 + 2 * work // 4 * 256 * 256),
                        **shape,
                    ),
                )
