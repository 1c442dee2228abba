# SPDX-License-Identifier: MIT
"""Writes `report.md` and `report.html`, and the part of a README that comes from results."""

from collections.abc import Collection, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from attnplot import figures, selection
from attnplot.curves import MIN_PROCESSES, table_curves
from attnplot.document import Block, Bullets, Grid, Paragraph, Picture, Section, escaped, markdown
from attnplot.drawing import bytes_text, cache_text
from attnplot.files import readme_link, write_readme, write_text
from attnplot.fit import MIN_POINTS
from attnplot.page import page
from attnplot.table import (
    Table,
    memory_gbps,
    roofs,
    working_set_bytes,
)
from attnplot.tables import Results, attention_table, sections, status_table

FORMATS = ("md", "html")
README_PART = "attnplot"
# Section title -> the figures that stand in it.
_FIGURES: Mapping[str, tuple[str, ...]] = {
    "Attention: time and memory in n": ("time", "ratio", "memory", "roofline"),
    "Attention against recurrence": ("layer",),
    "Prefill with shared KV heads": ("sharing",),
    "Decode": ("decode",),
}
_CAPTIONS: Mapping[str, str] = {
    "time": "Time of a call against n",
    "ratio": "Time relative to the baseline, whose seconds stand under each n",
    "memory": "Scratch and tensors against n",
    "roofline": "Throughput under the measured roofs",
    "layer": "Attention and recurrent layers, crossovers ringed",
    "sharing": "Prefill throughput with shared KV heads",
    "decode": "Decode: time per token, and bandwidth where it may be stated",
}


def compose(results: Results, drawn: Collection[str]) -> list[Section]:
    """What a report says, whatever its format; the first section is the opening.

    Args:
        results: the analysed run.
        drawn: kinds of figures to show.

    Raises:
        SelectionError: the baseline is not measured.
    """
    table = results.table
    parts = [
        Section("What was measured", _opening(results)),
        Section("Machine and build", [g for g in (machine_table(table), _roof_table(table)) if g]),
        Section("Method", [_method(results)]),
    ]
    for section in sections(results):
        if section.title == "Rows without a time":
            continue
        kinds = [k for k in _FIGURES.get(section.title, ()) if k in drawn]
        pictures = [Picture(k, _CAPTIONS[k]) for k in kinds]
        remark = _decode_remark(table) if section.title == "Decode" else []
        parts.append(Section(section.title, [*section.blocks, *pictures, *remark]))
    return [*parts, Section("What was not measured", _not_measured(table))]


def report(results: Results, drawn: Collection[str]) -> str:
    """The text of `report.md`; figures are linked as `figures/KIND.png`.

    Raises:
        SelectionError: the baseline is not measured.
    """
    opening, *parts = compose(results, drawn)
    return "\n".join([markdown(opening, 1), *map(markdown, parts)])


def draw_all(results: Results) -> dict[str, Figure]:
    """Every figure for which the run holds points, by kind.

    Raises:
        SelectionError: the baseline is not measured.
    """
    found = {}
    for kind in figures.KINDS:
        try:
            found[kind] = figures.make(results.table, kind, results.baseline)
        except figures.NothingToDraw:
            continue
    return found


def _opening(results: Results) -> list[Block]:
    table = results.table
    ok = len(table.measured)
    blocks: list[Block] = [Paragraph(f"{ok} of {len(table.points)} points have a time.")]
    if table.field("interrupted") is True:
        text = "The run was interrupted: what had no result by then has no row."
        blocks.append(Paragraph(text, strong=True))
    if table.field("git_dirty") is True:
        text = "It was built from a tree with uncommitted changes."
        blocks.append(Paragraph(text, strong=True))
    noisy = sum(p.cells["noisy"] is True for p in table.measured)
    if noisy:
        text = (
            f"{noisy} of them are noisy: the 95 % interval of their median is wider than was asked "
            "for, or there are too few samples for one."
        )
        blocks.append(Paragraph(text))
    if table.suspect:
        text = f"{table.suspect} samples taken beside a failing backend were left out."
        blocks.append(Paragraph(text))
    if table.notes:
        blocks += [Paragraph("Left out of the files:"), Bullets(table.notes)]
    return blocks


def machine_table(table: Table) -> Grid:
    """The machine sheet: what `run.json` says of machine and build, empty fields left out."""
    rows = []
    for block in ("machine", "compiler", "blas", "cuda"):
        rows += _flat(block, table.field(block))
    for field in "git_sha build_id env_id started_utc finished_utc noise".split():
        rows += _flat(field, table.field(field))
    rows.append(["arguments", _text(table.field("argv"), " ")])
    return Grid(["item", "recorded"], [row for row in rows if row[1]])


def _flat(name: str, value: object) -> list[list[str]]:
    # One row per leaf of nested objects; sizes in bytes with a unit.
    if isinstance(value, Mapping):
        return [row for key, inner in value.items() for row in _flat(f"{name}.{key}", inner)]
    label = name.replace(".", ": ", 1).replace("_", " ")
    if name.endswith("_bytes") and isinstance(value, int) and value > 0:
        return [[label.removesuffix(" bytes"), cache_text(value)]]
    return [[label, f"{value:.4g}" if isinstance(value, float) else _text(value)]]


def _text(value: object, between: str = ", ") -> str:
    if isinstance(value, list):
        return between.join(_text(v) for v in value)
    return "" if value is None else str(value)


def _roof_table(table: Table) -> Grid:
    units = {"gflops": "GFLOP/s", "gbps": "GB/s"}
    rows = [
        [r.kind, r.dtype, str(r.threads), f"{r.value:.1f} {units.get(r.unit, r.unit)}"]
        for r in roofs(table)
    ]
    return Grid(["measured roof", "type", "threads", "value"], rows)


def _method(results: Results) -> Paragraph:
    table = results.table
    processes = {s.process for samples in table.samples.values() for s in samples}
    if len(processes) >= MIN_PROCESSES:
        interval = f"Student's t over the means of the {len(processes)} processes"
    else:
        interval = (
            "Student's t over the slopes of the complete rounds; because one process cannot see "
            "its own luck with addresses, a floor of 0.012 is added in quadrature"
        )
    fits = [f for f in results.fits if f.quantity == "time" and f.exponent is not None]
    sizes = f"n = {min(f.n[0] for f in fits)} and above" if fits else "the largest sizes"
    return Paragraph(
        "Every backend is checked against a float64 reference before it is timed. One round takes "
        "one sample of every point in random order; the median of a point's samples is its time, "
        "and samples from a process and round in which a backend failed are left out. "
        f"An exponent is the least-squares slope of log median on log n over {sizes}, with at "
        f"least {MIN_POINTS} sizes and one thread; its 95 % interval is {interval}. "
        "Several threads, decode and shorter curves get local slopes and no exponent. "
        "Memory is declared by each backend and exact, so its degree has no interval. "
        "A ratio stands beside the seconds of its baseline, and GB/s only where the working set is "
        "at least four times the last-level cache or the cache was cold."
    )


def _decode_remark(table: Table) -> list[Block]:
    found = selection.decode(table)
    warm = [
        p
        for c in found
        for p in c.measured
        if p.text("batch") == "1" and p.cells["cache_mode"] in ("warm", "mixed")
    ]
    if not warm:
        return []
    text = "Warm decode at batch 1 measures the cache: the same K and V are read again and again"
    sizes = [s for p in warm if (s := working_set_bytes(p)) is not None]
    llc = table.llc_bytes()
    if sizes and llc is not None:
        fits = f"{bytes_text(max(sizes))} at most, in a last-level cache of {cache_text(llc)}"
        text += f" ({fits})"
    stated = {
        p.integer("batch") or 1
        for c in found
        for p in c.measured
        if memory_gbps(table, p) is not None
    }
    if stated:
        batches = ", ".join(str(b) for b in sorted(stated))
        text += f". GB/s are stated at batch {batches} only, where memory has to be read."
    else:
        text += ". No point here is large enough to state a bandwidth."
    return [Paragraph(text)]


def _not_measured(table: Table) -> list[Block]:
    with_time = {p.backend for p in table.measured}
    without: dict[tuple[str, str], list[str]] = {}
    for status in selection.statuses(table):
        if status.backend not in with_time:
            names = without.setdefault((status.status, status.reason), [])
            names += [] if status.backend in names else [status.backend]
    lines = [
        f"Nothing on this page speaks of {', '.join(names)}: {kind}"
        f"{': ' if reason else ''}{reason.rstrip('.')}."
        for (kind, reason), names in without.items()
    ]
    if not any(p.text("device") not in ("", "cpu") for p in table.measured):
        lines.append("No accelerator was measured.")
    few = sum(len(p) == 1 for p in (c.measured for c in table_curves(table)))
    if few:
        lines.append(f"{few} curves have one size only, and no slope.")
    blocks: list[Block] = [Bullets(lines)] if lines else []
    return [*blocks, status_table(table) or Paragraph("Every row has a time.")]


def write_report(results: Results, formats: Collection[str] = ("md",)) -> list[Path]:
    """Writes the report into the run folder.

    Args:
        results: the analysed run.
        formats: `md`: the figures and `report.md`; `html`: `report.html`, one file with everything.

    Raises:
        TableError: a file cannot be written.
        SelectionError: the baseline is not measured.
    """
    drawn = draw_all(results)
    folder = results.table.folder
    written: list[Path] = []
    if "md" in formats:
        written += [p for kind, f in drawn.items() for p in figures.save(f, folder, kind)]
        written.append(folder / "report.md")
        write_text(written[-1], report(results, drawn))
    if "html" in formats:
        written.append(folder / "report.html")
        write_text(written[-1], page(results.table, compose(results, drawn), drawn))
    return written


def readme_block(results: Results, readme: Path) -> str:
    """One figure (of those written, linked from the README's folder) and one table.

    Raises:
        SelectionError: the baseline is not measured.
    """
    figure_folder = (results.table.folder / "figures").resolve()
    picture = ""
    kind = next((k for k in figures.KINDS if (figure_folder / f"{k}.png").is_file()), None)
    if kind is not None:
        target = figure_folder / f"{kind}.png"
        picture = f"![{_CAPTIONS[kind]}]({readme_link(readme, target)})\n\n"
    cpu = _text(results.table.field("machine", "cpu_model"))
    where = f"Measured on {escaped(cpu)}.\n\n" if cpu else ""
    return picture + where + markdown(attention_table(results, brief=True))


def update_readme(results: Results, readme: Path) -> None:
    """Replaces what stands between the two markers.

    Raises:
        TableError: as `split_readme`, or the file cannot be written.
        SelectionError: the baseline is not measured.
    """
    write_readme(readme, README_PART, readme_block(results, readme))
