# SPDX-License-Identifier: MIT
"""What a report consists of, and its Markdown.

A report is composed once, as sections of these blocks, and rendered as often as there are formats:
the formats cannot say different things. Every string is plain text; escaping is the renderer's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

NONE = "–"
# Where text would become Markdown: a cell's end, HTML, a link, an entity, an escape of these.
_MARKUP = re.compile(r"[\\|]|<(?=[A-Za-z/!?])|(?<=\])[(\[]|&(?=#?\w+;)")


@dataclass(frozen=True)
class Grid:
    """A table of cells as they are shown; an empty cell is not applicable."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __bool__(self) -> bool:
        """False without a row."""
        return bool(self.rows)


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]

    def __bool__(self) -> bool:
        """False without a sentence."""
        return bool(self.items)


@dataclass(frozen=True)
class Paragraph:
    """One or more sentences; `strong` where nobody may overlook them."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure of `figures.KINDS`, with its caption."""

    kind: str
    caption: str


Block = Grid | Bullets | Paragraph | Picture


@dataclass(frozen=True)
class Section:
    """A title and what stands under it."""

    title: str
    blocks: Sequence[Block]


def markdown(block: Block | Section, level: int = 2) -> str:
    """Markdown that ends with a line end.

    Args:
        block: what to render. Empty cells become a dash.
        level: the number of `#` of a section's title.
    """
    match block:
        case Section(title, blocks):
            return "\n".join([f"{'#' * level} {title}\n", *map(markdown, blocks)])
        case Grid(header, rows):
            lines = [list(header), ["---"] * len(header), *rows]
            cells = [[escaped(c) or NONE for c in line] for line in lines]
            return "".join("| " + " | ".join(line) + " |\n" for line in cells)
        case Bullets(items):
            return "".join(f"- {escaped(item)}\n" for item in items)
        case Paragraph(text, strong):
            return f"**{escaped(text)}**\n" if strong else f"{escaped(text)}\n"
        case Picture(kind, caption):
            return f"![{caption}](figures/{kind}.png)\n"


def escaped(text: str) -> str:
    """Text as Markdown that shows it, on one line: no cell ends early, no HTML, link or entity."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
