# SPDX-License-Identifier: MIT
"""Which curves belong into one plot or table: the parts of a sweep, found from its columns."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from attnplot.curves import Curve, table_curves
from attnplot.palette import order
from attnplot.table import SHAPE_WITHOUT_N, Point, Table

DEFAULT_BASELINE = "blas.three_step"
# Curves of one panel share these; the device may differ, it is part of what is compared.
_PANEL = ("threads", *SHAPE_WITHOUT_N)
_LAYER = ("threads", "batch", "d_model", "dtype")


class SelectionError(Exception):
    """A name that the run does not hold (exit 2)."""


@dataclass(frozen=True)
class Status:
    """Why points of one curve have no time: one status and reason, and the n_kv it holds for."""

    backend: str
    part: str
    status: str
    reason: str
    n: tuple[int, ...]


def by_backend(found: Iterable[Curve]) -> list[Curve]:
    """Curves in the fixed order of backends, then MHA before GQA before MQA, then by key."""
    return sorted(
        found, key=lambda c: (order(c.backend), -(c.first.integer("heads_kv") or 0), c.key)
    )


def complexity(table: Table) -> list[Curve]:
    """Core prefill curves of one shape, those without a measured point included.

    Of several shapes the one with the most points measured on one thread is taken, bidirectional
    and batch 1 before others; on a tie the one with fewer heads. A backend that was measured at
    several thread counts stands there with the fewest.
    """
    group = _largest(
        (c for c in table_curves(table) if _is(c, "core", "prefill")),
        SHAPE_WITHOUT_N,
        lambda g: (
            g[0].first.text("causal") != "true",
            g[0].first.text("batch") == "1",
            sum(len(c.measured) for c in g if c.first.text("threads") == "1"),
            sum(len(c.measured) for c in g),
            -(g[0].first.integer("heads") or 0),
        ),
    )
    kept: dict[tuple[str, str], Curve] = {}
    for curve in sorted(_warm(group), key=lambda c: c.first.integer("threads") or 0):
        name = (curve.backend, curve.first.text("device"))
        if name not in kept or (curve.measured and not kept[name].measured):
            kept[name] = curve
    return by_backend(kept.values())


def sharing(table: Table) -> list[Curve]:
    """Core prefill curves of one shape at two or more heads_kv, measured ones only."""
    columns = [c for c in _PANEL if c != "heads_kv"]
    several = _several_heads_kv(
        (c for c in table_curves(table) if _is(c, "core", "prefill") and c.measured), columns
    )
    return by_backend(_warm(_largest(several, columns, _measured)))


def decode(table: Table) -> list[Curve]:
    """Decode curves of one shape at every batch and heads_kv, measured ones only."""
    columns = [c for c in _PANEL if c not in ("heads_kv", "batch")]
    found = (c for c in table_curves(table) if c.first.text("regime") == "decode" and c.measured)
    return by_backend(_warm(_largest(found, columns, _measured)))


def layers(table: Table) -> list[Curve]:
    """Layer curves of one width, batch and thread count: attention and recurrences."""
    found = (c for c in table_curves(table) if _is(c, "layer", "prefill"))
    group = _largest(
        found, _LAYER, lambda g: (len({c.first.recurrent for c in g if c.measured}), *_measured(g))
    )
    return by_backend(_warm(group))


def cross(table: Table) -> list[Curve]:
    """Cross attention (n_q ≠ n_kv): a curve in n_kv for each key and n_q, measured ones only.

    Where one of its points has n_q = n_kv, that point is on it as well.
    """
    groups: dict[tuple[int, tuple[str, ...]], list[Point]] = {}
    for point in table.measured:
        n_q = point.integer("n_q")
        if point.cells["regime"] == "prefill" and n_q and point.integer("n_kv"):
            groups.setdefault((n_q, point.key_without_n), []).append(point)
    return by_backend(
        Curve(key, tuple(sorted(group, key=lambda p: p.integer("n_kv") or 0)), table.samples)
        for (_, key), group in sorted(groups.items(), key=lambda item: item[0])
        if any(p.n is None for p in group)
    )


def baseline_name(found: Sequence[Curve], wanted: str | None) -> str:
    """The backend that ratios refer to: the wanted one, else `blas.three_step`, else the first.

    Raises:
        SelectionError: the wanted backend has no measured point here.
    """
    names = list(dict.fromkeys(c.backend for c in found if c.measured))
    if wanted is None:
        return DEFAULT_BASELINE if DEFAULT_BASELINE in names else next(iter(names), "")
    if wanted not in names:
        known = ", ".join(names) or "none"
        raise SelectionError(f"--baseline {wanted}: not measured here; measured are: {known}")
    return wanted


def labels(found: Sequence[Curve]) -> list[str]:
    """A name for each curve: its backend, and what tells it from others of the same backend."""
    names = []
    threads = {c.first.text("threads") for c in found}
    for curve in found:
        name = curve.backend
        for column in ("sharing", "batch", "causal", "heads", "head_dim", "device", "cache_mode"):
            twins = {c.first.text(column) for c in found if c.backend == curve.backend}
            value = curve.first.text(column)
            if len(twins) == 1 or not value or {value, *twins} <= {"warm", "mixed", ""}:
                continue
            if column == "causal":
                name += " causal" if value == "true" else ""
            elif column in ("sharing", "device", "cache_mode"):
                name += f" {value.upper() if column == 'sharing' else value}"
            else:
                name += f" {column} {value}"
        if len(threads) > 1 and curve.first.text("threads") not in ("", "1"):
            name += f" ({curve.first.text('threads')} threads)"
        names.append(name)
    return names


def shape_text(found: Sequence[Curve]) -> str:
    """What the curves share, for a title: `1 head of 64, batch 1, 1 thread, f32`."""
    first = found[0].first
    parts = []
    heads = first.integer("heads")
    if heads is not None:
        parts.append(f"{heads} head{'' if heads == 1 else 's'} of {first.text('head_dim')}")
    parts.append(f"batch {first.text('batch')}")
    threads = {c.first.text("threads") for c in found} - {""}
    if len(threads) == 1:
        (number,) = threads
        parts.append(f"{number} thread{'' if number == '1' else 's'}")
    parts.append(first.text("dtype"))
    parts += ["causal"] if first.cells["causal"] is True else []
    return ", ".join(parts)


def statuses(table: Table) -> list[Status]:
    """Every row without a time, grouped by backend, part, status and reason."""
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for point in table.points:
        if point.status == "ok":
            continue
        part = f"{point.text('scope')} {point.text('regime')}"
        if point.n is None and point.integer("n_q") is not None:
            part += f", n_q = {point.text('n_q')}"
        key = (point.backend, part, point.status, point.text("status_reason"))
        size = point.integer("n_q") if point.integer("n_kv") is None else point.integer("n_kv")
        groups.setdefault(key, []).append(size or 0)
    found = [Status(*key, tuple(sorted(set(n)))) for key, n in groups.items()]
    return sorted(found, key=lambda s: (order(s.backend), s.part, s.n))


def _is(curve: Curve, scope: str, regime: str) -> bool:
    return curve.first.text("scope") == scope and curve.first.text("regime") == regime


def _measured(group: Sequence[Curve]) -> tuple[int]:
    return (sum(len(c.measured) for c in group),)


def _largest(
    found: Iterable[Curve],
    columns: Sequence[str],
    score: Callable[[Sequence[Curve]], tuple[int, ...]],
) -> list[Curve]:
    groups: dict[tuple[str, ...], list[Curve]] = {}
    for curve in found:
        groups.setdefault(tuple(curve.first.text(c) for c in columns), []).append(curve)
    return max(groups.values(), key=score, default=[])


def _several_heads_kv(found: Iterable[Curve], columns: Sequence[str]) -> list[Curve]:
    every = list(found)
    kinds: dict[tuple[str, ...], set[str]] = {}
    for curve in every:
        key = tuple(curve.first.text(c) for c in columns)
        kinds.setdefault(key, set()).add(curve.first.text("heads_kv"))
    return [c for c in every if len(kinds[tuple(c.first.text(x) for x in columns)]) > 1]


def _warm(group: Sequence[Curve]) -> list[Curve]:
    warm = [c for c in group if all(p.cells["cache_mode"] != "cold" for p in c.points)]
    return warm if any(c.measured for c in warm) else list(group)
