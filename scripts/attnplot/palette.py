# SPDX-License-Identifier: MIT
"""One colour, marker and line style per backend, the same in every plot of every run."""

import hashlib
from dataclasses import dataclass

# Known backends, in the order in which plots and tables list them. New names go to the end: what a
# reader has learnt about the colours of older plots stays true.
KNOWN = (
    "cpu.naive",
    "cpu.online",
    "blas.three_step",
    "blas.gqa",
    "simd.fused",
    "simd.fused_bf16",
    "simd.decode",
    "cuda.naive",
    "cuda.tiled",
    "cuda.wgmma",
    "cuda.decode_split",
    "cuda.cublas_three_step",
    "torch.sdpa",
    "onednn.sdpa",
    "cudnn.sdpa",
    "cpu.rnn",
    "cpu.gru",
    "cpu.lstm",
    "blas.rnn",
    "blas.gru",
    "blas.lstm",
    "cuda.fused",
)
# Dark enough on white for thin lines, and of different lightness where neighbours meet.
_COLOURS = (
    "#1b4f8f",
    "#d1651f",
    "#0f8a5f",
    "#a3307a",
    "#5b3fb0",
    "#b08a00",
    "#c02f3a",
    "#4a6b1e",
    "#2b8fb3",
    "#7a4a26",
    "#44546a",
    "#d4548f",
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*", "d")
_LINES = ("-", "--", "-.", (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5, 1, 1.5)))
_RECURRENT = {
    "cpu.rnn": ("#7a7a7a", "v", "--"),
    "cpu.gru": ("#6f7f3a", "P", "--"),
    "cpu.lstm": ("#303030", "s", "--"),
    "blas.rnn": ("#c98a4b", "^", "-."),
    "blas.gru": ("#8fa35a", "X", "-."),
    "blas.lstm": ("#8c2d19", "D", "-."),
}

Dash = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Style:
    """How a backend is drawn. `rank` orders plots and tables."""

    colour: str
    marker: str
    line: Dash
    rank: tuple[int, str]


def style(backend: str) -> Style:
    """The style of a backend; an unknown name gets one from its hash, the same everywhere."""
    if backend in KNOWN:
        rank = KNOWN.index(backend)
        if backend in _RECURRENT:
            colour, marker, line = _RECURRENT[backend]
            return Style(colour, marker, line, (rank, backend))
        index = rank
    else:
        rank = len(KNOWN)
        index = int.from_bytes(hashlib.sha256(backend.encode()).digest()[:4], "big")
    return Style(
        _COLOURS[index % len(_COLOURS)],
        _MARKERS[index % len(_MARKERS)],
        _LINES[index % len(_LINES)],
        (rank, backend),
    )


def order(backend: str) -> tuple[int, str]:
    """Sort key of a backend."""
    return style(backend).rank
