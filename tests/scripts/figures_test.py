# SPDX-License-Identifier: MIT
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from attnplot import drawing, figures, selection
from attnplot.palette import KNOWN, order, style
from attnplot.table import Table, load
from synthetic import COMPLEXITY, DOUBLING, Run, Value, default_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return load(default_sweep().write(tmp_path_factory.mktemp("run")))


def texts(figure: Figure) -> str:
    found = [t.get_text() for ax in figure.axes for t in ax.texts]
    found += [t.get_text() for t in figure.texts] + [ax.get_title(loc="left") for ax in figure.axes]
    return "\n".join(found).replace("\u00a0", " ").replace("\n", " ")


def named(ax: Axes) -> dict[str, Line2D]:
    lines = (line for line in ax.lines if isinstance(line, Line2D))
    return {
        str(line.get_label()): line for line in lines if not str(line.get_label()).startswith("_")
    }


def lines_of(ax: Axes, label: str) -> list[Line2D]:
    return [line for line in ax.lines if line.get_label() == label]


def xs(line: Line2D) -> list[float]:
    return [float(x) for x in np.asarray(line.get_xdata())]


def ticks(ax: Axes) -> list[str]:
    return [ax.xaxis.get_major_formatter()(t, i) for i, t in enumerate(ax.get_xticks())]


@pytest.mark.parametrize("kind", ["ratio", "layer"])
def test_the_same_results_give_the_same_bytes(sweep: Table, kind: str, tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        paths = figures.save(figures.make(sweep, kind), folder, kind)
        assert [p.name for p in paths] == [f"{kind}.png", f"{kind}.svg"]
    for suffix in ("png", "svg"):
        one, two = ((f / "figures" / f"{kind}.{suffix}").read_bytes() for f in folders)
        assert one == two
        assert len(one) > 5000


@pytest.mark.parametrize("kind", list(figures.KINDS))
def test_every_axis_has_a_label_and_a_title(sweep: Table, kind: str) -> None:
    for ax in figures.make(sweep, kind).axes:
        assert ax.get_xlabel()
        assert ax.get_ylabel()
        assert ax.get_title(loc="left")


@pytest.mark.parametrize("kind", list(figures.KINDS))
def test_no_two_texts_overlap(sweep: Table, kind: str) -> None:
    figure = figures.make(sweep, kind)
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = [
        (t.get_text(), Text.get_window_extent(t, renderer).shrunk(0.98, 0.8))
        for t in [*(t for ax in figure.axes for t in [*ax.texts, ax.title]), *figure.texts]
        if t.get_text() and not t.get_rotation()
    ]
    for i, (name, box) in enumerate(boxes):
        for other, second in boxes[:i]:
            assert not box.overlaps(second), (name, other)


def test_time_shows_curves_samples_ribbons_and_guides(sweep: Table) -> None:
    figure = figures.make(sweep, "time")
    (ax,) = figure.axes
    curves = named(ax)
    assert list(curves) == ["cpu.naive", "cpu.online", "blas.three_step", "blas.gqa"]
    assert xs(curves["cpu.naive"]) == list(COMPLEXITY)
    assert len(lines_of(ax, "_samples")) == 4
    assert len(xs(lines_of(ax, "_samples")[0])) == 60
    assert len(ax.collections) == 4
    assert "slope 1: ∝ n slope 2: ∝ n²" in texts(figure)
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert ticks(ax) == [str(n) for n in DOUBLING]
    assert "Not measured: cuda.naive, cuda.tiled – unavailable: built without" in texts(figure)
    for name in curves:
        assert name in [t.get_text() for t in ax.texts]


def test_guides_have_their_slopes(sweep: Table) -> None:
    (ax,) = figures.make(sweep, "time").axes
    slopes = []
    for line in ax.lines:
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        if len(x) == 2:
            slopes.append(math.log(y[1] / y[0]) / math.log(x[1] / x[0]))
    assert slopes == pytest.approx([1, 2])


def test_a_gap_is_a_gap_with_a_word(tmp_path: Path) -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-8 * n**2, (128, 256))
    run.row("cpu.naive", 512, status="timeout", status_reason="60 s were not enough")
    run.curve("cpu.naive", lambda n: 1e-8 * n**2, (1024, 2048))
    run.row("cpu.naive", 4096, status="cutoff", status_reason="too slow")
    figure = figures.make(load(run.write(tmp_path)), "time")
    (ax,) = figure.axes
    y = np.asarray(named(ax)["cpu.naive"].get_ydata())
    assert list(np.isnan(y)) == [False, False, True, False, False]
    assert [xs(line) for line in lines_of(ax, "_gap")] == [[512], [4096]]
    assert len(ax.collections) == 2  # the ribbon breaks too
    assert "× cpu.naive at n = 512: time-out – 60 s were not enough." in texts(figure)
    assert "× cpu.naive at n = 4096: cut off – too slow." in texts(figure)


def test_a_cutoff_stands_at_its_prediction(sweep: Table) -> None:
    figure = figures.make(sweep, "layer")
    (ax,) = figure.axes
    (mark,) = lines_of(ax, "_gap")
    assert xs(mark) == [8192]
    assert float(np.asarray(mark.get_ydata())[0]) == pytest.approx(14.7, abs=0.2)
    assert ax.get_ylim()[1] > 14.7
    assert xs(named(ax)["cpu.naive"])[-1] == 4096


def test_layer_rings_its_crossovers(sweep: Table) -> None:
    figure = figures.make(sweep, "layer")
    (ax,) = figure.axes
    rings = sorted(float(np.asarray(r.get_xdata())[0]) for r in lines_of(ax, "_crossover"))
    assert len(rings) == 4
    assert rings[-1] == pytest.approx(3400, rel=0.05)
    assert "(4) Between n = 128 and 8192 blas.three_step is faster than cpu.rnn" in texts(figure)
    assert {"cpu.rnn", "cpu.lstm", "blas.rnn", "blas.lstm"} < set(named(ax))


def test_rings_that_touch_share_a_label() -> None:
    shape: dict[str, Value] = {"scope": "layer", "d_model": 256}
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-8 * n**2, DOUBLING, **shape)
    run.curve("cpu.online", lambda n: 1.02e-8 * n**2, DOUBLING, **shape)
    run.curve("blas.three_step", lambda n: 5e-8 * n**2, DOUBLING, **shape)
    run.curve("cpu.rnn", lambda n: 2e-5 * n, DOUBLING, family="rnn", heads=None, **shape)
    (ax,) = figures.make(run.table(), "layer").axes
    assert len(lines_of(ax, "_crossover")) == 3
    labels = [t.get_text() for t in ax.texts]
    assert "1" in labels
    assert "2, 3" in labels


def test_few_samples_have_dots_and_no_ribbon() -> None:
    run = Run(rounds=5)
    run.curve("cpu.naive", lambda n: 1e-8 * n**2)
    (ax,) = figures.make(run.table(), "time").axes
    assert len(ax.collections) == 0
    assert len(xs(lines_of(ax, "_samples")[0])) == 35


def test_memory_adds_scratch_and_tensors_and_names_equal_curves_together(sweep: Table) -> None:
    figure = figures.make(sweep, "memory")
    (ax,) = figure.axes
    top = np.asarray(named(ax)["blas.three_step"].get_ydata())[-1]
    assert top == 4 * 8192**2 + 1024 * 8192
    assert "blas.three_step, blas.gqa (equal)" in texts(figure)


def test_ratio_stands_beside_the_seconds_of_its_baseline(sweep: Table) -> None:
    figure = figures.make(sweep, "ratio")
    (ax,) = figure.axes
    assert ticks(ax)[-1] == "8192\n509 ms"
    assert set(np.asarray(named(ax)["blas.three_step"].get_ydata())) == {1.0}
    assert float(np.asarray(named(ax)["cpu.naive"].get_ydata())[-1]) == pytest.approx(
        5.36, rel=0.01
    )
    (ax,) = figures.make(sweep, "ratio", "cpu.naive").axes
    assert ticks(ax)[-1] == "8192\n2.73 s"


def test_an_unknown_baseline_is_refused_with_what_would_work(sweep: Table) -> None:
    with pytest.raises(selection.SelectionError, match=r"cuda\.naive: not measured.*cpu\.naive"):
        figures.make(sweep, "ratio", "cuda.naive")


def test_roofline_has_a_panel_per_thread_count_and_its_roofs(sweep: Table) -> None:
    figure = figures.make(sweep, "roofline")
    assert len(figure.axes) == 2
    assert [len(lines_of(ax, "_roof")) for ax in figure.axes] == [3, 3]
    for said in ("FMA peak 110 GFLOP/s", "GEMM 190 GFLOP/s", "read 38 GB/s"):
        assert said in texts(figure)
    line = named(figure.axes[0])["cpu.naive"]
    assert np.asarray(line.get_xdata())[-1] == pytest.approx(8192 / 4)
    decode = xs(named(figure.axes[1])["blas.gqa decode"])
    assert decode == pytest.approx([0.5, 1, 2], rel=0.01)
    assert list(named(figure.axes[1])) == [
        *("blas.three_step", "blas.gqa", "blas.three_step decode", "blas.gqa decode")
    ]


def test_decode_divides_by_the_batch_and_states_bandwidth_where_allowed(sweep: Table) -> None:
    figure = figures.make(sweep, "decode")
    assert len(figure.axes) == 4
    first = named(figure.axes[1])["blas.gqa MHA"]
    point = next(
        p
        for p in sweep.points
        if (p.backend, p.text("batch"), p.text("heads_kv"), p.text("regime"), p.n)
        == ("blas.gqa", "32", "4", "decode", 8192)
    )
    assert np.asarray(first.get_ydata())[-1] == pytest.approx((point.time_s or 0) / 32)
    assert "no bandwidth stated" in texts(figure)
    rates = named(figure.axes[3])
    assert xs(rates["blas.gqa MHA"]) == [2048, 4096, 8192]
    assert xs(rates["blas.gqa MQA"]) == [8192]


def test_sharing_has_a_panel_per_backend_on_one_scale(sweep: Table) -> None:
    figure = figures.make(sweep, "sharing")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["blas.three_step", "blas.gqa"]
    assert list(named(figure.axes[1])) == ["MHA 4", "GQA 2", "MQA 1"]
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert figure.axes[0].get_ylim()[0] == 0


@pytest.mark.parametrize("kind", ["decode", "sharing", "layer", "memory", "roofline"])
def test_what_was_not_measured_is_not_drawn(kind: str) -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-8 * n**2)
    with pytest.raises(figures.NothingToDraw, match="no "):
        figures.make(run.table(), kind)


def test_the_complexity_part_is_found_among_other_shapes(sweep: Table) -> None:
    found = selection.complexity(sweep)
    assert {c.first.text("threads") for c in found} == {"1"}
    assert {c.first.text("heads") for c in found} == {"1"}
    assert [c.backend for c in found][-2:] == ["cuda.naive", "cuda.tiled"]


def test_one_thread_is_preferred_to_more_points() -> None:
    run = Run()
    run.curve("cpu.naive", lambda n: 1e-8 * n**2, DOUBLING, heads=8, threads=2)
    run.curve("cpu.naive", lambda n: 1e-8 * n**2, DOUBLING[:2], heads=1)
    (found,) = selection.complexity(run.table())
    assert found.first.text("threads") == "1"
    run.curve("cpu.naive", lambda n: 1e-8 * n**2, DOUBLING, heads=1, threads=4)
    (found,) = selection.complexity(run.table())
    assert found.first.text("threads") == "1"


def test_looks_are_fixed_and_known_neighbours_differ_in_grey() -> None:
    looks = [style(name) for name in KNOWN]
    assert len({(s.colour, s.marker) for s in looks}) == len(KNOWN)
    assert len({(s.marker, str(s.line)) for s in looks}) >= len(KNOWN) - 4
    for one, two in itertools.pairwise(KNOWN):
        assert style(one).marker != style(two).marker
    assert style("some.new") == style("some.new")
    assert order("cpu.naive") < order("blas.gqa") < order("a.unknown") < order("b.unknown")


def test_labels_move_apart_and_stay_inside() -> None:
    found = drawing.spread([0.98, 0.99, 1.0], [0.05, 0.05])
    assert found[-1] <= 1.0001
    assert min(b - a for a, b in itertools.pairwise(found)) > 0.049
    assert drawing.spread([0.1, 0.5], [0.05]) == [0.1, 0.5]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.7313, "2.73 s"),
        (0.9999, "1.00 s"),
        (6.42e-5, "64.2 µs"),
        (1.2e-8, "12.0 ns"),
        (123.4, "123 s"),
        (9.996, "10.0 s"),
    ],
)
def test_seconds_are_written_with_three_digits(seconds: float, text: str) -> None:
    assert drawing.seconds_text(seconds) == text


def test_bytes_are_written_with_a_unit() -> None:
    assert [drawing.bytes_text(b) for b in (0, 999, 2000, 268435456)] == [
        *("0 B", "999 B", "2.00 kB", "268 MB")
    ]
    assert [drawing.cache_text(b) for b in (32768, 1 << 20, 3 << 19, 25276510208)] == [
        *("32 KiB", "1 MiB", "1.5 MiB", "25.3 GB")
    ]


def test_coincident_curves_are_told() -> None:
    one = {128: 1.0, 256: 2.0}
    assert drawing.coincident([one, {128: 1.01, 256: 2.01}, {128: 5.0, 256: 9.0}]) == [
        *(False, True, False)
    ]
