# SPDX-License-Identifier: MIT
"""A matplotlib figure as SVG that may stand inside an HTML page, beside others of its kind."""

import io
import re
from collections.abc import Mapping
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from attnplot import drawing

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DROPPED = {f"{_SVG}metadata", f"{_SVG}style"}
_INHERITED = ("fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-linejoin")
# WCAG 2: least contrast of text with its background.
_READABLE = 4.5


def printable(text: str) -> str:
    """The text with every character that neither XML nor HTML may hold replaced by U+FFFD."""
    return _NOT_XML.sub("\ufffd", text)


def contrast_with_white(colour: str) -> float:
    """WCAG contrast of a colour with white, 1 … 21."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 1.05 / (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05)


def readable(colour: str) -> str:
    """The colour, as much darker as text on white needs to be; lines may be lighter than text."""
    red, green, blue = to_rgb(colour)
    share = 1.0
    while contrast_with_white(to_hex((share * red, share * green, share * blue))) < _READABLE:
        share *= 0.97
    return to_hex((share * red, share * green, share * blue))


def notes(figure: Figure) -> str:
    """The sentences under a figure, as one paragraph without line breaks."""
    text = " ".join(" ".join(t.get_text().split("\n")) for t in figure.texts)
    return text[:1].upper() + text[1:]


def description(figure: Figure) -> str:
    """What somebody is told who cannot see the figure: its titles and what is drawn."""
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    names = dict.fromkeys(str(line.get_label()) for ax in figure.axes for line in ax.get_lines())
    drawn = ", ".join(name for name in names if not name.startswith("_"))
    return f"{'. '.join(t for t in titles if t)}. Lines: {drawn}."


def inline_svg(figure: Figure, prefix: str, label: str) -> str:
    """One `<svg>` element, transparent, without the sentences under the figure (see `notes`).

    Ids begin with the prefix, so that several figures can share a page. There is no `style`
    attribute, so that a content security policy need not allow any.

    Args:
        figure: the figure.
        prefix: begins every id.
        label: what assistive technology reads.
    """
    buffer = io.StringIO()
    shown = [text for text in figure.texts if text.get_visible()]
    for text in shown:
        text.set_visible(False)
    try:
        with mpl.rc_context(drawing.rc()):
            figure.savefig(
                buffer, format="svg", bbox_inches="tight", pad_inches=0.06, transparent=True
            )
    finally:
        for text in shown:
            text.set_visible(True)
    root = ElementTree.fromstring(printable(buffer.getvalue()))
    used = dict.fromkeys(re.findall(r'(?:url\(|href=")#([^")]+)', buffer.getvalue()))
    names = {name: f"{prefix}-{i}" for i, name in enumerate(used)}
    box = root.get("viewBox", "")
    root.attrib.clear()
    _clean(root, names)
    # A pixel and a half for a point: labels of 9.5 pt are then of the size of the page's text.
    width = f"{1.5 * float(box.split()[2]):.0f}"
    root.attrib.update(viewBox=_short(box), width=width, role="img")
    root.set("aria-label", printable(label))
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element, names: Mapping[str, str]) -> None:
    element.tag = element.tag.removeprefix(_SVG)
    element.attrib.update(_attributes(element, names))
    element.tail = None
    if element.tag != "text":
        element.text = None
    children: list[ElementTree.Element] = []
    for child in element:
        if child.tag in _DROPPED:
            continue
        _clean(child, names)
        # Most groups only carried an id that nothing refers to.
        children += list(child) if child.tag == "g" and not child.attrib else [child]
    element[:] = [c for c in children if len(c) or c.attrib]
    if element.tag == "g":
        _share(element)


def _share(group: ElementTree.Element) -> None:
    # A hundred dots of one colour: the group says it once.
    for key in _INHERITED:
        values = {child.get(key) for child in group}
        if len(group) > 1 and len(values) == 1 and None not in values and key not in group.attrib:
            group.set(key, values.pop() or "")
            for child in group:
                del child.attrib[key]


def _attributes(element: ElementTree.Element, names: Mapping[str, str]) -> dict[str, str]:
    found = dict(element.attrib)
    element.attrib.clear()
    name, link = found.pop("id", ""), found.pop(_HREF, "")
    pairs = (part.split(":", 1) for part in found.pop("style", "").split(";") if ":" in part)
    found.update({key.strip(): value.strip() for key, value in pairs})
    if "clip-path" in found:
        found["clip-path"] = f"url(#{names[found['clip-path'][5:-1]]})"
    if element.tag == "text":
        found["fill"] = readable(found.get("fill", "#000000"))
        found.pop("font-family", None)  # the page's
    short = {key: _short(value) for key, value in found.items()}
    if link:
        short["href"] = f"#{names[link[1:]]}"
    if name in names:
        short["id"] = names[name]
    return short


def _short(value: str) -> str:
    # A hundredth of a point is below what any screen or printer shows.
    text = _LONG_NUMBER.sub(lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), value)
    return " ".join(text.split())
