# SPDX-License-Identifier: MIT
"""Peers of child_test.cpp: one that is right, and those that fail each in its own way."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "impls" / "support"))

import numpy as np

import peer_child
from peer_child import Array, Peer


class Honest(Peer):
    """Attention in NumPy."""

    def call(self) -> Array:
        p, t = self.problem, self.tensors
        k, v = (np.repeat(a, p.heads // p.heads_kv, axis=1) for a in (t.k, t.v))
        weights = np.exp(p.scale * t.q @ k.transpose(0, 1, 3, 2))
        out: Array = weights / weights.sum(-1, keepdims=True) @ v
        return out

    def deliver(self, result: Array) -> None:
        self.tensors.out[...] = result


class TokenMajor(Honest):
    """The same with its tensors the other way round."""

    token_major = True

    def __init__(self, p: peer_child.Problem, t: peer_child.Tensors) -> None:
        super().__init__(p, t)
        for name, heads in (("q", p.heads), ("k", p.heads_kv), ("v", p.heads_kv), ("out", p.heads)):
            tensor: Array = getattr(t, name)
            by_head = tensor.reshape(*tensor.shape[:2], heads, -1).transpose(0, 2, 1, 3)
            setattr(t, name, by_head)


class Throws(Peer):
    """A library call that fails."""

    def call(self) -> None:
        raise ValueError("a sentence\nof two lines")


class Dies(Peer):
    """A library that ends its process."""

    def call(self) -> None:
        print("said first", file=sys.stderr)
        print("said last", file=sys.stderr, flush=True)
        os._exit(3)


class Hangs(Peer):
    """A call that does not end."""

    def call(self) -> None:
        time.sleep(3600)


peer_child.PEERS.update(
    {
        "test.honest": Honest,
        "test.token_major": TokenMajor,
        "test.throws": Throws,
        "test.dies": Dies,
        "test.hangs": Hangs,
    }
)

if __name__ == "__main__":
    peer_child.main()
