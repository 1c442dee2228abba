# SPDX-License-Identifier: MIT
"""attnbench calc as a reader meets it: the lesson's numbers, the presets, the worked examples."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from binary import attnbench, refused

# Query heads and KV heads as the lesson names them.
NAMED = {
    "vaswani-base": (8, 8),
    "bert-base": (12, 12),
    "gpt-3": (96, 96),
    "llama2-70b": (64, 8),
    "llama3-8b": (32, 8),
    "llama3-70b": (64, 8),
    "mistral-7b": (32, 8),
    "mixtral-8x7b": (32, 8),
    "gemma-7b": (16, 16),
}
CALCULATORS = ("params", "cache", "flops", "crossover")


def calc(cwd: Path, *words: str) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = json.loads(attnbench(cwd, "calc", *words, "--json").out)
    return answers


def example(cwd: Path, *words: str) -> dict[str, Any]:
    steps: dict[str, Any] = json.loads(attnbench(cwd, "calc", "example", *words, "--json").out)
    return steps


# ---- the models ----------------------------------------------------------------------------------


def test_every_model_of_the_lesson_is_a_preset(tmp_path: Path) -> None:
    answers = calc(tmp_path, "params", "--preset", ",".join(NAMED))
    assert {a["preset"]: (a["heads"], a["heads_kv"]) for a in answers} == NAMED
    by_name = {a["preset"]: a for a in answers}
    assert by_name["gpt-3"]["layers"] == 96
    bert = by_name["bert-base"]
    assert [bert[k] for k in ("d_model", "head_dim", "layers")] == [768, 64, 12]
    vaswani = by_name["vaswani-base"]
    assert [vaswani[k] for k in ("d_model", "head_dim", "layers")] == [512, 64, 6]
    assert by_name["gemma-7b"]["head_dim"] == 256


def test_a_model_has_a_source_and_layers(tmp_path: Path) -> None:
    listed = json.loads(attnbench(tmp_path, "list", "presets", "--json").out)["presets"]
    models = [p for p in listed if "layers" in p]
    assert {p["name"] for p in models} == set(NAMED) | {"palm-540b"}
    for model in models:
        assert model["layers"] > 1
        assert re.search(
            r"arXiv:\d{4}\.\d{5}|github\.com/|config\.json|params\.json", model["source"]
        )


def test_the_total_of_a_published_model_leaves_room_for_the_rest(tmp_path: Path) -> None:
    # The attention of a model is a part of it, and no small one.
    billions = {"gpt-3": 175, "llama2-70b": 70, "llama3-8b": 8, "gemma-7b": 8.5, "palm-540b": 540}
    for answer in calc(tmp_path, "params", "--preset", ",".join(billions)):
        share = answer["model"]["parameters"] / (1e9 * billions[answer["preset"]])
        assert 0.08 < share < 0.4, answer["preset"]


# ---- the lesson's numbers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d_model", "d_k", "parameters", "megabytes"),
    [
        (512, 64, "98 304", "0.197 MB"),
        (768, 64, "147 456", "0.295 MB"),
        (4096, 128, "1 572 864", "3.146 MB"),
    ],
)
def test_parameters_of_one_head(
    tmp_path: Path, d_model: int, d_k: int, parameters: str, megabytes: str
) -> None:
    words = ["--d-model", str(d_model), "--heads", "1", "--head-dim", str(d_k)]
    text = attnbench(tmp_path, "calc", "params", *words, "--output-projection", "false").out
    (line, again) = (x for x in text.splitlines() if "W_Q, W_K and W_V" in x)
    assert line == again, "one head is the whole layer"
    assert re.split(r"  +", line.strip())[1:][0] == parameters
    assert line.endswith(megabytes)


def test_causal_and_bidirectional_differ_by_half(tmp_path: Path) -> None:
    full, causal = calc(
        tmp_path, "flops", "--preset", "lesson", "--causal", "both", "--n", "2k,32k"
    )
    for a, b in zip(full["flops"], causal["flops"], strict=True):
        n = a["n"]
        assert a["core"] * (n + 1) == b["core"] * 2 * n
        assert a["projections"] == b["projections"]
    assert full["flops"][1]["core"] == 256 * full["flops"][0]["core"]


# ---- text ----------------------------------------------------------------------------------------


def test_every_answer_fits_a_terminal(tmp_path: Path) -> None:
    names = ",".join([*NAMED, "palm-540b", "lesson"])
    texts = [attnbench(tmp_path, "calc", c, "--preset", names).out for c in CALCULATORS]
    texts += [attnbench(tmp_path, "calc", "example", m).out for m in ("M9", "M10")]
    texts.append(attnbench(tmp_path, "calc", "--help").out)
    for line in itertools.chain.from_iterable(text.splitlines() for text in texts):
        assert len(line) <= 100, line
        assert line == line.rstrip(), line


@pytest.mark.parametrize("command", [*CALCULATORS, "example"])
def test_help_teaches(tmp_path: Path, command: str) -> None:
    assert "--json" in attnbench(tmp_path, "calc", command, "--help").out
    for line in attnbench(tmp_path, "calc", "--help").out.splitlines():
        if line.startswith("  attnbench calc ") and "--" in line:
            attnbench(tmp_path, *line.split()[1:])


def test_bad_words_are_exit_2(tmp_path: Path) -> None:
    assert "the nearest is crossover" in refused(tmp_path, "calc", "crosover", "--preset", "lesson")
    assert "the nearest is llama3-8b" in refused(tmp_path, "calc", "cache", "--preset", "lama3-8b")
    assert "palm-540b" in refused(tmp_path, "calc", "params", "--preset", "palm-2")
    assert "--n" in refused(tmp_path, "calc", "flops", "--preset", "lesson", "--n", "many")
    assert "calc" in refused(tmp_path, "calc")
    assert "--seed" in refused(tmp_path, "calc", "example", "M10", "--seed", "-1")
    assert not list(tmp_path.iterdir())


# ---- the worked examples -------------------------------------------------------------------------


def check_steps(steps: dict[str, Any]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Every step once more with numpy, from X and the weights."""
    m = {k: np.array(v, dtype=np.float64) for k, v in steps.items() if isinstance(v, list)}
    q, k, v = (m["x"] @ m[w] for w in ("w_q", "w_k", "w_v"))
    s = q @ k.T
    logits = s / np.sqrt(q.shape[1])
    if steps["causal"]:
        logits = np.where(np.tri(len(s)) == 1, logits, -np.inf)
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    a = e / e.sum(axis=1, keepdims=True)
    for name, expected in {"q": q, "k": k, "v": v, "s": s, "a": a, "z": a @ v}.items():
        np.testing.assert_allclose(m[name], expected, rtol=0, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(m["a"].sum(axis=1), 1, rtol=0, atol=1e-15)
    assert steps["reference_difference"] <= 1e-12
    return m


def test_the_hand_calculation_agrees_with_numpy(tmp_path: Path) -> None:
    m = check_steps(example(tmp_path, "M9"))
    shapes = {k: m[k].shape for k in ("x", "w_q", "q", "a", "z")}
    assert shapes == {"x": (3, 4), "w_q": (4, 2), "q": (3, 2), "a": (3, 3), "z": (3, 2)}
    for name in ("x", "w_q", "w_k", "w_v", "q", "k", "v", "s"):
        assert (m[name] == m[name].round()).all(), name
        assert (abs(m[name]) <= 3).all(), name
    text = attnbench(tmp_path, "calc", "example", "M9").out
    for row in m["z"]:
        assert f"[ {row[0]:.4f} {row[1]:.4f} ]" in text


@pytest.mark.parametrize("seed", ["1", "7", "18446744073709551615"])
def test_the_demo_agrees_with_numpy_and_with_its_print(tmp_path: Path, seed: str) -> None:
    m = check_steps(example(tmp_path, "M10", "--seed", seed))
    assert m["x"].shape == (10, 64)
    assert m["w_k"].shape == (64, 16)
    assert m["a"].shape == (10, 10)
    assert m["z"].shape == (10, 16)
    assert (m["a"][np.triu_indices(10, 1)] == 0).all()
    assert (m["a"][np.tril_indices(10)] > 0).all()
    np.testing.assert_array_equal(m["z"][0], m["v"][0])
    text = attnbench(tmp_path, "calc", "example", "M10", "--seed", seed).out
    lines = [x.split() for x in text.splitlines() if re.match(r" {4}\d ", x)]
    printed = np.array([[float(cell) for cell in line[1:12]] for line in lines])
    np.testing.assert_allclose(printed[:, :10], m["a"], rtol=0, atol=0.00051)
    assert (printed[:, 10] == 1).all()
    assert all(cell == "0" for i, line in enumerate(lines) for cell in line[i + 2 : 11])


def test_another_seed_is_another_demo(tmp_path: Path) -> None:
    first = attnbench(tmp_path, "calc", "example", "M10").out
    assert attnbench(tmp_path, "calc", "example", "M10", "--seed", "1").out == first
    assert attnbench(tmp_path, "calc", "example", "M10", "--seed", "2").out != first
