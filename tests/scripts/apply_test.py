# SPDX-License-Identifier: MIT
"""attnbench apply: NumPy arrays in, softmax attention out; float64 is the truth."""

import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from binary import ROOT, attnbench, binary, environment, german_locale, refused

Array = NDArray[Any]

NAIVE = "cpu.naive"


def softmax_attention(
    q: Array, k: Array, v: Array, *, causal: bool = False, scale: float | None = None
) -> tuple[Array, Array]:
    """out and weights of tensors [..., heads, tokens, dim] or [tokens, dim], in float64."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    if q.ndim > 2:
        group = q.shape[-3] // k.shape[-3]
        k, v = (np.repeat(array, group, axis=-3) for array in (k, v))
    n_q, n_kv = q.shape[-2], k.shape[-2]
    with np.errstate(invalid="ignore"):
        scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        hidden = np.arange(n_kv)[None, :] > np.arange(n_q)[:, None] + n_kv - n_q
        scores = np.where(hidden, -np.inf, scores)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return weights @ v, weights


def normal(seed: int, *shape: int) -> Array:
    """Reproducible N(0, 1) in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def save(folder: Path, **arrays: Array) -> None:
    """Each under its name."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def words(backend: str = NAIVE, *more: str, out: str = "z.npy") -> list[str]:
    """The words of an apply of q.npy, k.npy and v.npy."""
    files = ["--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", out]
    return ["apply", backend, *files, *more]


def close(z: Array, truth: Array, tolerance: float = 2e-6) -> None:
    """|z - truth| <= tolerance * RMS."""
    assert z.shape == truth.shape
    assert z.dtype == np.float32
    assert not np.isfortran(z)
    bound = tolerance * max(1e-30, float(np.sqrt(np.mean(truth**2))) if truth.size else 1.0)
    assert np.max(np.abs(z - truth), initial=0.0) <= bound


@pytest.fixture(scope="module")
def listed() -> list[str]:
    """Every attention backend of ours that runs here."""
    found = json.loads(attnbench(Path.cwd(), "list", "--json").out)["backends"]
    return [
        str(entry["name"])
        for entry in found
        if entry["runs"] and not entry["peer"] and entry["family"] == "attention"
    ]


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory, listed: list[str]) -> list[str]:
    """Those that take f32 tensors of any size."""
    folder = tmp_path_factory.mktemp("many_queries")
    save(folder, q=normal(1, 40, 8), k=normal(2, 40, 8), v=normal(3, 40, 8))
    names = [name for name in listed if attnbench(folder, *words(name), code=None).code != 4]
    assert NAIVE in names
    return names


# ---- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("batch", "heads", "heads_kv", "n_q", "n_kv", "d_v"),
    [
        ((), (), (), 9, 9, 8),
        ((), (4,), (2,), 9, 33, 5),
        ((), (4,), (1,), 33, 9, 8),
        ((3,), (2,), (2,), 1, 17, 11),
    ],
)
def test_every_rank_and_backend(
    tmp_path: Path,
    backends: list[str],
    batch: tuple[int, ...],
    heads: tuple[int, ...],
    heads_kv: tuple[int, ...],
    n_q: int,
    n_kv: int,
    d_v: int,
    causal: bool,
) -> None:
    q = normal(1, *batch, *heads, n_q, 8)
    k = normal(2, *batch, *heads_kv, n_kv, 8)
    v = normal(3, *batch, *heads_kv, n_kv, d_v)
    save(tmp_path, q=q, k=k, v=v)
    truth, _ = softmax_attention(q, k, v, causal=causal)
    for backend in backends:
        ended = attnbench(tmp_path, *words(backend, *(["--causal"] if causal else [])))
        close(np.load(tmp_path / "z.npy"), truth)
        assert ended.err == ""
        line = f"{backend}: q {q.shape}, k {k.shape}, v {v.shape}, f32, "
        assert ended.out.startswith(line), ended.out
        assert ("causal" if causal else "no mask") in ended.out
        assert ended.out.endswith(f" -> z.npy {truth.shape}\n")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8"])
def test_every_type_and_order(tmp_path: Path, dtype: str, order: Any) -> None:
    q, k, v = (
        np.asarray(normal(seed, 2, 5, 4), dtype=np.dtype(dtype), order=order) for seed in (1, 2, 3)
    )
    save(tmp_path, q=q, k=k, v=v)
    assert np.load(tmp_path / "q.npy").dtype.str == dtype
    err = attnbench(tmp_path, *words()).err
    close(np.load(tmp_path / "z.npy"), softmax_attention(q, k, v)[0])
    found = [f"float{8 * int(dtype[2])}"]
    found += ["Fortran order"] if order == "F" else []
    found += ["big-endian"] if dtype[0] == ">" else []
    said = f"{', '.join(found)}, converted to float32 in C order\n"
    plain = dtype == "<f4" and order == "C"
    assert err == ("" if plain else "".join(f"attnbench: note: {t}: {said}" for t in "qkv"))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_format_version(tmp_path: Path, version: tuple[int, int]) -> None:
    q, k, v = (normal(seed, 5, 4) for seed in (1, 2, 3))
    for name, array in (("q", q), ("k", k), ("v", v)):
        with (tmp_path / f"{name}.npy").open("wb") as file:
            np.lib.format.write_array(file, array, version=version)
    attnbench(tmp_path, *words())
    close(np.load(tmp_path / "z.npy"), softmax_attention(q, k, v)[0])


def test_weights(tmp_path: Path, backends: list[str]) -> None:
    q, k, v = normal(1, 4, 9, 8), normal(2, 2, 21, 8), normal(3, 2, 21, 8)
    save(tmp_path, q=q, k=k, v=v)
    truth, weights = softmax_attention(q, k, v, causal=True)
    offered = 0
    for backend in backends:
        (tmp_path / "a.npy").unlink(missing_ok=True)
        arguments = words(backend, "--causal", "--weights", "a.npy")
        ended = attnbench(tmp_path, *arguments, code=None)
        if ended.code == 4:
            assert backend in ended.err
            assert NAIVE in ended.err
            assert "--weights" in ended.err
            assert not (tmp_path / "a.npy").exists()
            continue
        assert ended.code == 0
        offered += 1
        a = np.load(tmp_path / "a.npy")
        close(a, weights)
        close(np.load(tmp_path / "z.npy"), truth)
        assert np.allclose(a.sum(axis=-1), 1, atol=1e-6)
        assert (a[:, np.arange(21)[None, :] > np.arange(9)[:, None] + 12] == 0).all()
        assert ended.out.endswith(f"z.npy {truth.shape}, a.npy {weights.shape}\n")
    assert offered >= 1


def test_scale(tmp_path: Path, backends: list[str]) -> None:
    q, k, v = normal(1, 2, 19, 16), normal(2, 2, 19, 16), normal(3, 2, 19, 16)
    save(tmp_path, q=q, k=k, v=v)
    for backend in backends:
        for text in ("-0.5", "1", "0", "-0.0", "1e-3", "1e-60"):
            attnbench(tmp_path, *words(backend, "--scale", text))
            truth, _ = softmax_attention(q, k, v, scale=float(text))
            close(np.load(tmp_path / "z.npy"), truth, 1e-5)
        attnbench(tmp_path, *words(backend, "--scale=0"))
        mean = np.broadcast_to(v.mean(axis=-2, keepdims=True, dtype=np.float64), v.shape)
        close(np.load(tmp_path / "z.npy"), mean)
        attnbench(tmp_path, *words(backend, "--causal"))
        assert np.array_equal(np.load(tmp_path / "z.npy")[:, 0], v[:, 0]), "row 0 sees v_0 alone"


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "0,5", "", "half", "1e39", "1e400", "1 "])
def test_scale_is_refused_by_name(tmp_path: Path, text: str) -> None:
    save(tmp_path, q=normal(1, 3, 4), k=normal(2, 3, 4), v=normal(3, 3, 4))
    assert "--scale" in refused(tmp_path, *words(NAIVE, "--scale", text))
    assert not (tmp_path / "z.npy").exists()


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((1, 2, 3, 8), (1, 2, 0, 8), (1, 2, 0, 8)),
        ((0, 2, 3, 8), (0, 2, 4, 8), (0, 2, 4, 8)),
        ((1, 4, 0, 8), (1, 2, 4, 8), (1, 2, 4, 8)),
        ((2, 3, 8), (2, 4, 8), (2, 4, 0)),
        ((0, 8), (0, 8), (0, 8)),
    ],
)
def test_empty_axes(
    tmp_path: Path,
    backends: list[str],
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
) -> None:
    save(tmp_path, q=normal(1, *q), k=normal(2, *k), v=normal(3, *v))
    for backend in backends:
        for mask in ([], ["--causal"]):
            attnbench(tmp_path, *words(backend, *mask))
            z = np.load(tmp_path / "z.npy")
            assert z.shape == (*q[:-1], v[-1])
            assert (z == 0).all()
    attnbench(tmp_path, *words(NAIVE, "--weights", "a.npy"))
    assert np.load(tmp_path / "a.npy").shape == (*q[:-1], k[-2])


def test_what_is_not_finite_goes_through_and_is_counted(
    tmp_path: Path, backends: list[str]
) -> None:
    q, k, v = normal(1, 40, 8), normal(2, 40, 8), normal(3, 40, 8)
    k[30:] = np.nan
    v[30:] = np.inf
    save(tmp_path, q=q, k=k, v=v)
    truth, _ = softmax_attention(q[:30], k[:30], v[:30], causal=True)
    for backend in backends:
        err = attnbench(tmp_path, *words(backend, "--causal")).err
        z = np.load(tmp_path / "z.npy")
        close(z[:30], truth)
        assert np.isnan(z[30:]).all()
        assert err == "attnbench: note: 80 of the 320 elements of z.npy are not finite\n"


def test_threads(tmp_path: Path, backends: list[str]) -> None:
    q, k, v = normal(1, 2, 77, 32), normal(2, 2, 77, 32), normal(3, 2, 77, 32)
    save(tmp_path, q=q, k=k, v=v)
    for backend in backends:
        for threads in ("1", "all"):
            seen = set()
            for _ in range(3):
                attnbench(tmp_path, *words(backend, "--threads", threads))
                seen.add((tmp_path / "z.npy").read_bytes())
            assert len(seen) == 1, f"{backend} on {threads} threads"
    one = attnbench(tmp_path, *words(NAIVE, "--threads", "2"))
    assert one.err == "attnbench: note: cpu.naive is not threaded; it runs on one thread\n"
    assert ", 1 thread ->" in one.out
    assert attnbench(tmp_path, *words(NAIVE, "--threads", "1")).err == ""
    threaded = [b for b in backends if ", 1 thread" not in attnbench(tmp_path, *words(b)).out]
    for backend in threaded:
        many = attnbench(tmp_path, *words(backend, "--threads", "100000"))
        assert "100000 asks for more than the" in many.err
    for text in ("0", "-1", "some", "1,2", "", "1.5"):
        assert "--threads" in refused(tmp_path, *words(NAIVE, f"--threads={text}"))


def test_locale_changes_nothing(tmp_path: Path) -> None:
    save(tmp_path, q=normal(1, 3, 4), k=normal(2, 3, 4), v=normal(3, 3, 4))
    plain = attnbench(tmp_path, *words(NAIVE, "--scale", "0.5"))
    bits = (tmp_path / "z.npy").read_bytes()
    german = german_locale(tmp_path)
    there = attnbench(tmp_path, *words(NAIVE, "--scale", "0.5"), env=german)
    assert there == plain
    assert (tmp_path / "z.npy").read_bytes() == bits


# ---- what does not fit ---------------------------------------------------------------------------

# (shapes of q, k and v, what the sentence must hold)
MISFITS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], list[str]]] = [
    ((3, 6, 8), (2, 6, 8), (2, 6, 8), ["q has 3 heads", "k has 2", "multiple"]),
    ((2, 6, 8), (4, 6, 8), (4, 6, 8), ["q has 2 heads", "k has 4", "multiple"]),
    ((4, 6, 8), (0, 6, 8), (0, 6, 8), ["k has 0 heads"]),
    ((0, 6, 8), (2, 6, 8), (2, 6, 8), ["q has 0 heads"]),
    ((4, 6, 8), (2, 6, 8), (4, 6, 8), ["heads", "k has 2", "v has 4"]),
    ((2, 6, 8), (2, 9, 8), (2, 8, 8), ["tokens", "k has 9", "v has 8"]),
    ((2, 6, 8), (2, 6, 16), (2, 6, 16), ["head_dim", "q has 8", "k has 16"]),
    ((2, 3, 0), (2, 4, 0), (2, 4, 8), ["head_dim 0"]),
    ((2, 1, 9, 8), (1, 1, 9, 8), (1, 1, 9, 8), ["batch", "q has 2", "k has 1"]),
    ((2, 1, 9, 8), (2, 1, 9, 8), (1, 1, 9, 8), ["batch", "k has 2", "v has 1"]),
    ((9, 8), (1, 9, 8), (1, 9, 8), ["axes", "q has 2", "k has 3"]),
    ((9, 8), (9, 8), (1, 9, 8), ["axes", "q has 2", "v has 3"]),
]


@pytest.mark.parametrize(("q", "k", "v", "held"), MISFITS)
def test_tensors_that_do_not_fit(
    tmp_path: Path,
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
    held: list[str],
) -> None:
    save(tmp_path, q=normal(1, *q), k=normal(2, *k), v=normal(3, *v))
    sentence = refused(tmp_path, *words())
    for text in held:
        assert text in sentence, sentence
    assert not (tmp_path / "z.npy").exists()


def test_files_that_are_no_tensors(tmp_path: Path) -> None:
    save(tmp_path, q=normal(1, 3, 4), k=normal(2, 3, 4), v=normal(3, 3, 4))
    arrays: list[tuple[Array, str]] = [
        (np.ones((3, 4), dtype=np.int64), "int64"),
        (np.ones((3, 4), dtype=np.complex64), "complex64"),
        (np.ones((3, 4), dtype=np.bool_), "bool"),
        (np.full((3, 4), "a"), "unicode"),
        (np.ones((3, 4), dtype=[("a", "<f4"), ("b", "<f4")]), "structured"),
        (np.ones(4, dtype=np.float32), "1 axes"),
        (np.array(1, dtype=np.float32), "0 axes"),
        (np.ones((1, 1, 1, 3, 4), dtype=np.float32), "5 axes"),
        (np.full((3, 4), 1e39), "1e+39"),
    ]
    for array, name in arrays:
        np.save(tmp_path / "k.npy", array)
        sentence = refused(tmp_path, *words())
        assert "--k k.npy" in sentence
        assert name in sentence
    np.save(tmp_path / "k.npy", np.array([[None]]), allow_pickle=True)
    assert "object" in refused(tmp_path, *words())


def test_files_that_are_no_npy(tmp_path: Path) -> None:
    save(tmp_path, q=normal(1, 3, 4), k=normal(2, 3, 4), v=normal(3, 3, 4))
    good = (tmp_path / "v.npy").read_bytes()
    np.savez(tmp_path / "archive.npz", v=np.ones((3, 4)))
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        huge, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**20)}
    )
    bad = [b"", good[:50], good[:-1], good + b"\0", b"1,2\n3,4\n", huge.getvalue()]
    for content in [*bad, (tmp_path / "archive.npz").read_bytes()]:
        (tmp_path / "v.npy").write_bytes(content)
        assert "--v v.npy" in refused(tmp_path, *words(), code=6)
    (tmp_path / "v.npy").unlink()
    assert "v.npy: No such file" in refused(tmp_path, *words(), code=6)
    (tmp_path / "v.npy").mkdir()
    assert "v.npy" in refused(tmp_path, *words(), code=6)
    assert not (tmp_path / "z.npy").exists()


def test_usage(tmp_path: Path) -> None:
    save(tmp_path, q=normal(1, 3, 4), k=normal(2, 3, 4), v=normal(3, 3, 4))
    assert "cpu.naive" in refused(tmp_path, *words("cpu.nave"))
    assert "cpu.*" in refused(tmp_path, *words("cpu.*"))
    for missing in ("--q", "--k", "--v", "--out"):
        given = words()
        at = given.index(missing)
        assert missing in refused(tmp_path, *given[:at], *given[at + 2 :])
    assert "--weights and --out" in refused(tmp_path, *words(NAIVE, "--weights", "./z.npy"))
    assert "recurrence" in refused(tmp_path, *words("cpu.rnn"), code=4)
    text = attnbench(tmp_path, "apply", "--help").out
    assert "attnbench apply blas.gqa --q q.npy" in text
    assert "--scale" in text


def test_memory_is_predicted(tmp_path: Path) -> None:
    """A score matrix of 4 n^2 = 4 * 10^14 bytes, from files of 80 MB."""
    tall = np.lib.format.open_memmap(
        tmp_path / "q.npy", mode="w+", dtype=np.float32, shape=(10_000_000, 1)
    )
    tall.flush()
    for name in ("k", "v"):
        os.link(tmp_path / "q.npy", tmp_path / f"{name}.npy")
    sentence = refused(tmp_path, *words(), code=4)
    assert "4000000" in sentence
    assert "available memory" in sentence


# ---- where the output goes -----------------------------------------------------------------------


def test_names_with_spaces_and_beyond_ascii(tmp_path: Path) -> None:
    folder = tmp_path / "größe π"
    folder.mkdir()
    save(folder, q=normal(1, 3, 4), k=normal(2, 3, 4), v=normal(3, 3, 4))
    names = [str(folder / f"{name}.npy") for name in "qkv"]
    out = str(folder / "ergebnis 1.npy")
    arguments = ["--q", names[0], "--k", names[1], "--v", names[2], "--out", out]
    assert out in attnbench(tmp_path, "apply", NAIVE, *arguments).out
    assert np.load(out).shape == (3, 4)


def test_output_over_an_input_and_through_a_link(tmp_path: Path) -> None:
    q, k, v = normal(1, 3, 4), normal(2, 3, 4), normal(3, 3, 4)
    save(tmp_path, q=q, k=k, v=v)
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "z.npy").write_bytes(b"old")
    (tmp_path / "link.npy").symlink_to("real/z.npy")
    attnbench(tmp_path, *words(NAIVE, out="link.npy"))
    assert (tmp_path / "link.npy").is_symlink()
    truth, _ = softmax_attention(q, k, v)
    close(np.load(tmp_path / "real" / "z.npy"), truth)
    attnbench(tmp_path, *words(NAIVE, out="q.npy"))
    close(np.load(tmp_path / "q.npy"), truth)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "k.npy",
        "link.npy",
        "q.npy",
        "real",
        "v.npy",
    ]


def test_a_pipe_gets_the_array_alone(tmp_path: Path) -> None:
    q, k, v = normal(1, 3, 4), normal(2, 3, 4), normal(3, 3, 4)
    save(tmp_path, q=q, k=k, v=v)
    done = subprocess.run(
        [str(binary()), *words(out="/dev/stdout")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        check=True,
        timeout=300,
    )
    stream = io.BytesIO(done.stdout)
    close(np.load(stream), softmax_attention(q, k, v)[0])
    assert stream.read() == b""
    assert done.stderr.startswith(b"cpu.naive: ")


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    save(tmp_path, q=normal(1, 3, 4), k=normal(2, 3, 4), v=normal(3, 3, 4))
    sentence = refused(tmp_path, *words(out="/dev/full"), code=6)
    assert "/dev/full" in sentence
    assert "No space left" in sentence
    sentence = refused(tmp_path, *words(out="nowhere/z.npy"), code=6)
    assert "nowhere/z.npy: No such file" in sentence
    (tmp_path / "folder").mkdir()
    assert "directory" in refused(tmp_path, *words(out="folder"), code=6)
    sentence = refused(tmp_path, *words(NAIVE, "--weights", "nowhere/a.npy"), code=6)
    assert "nowhere/a.npy" in sentence
    assert not (tmp_path / "z.npy").exists()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)
def test_another_users_folder_and_file(tmp_path: Path) -> None:
    """Found before the work; root's own permissions would hide it."""
    for folder in (tmp_path, *tmp_path.parents):
        if not os.stat(folder).st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o011)
    save(tmp_path, q=normal(1, 3, 4), k=normal(2, 3, 4), v=normal(3, 3, 4))
    tmp_path.chmod(0o755)
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    (open_folder / "z.npy").write_bytes(b"old")
    for out in ("z.npy", "open/z.npy"):
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--clear-groups", str(binary()), *words(out=out)],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=300,
        )
        if "setpriv" in done.stderr:
            pytest.skip(done.stderr)
        assert done.returncode == 6, done.stderr
        assert f"cannot write {out}: Permission denied" in done.stderr
    assert (open_folder / "z.npy").read_bytes() == b"old"
    assert not (tmp_path / "z.npy").exists()


# ---- scripts/cases.sh ----------------------------------------------------------------------------

CHECK = """
import sys, pathlib
import numpy as np
case = pathlib.Path(__file__).parent / sys.argv[1]
if sys.argv[2] == "--refused":
    sys.exit(sys.argv[3] != "2" or "head" not in open(sys.argv[4]).read())
expect = np.load(case / "expect.npy")
ok = np.allclose(np.load(sys.argv[2]), expect, atol=1e-5)
print("PASS" if ok else "FAIL " + case.name + ": not what is expected")
sys.exit(not ok)
"""


def make_case(folder: Path, name: str, k_heads: int, *more: str, wrong: bool = False) -> None:
    """A case of causal attention on [2, 40, 4]; `k_heads` that do not divide 2 must be refused."""
    (folder / name).mkdir(parents=True)
    q, k, v = normal(1, 2, 40, 4), normal(2, k_heads, 40, 4), normal(3, k_heads, 40, 4)
    save(folder / name, q=q, k=k, v=v)
    if 2 % k_heads == 0:
        expect, _ = softmax_attention(q, k, v, causal=True)
        save(folder / name, expect=expect + (1 if wrong else 0))
    line = " ".join(["attnbench", *words("BACKEND", "--causal", *more)])
    repeat = {"runs": 3, "bitwise_same": True, "threads": [1, "all"]}
    (folder / name / "meta.json").write_text(json.dumps({"apply": line, "repeat": repeat}))
    (folder / "check.py").write_text(CHECK)


def run_cases(*arguments: str) -> tuple[int, str]:
    """scripts/cases.sh with the attnbench of the tests."""
    done = subprocess.run(
        [str(ROOT / "scripts" / "cases.sh"), *arguments],
        env=environment({"ATTNBENCH": str(binary())}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
        timeout=600,
    )
    return done.returncode, done.stdout


def test_cases_sh_judges_every_backend(
    tmp_path: Path, backends: list[str], listed: list[str]
) -> None:
    folder = tmp_path / "some cases"
    make_case(folder, "good", 1)
    make_case(folder, "misfit", 3)
    make_case(folder, "weights", 2, "--weights", "/dev/null")
    code, text = run_cases(str(folder))
    assert code == 0, text
    table = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert table["case"] == listed
    takes = [name in backends for name in listed]
    assert [word == "pass" for word in table["good"]] == takes
    assert table["misfit"] == ["pass"] * len(listed)
    assert table["weights"][listed.index(NAIVE)] == "pass"
    assert table["weights"][listed.index("cpu.online")] == "refused"
    assert "cpu.online keeps no probabilities" in text

    make_case(folder, "wrong", 1, wrong=True)
    code, text = run_cases(str(folder), "--only", "wr*")
    assert code == 1
    refused_it = len(listed) - len(backends)
    assert f"cases: 0 pass, {refused_it} refused, {len(backends)} FAIL" in text
    assert f"FAIL  wrong  {NAIVE}: not what is expected" in text
    assert run_cases()[0] == run_cases(str(tmp_path))[0] == 2
    assert run_cases(str(folder), "--only", "none")[0] == 2
