# SPDX-License-Identifier: MIT
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from attnplot import figures
from attnplot.inline_svg import contrast_with_white, description, inline_svg, notes, readable
from attnplot.palette import KNOWN, style
from attnplot.table import Table
from synthetic import SQRT2, Run, default_sweep

HOSTILE = '</text></svg><script>alert("1")</script>&amp;$x^{2$'


@pytest.fixture(scope="module")
def table() -> Table:
    return default_sweep().table()


def ids(svg: str) -> list[str]:
    return re.findall(r' id="([^"]+)"', svg)


def text_fills(element: ElementTree.Element, inherited: str = "#000000") -> list[str]:
    fill = element.get("fill", inherited)
    own = [fill] if element.tag == "text" else []
    return own + [f for child in element for f in text_fills(child, fill)]


@pytest.mark.parametrize("kind", figures.KINDS)
def test_every_reference_is_to_an_own_id(table: Table, kind: str) -> None:
    svg = inline_svg(figures.make(table, kind), kind, "what it shows")
    root = ElementTree.fromstring(svg)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == "what it shows"
    assert len(set(ids(svg))) == len(ids(svg)) > 0
    assert all(name.startswith(f"{kind}-") for name in ids(svg))
    fills = text_fills(root)
    assert len(fills) >= 20
    assert min(contrast_with_white(colour) for colour in fills) >= 4.5
    used = re.findall(r'(?:url\(|href=")#([^")]+)', svg)
    assert set(used) == set(ids(svg))


def test_it_needs_no_style_and_names_no_address(table: Table) -> None:
    svg = inline_svg(figures.make(table, "time"), "time", "")
    for unwanted in ("style", "http", "<metadata", "font-family", "xmlns", "<?xml", "<!DOCTYPE"):
        assert unwanted not in svg, unwanted
    # Clipped, coloured and dashed as before.
    for wanted in ("clip-path", 'fill="none"', "stroke-dasharray", 'fill-opacity="0.35"'):
        assert wanted in svg, wanted


def test_nothing_that_is_drawn_gets_lost(table: Table) -> None:
    figure = figures.make(table, "layer")
    svg = inline_svg(figure, "layer", "")
    root = ElementTree.fromstring(svg)
    texts = {t.text for t in root.iter("text")}
    assert {"cpu.naive", "blas.lstm", "10 ms", "8192", "cut off"} <= texts
    measured = [line for ax in figure.axes for line in ax.get_lines()]
    points = sum(np.isfinite(np.asarray(line.get_ydata(), dtype=float)).sum() for line in measured)
    assert sum(1 for _ in root.iter("use")) >= points


def test_a_shared_attribute_is_said_once(table: Table) -> None:
    root = ElementTree.fromstring(inline_svg(figures.make(table, "time"), "time", ""))
    groups = [g for g in root.iter("g") if len(g) > 50]
    assert groups
    for group in groups:
        assert group.get("fill", "").startswith("#")
        assert {child.get("fill") for child in group} == {None}


def test_the_sentences_under_a_figure_are_not_in_it(table: Table) -> None:
    figure = figures.make(table, "time")
    assert notes(figure).startswith(
        "Median with 95 % interval; dots are single calls. Not measured"
    )
    assert "\n" not in notes(figure)
    assert "single calls" not in inline_svg(figure, "time", "")
    assert all(text.get_visible() for text in figure.texts), "the PNG shows them"


def test_the_description_names_what_is_drawn(table: Table) -> None:
    assert description(figures.make(table, "time")) == (
        "Attention core: 1 head of 64, batch 1, 1 thread, f32. "
        "Lines: cpu.naive, cpu.online, blas.three_step, blas.gqa."
    )


@pytest.mark.filterwarnings("ignore:Glyph 1")
def test_a_hostile_name_is_a_label() -> None:
    run = Run()
    run.curve(HOSTILE, lambda n: 1e-8 * n**2, SQRT2)
    run.curve("a\x01b", lambda n: 3e-8 * n**2, SQRT2)
    svg = inline_svg(figures.make(run.table(), "time"), "time", HOSTILE)
    root = ElementTree.fromstring(svg)
    texts = [t.text for t in root.iter("text")]
    assert HOSTILE in texts
    assert "a\ufffdb" in texts
    assert not list(root.iter("script"))


def in_the_dark(colour: str) -> float:
    """Contrast of a colour with white after `invert(.93) hue-rotate(180deg)`, both inverted.

    The matrix is that of Filter Effects for 180°: 2·(0.213, 0.715, 0.072) in every row, minus 1.
    """
    matrix = 2 * np.tile([0.213, 0.715, 0.072], (3, 1)) - np.eye(3)

    def luminance(rgb: tuple[float, float, float]) -> float:
        turned = np.clip(matrix @ (0.93 - 0.86 * np.array(rgb)), 0, 1)
        linear = np.where(turned <= 0.04045, turned / 12.92, ((turned + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = luminance((1, 1, 1)), luminance(to_rgb(colour))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", [*KNOWN, "my.backend", "another.one"])
def test_every_label_can_be_read_in_both_themes(name: str) -> None:
    colour = readable(style(name).colour)
    assert contrast_with_white(colour) >= 4.5
    assert in_the_dark(colour) >= 4.5


def test_a_dark_colour_stays_what_it_is() -> None:
    assert readable("#1b4f8f") == "#1b4f8f"
    assert contrast_with_white("#000000") == pytest.approx(21)
    assert contrast_with_white("#ffffff") == pytest.approx(1)
    assert contrast_with_white("#767676") == pytest.approx(4.54, abs=0.01)
