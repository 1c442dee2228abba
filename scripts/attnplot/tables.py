# SPDX-License-Identifier: MIT
"""Tables and sentences, computed from the fits and never typed in."""

from dataclasses import dataclass

from attnplot import selection
from attnplot.crossover import Crossover, crossover_all
from attnplot.curves import Curve, local_slopes, table_curves
from attnplot.document import Block, Bullets, Grid, Section, markdown
from attnplot.drawing import bytes_text, seconds_text
from attnplot.fit import MIN_N, Fit, fit_all
from attnplot.table import Point, Table, memory_gbps


@dataclass(frozen=True)
class Results:
    """A table with everything that is computed from it."""

    table: Table
    fits: tuple[Fit, ...]
    crossovers: tuple[Crossover, ...]
    baseline: str | None

    def fit(self, curve: Curve, quantity: str) -> Fit | None:
        """The fit of one quantity of a curve."""
        return next(
            (f for f in self.fits if f.curve.key == curve.key and f.quantity == quantity), None
        )


def analyse(table: Table, min_n: int = MIN_N, baseline: str | None = None) -> Results:
    """Computes every fit and crossover of a run."""
    return Results(table, tuple(fit_all(table, min_n)), tuple(crossover_all(table)), baseline)


def attention_table(results: Results, *, brief: bool = False) -> Grid:
    """The result table: one row per backend of the Complexity part.

    Args:
        results: the analysed run.
        brief: leave out the local slopes, the deviation and the verdict.

    Raises:
        SelectionError: the baseline is not measured.
    """
    found = selection.complexity(results.table)
    name = selection.baseline_name(found, results.baseline)
    base = next((c for c in found if c.backend == name and c.measured), None)
    header = ["backend", "time exponent [95 %]"]
    header += [] if brief else ["off the line", "local slopes", "verdict"]
    header += ["memory degree: scratch, with tensors", "time", f"time ÷ {name}'s"]
    rows = []
    for curve, label in zip(found, selection.labels(found), strict=True):
        if not curve.measured:
            why = f"{curve.first.status}: {curve.first.text('status_reason')}"
            rows.append([label, why, *[""] * (len(header) - 2)])
            continue
        fit = results.fit(curve, "time")
        cells = [label, exponent_text(fit) if brief else _number_or_none(fit)]
        if not brief:
            cells += [deviation_text(fit), slopes_text(fit), fit.verdict if fit else ""]
        cells += [degrees_text(results, curve), last_time_text(curve), ratio_text(curve, base)]
        rows.append(cells)
    return Grid(header, rows)


def exponent_text(fit: Fit | None) -> str:
    """`2.001 [1.989, 2.014]`, the slope alone without an interval, or the reason for none."""
    if fit is None:
        return ""
    if fit.exponent is None:
        return fit.verdict
    if fit.lo is None or fit.hi is None:
        return f"{fit.exponent:.3f} (no interval)"
    return f"{fit.exponent:.3f} [{fit.lo:.3f}, {fit.hi:.3f}]"


def _number_or_none(fit: Fit | None) -> str:
    # Where the verdict stands in a cell of its own, it need not be said twice.
    return "" if fit is None or fit.exponent is None else exponent_text(fit)


def deviation_text(fit: Fit | None) -> str:
    """The largest deviation from the fit in percent."""
    return "" if fit is None or fit.max_deviation is None else f"{fit.max_deviation:.1f} %"


def slopes_text(fit: Fit | None) -> str:
    """Local slopes with two decimals."""
    return "" if fit is None else " ".join(f"{s:.2f}" for s in fit.slopes)


def degrees_text(results: Results, curve: Curve) -> str:
    """Degree of the exact bytes: scratch alone, then scratch + tensors, with the leading term."""
    parts = []
    for quantity in ("mem_scratch_bytes", "mem_scratch_and_tensors_bytes"):
        fit = results.fit(curve, quantity)
        if fit is None:
            parts.append("not stated")
        elif fit.exponent is None:
            parts.append(fit.verdict)
        else:
            leading = fit.verdict.removeprefix("exactly ").split(" + ")[0].split(" − ")[0]
            parts.append(f"{fit.exponent:.0f} ({leading} B)")
    return ", ".join(parts)


def last_time_text(curve: Curve) -> str:
    """Median at the largest measured n."""
    if not curve.measured:
        return ""
    point = curve.measured[-1]
    return f"{seconds_text(point.time_s or 0.0)} at n = {point.n}{interval_mark(point)}"


def interval_mark(point: Point) -> str:
    """What a median without a 95 % interval stands on: ` (1 sample, no interval)`, else nothing."""
    if point.cells["ci95_lo_s"] is not None:
        return ""
    count = point.integer("samples")
    samples = "" if count is None else f"{count} sample{'' if count == 1 else 's'}, "
    return f" ({samples}no interval)"


def ratio_text(curve: Curve, base: Curve | None) -> str:
    """Ratio to the baseline at the largest common n, with the baseline's seconds beside it."""
    if base is None:
        return ""
    if base.key == curve.key:
        return "baseline"
    own, other = (dict(zip(*c.medians(), strict=True)) for c in (curve, base))
    common = sorted(own.keys() & other.keys())
    if not common:
        return "no common n"
    n = common[-1]
    at = "" if n == max(own) else f" at n = {n}"
    bare = any(p is not None and interval_mark(p) for p in (curve.at(n), base.at(n)))
    mark = " (no interval)" if bare else ""
    return f"{own[n] / other[n]:.2f}× of {seconds_text(other[n])}{at}{mark}"


def recurrent_table(results: Results) -> Grid:
    """Exponents of the recurrent layers."""
    found = [c for c in selection.layers(results.table) if c.first.recurrent and c.measured]
    header = ["layer", "time exponent [95 %]", "off the line", "local slopes", "verdict", "time"]
    rows = []
    for curve, label in zip(found, selection.labels(found), strict=True):
        fit = results.fit(curve, "time")
        cells = [label, _number_or_none(fit), deviation_text(fit), slopes_text(fit)]
        rows.append([*cells, fit.verdict if fit else "", last_time_text(curve)])
    return Grid(header, rows)


def layer_sentences(results: Results) -> list[str]:
    """The two-term model of each attention layer, and the slopes that it explains."""
    sentences = []
    found = [c for c in selection.layers(results.table) if not c.first.recurrent and c.measured]
    for curve, label in zip(found, selection.labels(found), strict=True):
        model = results.fit(curve, "time_model_two_term")
        if model is None or model.b is None or model.c is None:
            sentences.append(f"{label}: too few sizes for a model.")
            continue
        n, times = curve.medians()
        measured = " ".join(f"{s:.2f}" for s in local_slopes(n, times))
        takeover = f"{model.verdict}; " if model.c else "no n² term was found; "
        sentences.append(
            f"{label}: t = {seconds_text(model.b) if model.b else '0 s'} · n + "
            f"{seconds_text(model.c) if model.c else '0 s'} · n²: {takeover}local slopes from "
            f"n = {n[0]} to {n[-1]} measured {measured}, by the model {slopes_text(model)}; "
            f"largest relative residual {model.max_deviation:.1f} %."
        )
    return sentences


def layer_table(results: Results) -> Grid:
    """Time of the attention layers and what can be said of their slope."""
    found = [c for c in selection.layers(results.table) if not c.first.recurrent and c.measured]
    rows = []
    for curve, label in zip(found, selection.labels(found), strict=True):
        fit = results.fit(curve, "time")
        rows.append([label, exponent_text(fit), slopes_text(fit), last_time_text(curve)])
    header = ["layer", "time exponent [95 %]", "local slopes", "time"]
    return Grid(header, rows)


def decode_table(results: Results) -> Grid:
    """Time per token and cache bytes at the largest n_kv of each batch, backend and sharing."""
    rows = []
    found = selection.decode(results.table)
    found.sort(key=lambda c: c.first.integer("batch") or 1)
    for curve in found:
        point = curve.measured[-1]
        batch = point.integer("batch") or 1
        cache = point.integer("mem_kv_cache_bytes")
        rows.append(
            [
                curve.backend,
                f"{curve.first.text('sharing').upper()} ({curve.first.text('heads_kv')})",
                str(batch),
                str(point.n),
                seconds_text((point.time_s or 0.0) / batch) + interval_mark(point),
                "" if cache is None else bytes_text(cache),
                bandwidth_text(results.table, point),
            ]
        )
    header = ["backend", "sharing (heads_kv)", "batch", "n_kv", "time per token", "KV cache"]
    return Grid([*header, "achieved (bytes_min ÷ time)"], rows)


def bandwidth_text(table: Table, point: Point) -> str:
    """GB/s where they speak of memory, else why they are not stated."""
    rate = memory_gbps(table, point)
    if rate is not None:
        return f"{rate:.1f} GB/s"
    if table.llc_bytes() is None:
        return "not stated: cache size unknown"
    return "not stated: below 4 × the last-level cache"


def sharing_table(results: Results) -> Grid:
    """Prefill time of MHA, GQA and MQA at the largest n, a row per backend."""
    found = selection.sharing(results.table)
    kinds = sorted({c.first.integer("heads_kv") or 0 for c in found}, reverse=True)
    rows = []
    for backend in dict.fromkeys(c.backend for c in found):
        own = {c.first.integer("heads_kv"): c for c in found if c.backend == backend}
        texts = [last_time_text(own[k]) if k in own else "" for k in kinds]
        rows.append([backend, own[next(iter(own))].first.text("threads"), *texts])
    header = ["backend", "threads", *(f"heads_kv {k}" for k in kinds)]
    return Grid(header, rows)


def cross_table(results: Results) -> Grid:
    """Cross attention: a row for each backend, shape and n_q, its time at the largest n_kv."""
    rows = []
    for curve in selection.cross(results.table):
        last = curve.measured[-1]
        n_kv = [p.integer("n_kv") or 0 for p in curve.measured]
        slopes = local_slopes(n_kv, [p.time_s or 0.0 for p in curve.measured])
        rows.append(
            [
                curve.backend,
                f"{last.text('scope')} {last.text('regime')}",
                _shape_and_sharing(curve),
                last.text("n_q"),
                " ".join(f"{s:.2f}" for s in slopes),
                f"{seconds_text(last.time_s or 0.0)} at n_kv = {n_kv[-1]}{interval_mark(last)}",
            ]
        )
    header = ["backend", "part", "shape", "n_q", "local slopes in n_kv", "time"]
    return Grid(header, rows)


def _shape_and_sharing(curve: Curve) -> str:
    sharing = curve.first.text("sharing").upper()
    return selection.shape_text([curve]) + (f", {sharing}" if sharing else "")


def further_table(results: Results) -> Grid:
    """Every measured curve that no other table shows."""
    table = results.table
    shown = {
        c.key
        for part in (selection.complexity, selection.sharing, selection.decode, selection.layers)
        for c in part(table)
    }
    rows = []
    for curve in selection.by_backend(table_curves(table)):
        if curve.key in shown or not curve.measured:
            continue
        fit = results.fit(curve, "time")
        first = curve.first
        rows.append(
            [
                curve.backend,
                f"{first.text('scope')} {first.text('regime')}",
                _shape_and_sharing(curve),
                _number_or_none(fit),
                slopes_text(fit),
                last_time_text(curve),
            ]
        )
    header = ["backend", "part", "shape", "time exponent [95 %]", "local slopes", "time"]
    return Grid(header, rows)


def status_table(table: Table) -> Grid:
    """Every row without a time: what, at which n, and why."""
    rows = [
        [s.backend, s.part, s.status, ", ".join(str(n) for n in s.n), s.reason]
        for s in selection.statuses(table)
    ]
    return Grid(["backend", "part", "status", "n", "reason"], rows)


def sections(results: Results) -> list[Section]:
    """All tables and sentences, empty ones left out.

    Raises:
        SelectionError: the baseline is not measured.
    """
    core = selection.complexity(results.table)
    every: list[tuple[str, list[Block]]] = [
        (
            "Attention: time and memory in n",
            [attention_table(results)] if any(c.measured for c in core) else [],
        ),
        ("Recurrent layers: time in n", [recurrent_table(results)]),
        (
            "Attention layers: time in n",
            [layer_table(results), Bullets(layer_sentences(results))],
        ),
        (
            "Attention against recurrence",
            [Bullets([c.sentence for c in results.crossovers])],
        ),
        ("Prefill with shared KV heads", [sharing_table(results)]),
        ("Decode", [decode_table(results)]),
        ("Cross attention (n_q ≠ n_kv)", [cross_table(results)]),
        ("Further curves", [further_table(results)]),
        ("Rows without a time", [status_table(results.table)]),
    ]
    found = [Section(title, [b for b in blocks if b]) for title, blocks in every]
    return [section for section in found if section.blocks]


def terminal(results: Results) -> str:
    """What `attnplot table` prints.

    Raises:
        SelectionError: the baseline is not measured.
    """
    return "\n".join(markdown(section) for section in sections(results))
