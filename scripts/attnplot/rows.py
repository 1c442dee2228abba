# SPDX-License-Identifier: MIT
"""Splits the CSV files of a run folder into records that know where they stand.

The one reader of `results.csv`, `samples.csv` and `phases.csv`. A file that is foreign as a whole
(empty, another header, another separator) is refused; a record that is torn or holds what no text
holds is left out by name, and never takes a neighbour with it. Line ends, a byte order mark and
empty lines mean nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SCHEMA_VERSION = 1
# Far above the longest reason or command that attnbench writes.
MAX_CELL = 8192
_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",]*))(,|\Z)')
# A lone surrogate stands for a byte that is not UTF-8; the rest can be in no XML, so in no figure.
_NOT_UTF8 = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")
# Last cells that cannot be the beginning of a longer one: their record is whole without a line end.
_SELF_DELIMITING = re.compile(r"true|false|\{.*\}", re.DOTALL)
_SEPARATORS: Mapping[str, str] = {";": "';'", "\t": "tabs", "|": "'|'"}


class TableError(Exception):
    """A file of the run folder is missing, unreadable, or not what attnbench writes (exit 6)."""


class BadCellError(ValueError):
    """A cell that cannot be read as its column's kind; the message says why, without the cell."""


@dataclass(frozen=True)
class Record:
    """One record: the line of the file on which it begins (header = 1), and its cells by column."""

    row: int
    cells: Mapping[str, str]


class Notes:
    """What was left out or could not be checked: one sentence for each cause, with all its rows."""

    def __init__(self) -> None:
        """Starts empty."""
        self._found: dict[tuple[str, str, str], dict[int, str]] = {}

    def add(self, file: str, row: int, why: str, *, column: str = "", cell: str = "") -> None:
        """Notes one row, and the column and cell that are to blame where there is one."""
        self._found.setdefault((file, column, why), {})[row] = cell

    def mention(self, file: str) -> bool:
        """Whether anything of a file was noted."""
        return any(name == file for name, _, _ in self._found)

    def sentences(self) -> tuple[str, ...]:
        """The notes, in the order in which each cause first appeared."""
        return tuple(
            _sentence(file, column, why, rows) for (file, column, why), rows in self._found.items()
        )


def _sentence(file: str, column: str, why: str, rows: Mapping[int, str]) -> str:
    first = min(rows)
    what = f"{column} " if column else ""
    if len(rows) == 1:
        return f"{file} row {first}: {what}{f'{shown(rows[first])} ' if column else ''}{why}"
    example = f" ({shown(rows[first])} in row {first})" if column else ""
    cause, _, consequence = why.partition("; ")
    end = f"; {consequence}" if consequence else ""
    return f"{file} rows {_ranges(sorted(rows))}: {what}{cause}{example}{end}"


def _ranges(rows: Sequence[int]) -> str:
    # 2, 5 to 7
    parts: list[list[int]] = []
    for row in rows:
        if parts and row == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], row]
        else:
            parts.append([row])
    return ", ".join(" to ".join(str(r) for r in part) for part in parts)


def shown(text: str) -> str:
    """A cell as it may stand in a sentence: quoted, on one line, printable, and not too long."""
    start = text if len(text) <= 60 else text[:57] + "…"
    return "'" + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in start) + "'"


def split(text: str) -> list[str] | None:
    """The cells of one record without its line end; `None` where a quote is misplaced or open."""
    cells: list[str] = []
    position = 0
    while True:
        found = _FIELD.match(text, position)
        if found is None:
            return None
        quoted, plain, end = found.groups()
        cells.append(plain if quoted is None else quoted.replace('""', '"'))
        if end == "":
            return cells
        position = found.end()


def records(path: Path, columns: Sequence[str], notes: Notes) -> Iterator[Record]:
    """The whole records of a file, in order; what is left out is noted.

    Args:
        path: the file.
        columns: its header.
        notes: takes a sentence for everything that is left out.

    Raises:
        TableError: the file cannot be read, is empty, or has another header.
    """
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from error
    lines = text.removeprefix("\ufeff").split("\n")
    unended = lines[-1] != ""
    lines = [line.removesuffix("\r") for line in (lines if unended else lines[:-1])]
    start = next((i for i, line in enumerate(lines) if line), len(lines))
    if start == len(lines):
        raise TableError(f"{path}: is empty, not even a header")
    _check_header(path, lines[start], columns)
    start += 1
    while start < len(lines):
        end = _end(lines, start, len(columns))
        cells = split("\n".join(lines[start:end])) if end is not None else None
        row = start + 1
        start = start + 1 if end is None else end
        if cells == [""]:
            continue
        last = unended and start == len(lines)
        why = _damage(cells, columns, last)
        if why is not None:
            notes.add(path.name, row, f"{why}; left out")
        elif cells is not None:
            found = dict(zip(columns, cells, strict=True))
            bad = next((c for c in columns if foreign(found[c])), None)
            if bad is None:
                yield Record(row, found)
            else:
                why = f"{foreign(found[bad])}; row left out"
                notes.add(path.name, row, why, column=bad, cell=found[bad])


def _end(lines: Sequence[str], start: int, width: int) -> int | None:
    # The line after the record that begins at `start`. A quoted field may go on in later lines, but
    # one that is a whole record by itself is never swallowed: then the quote is torn (`None`).
    still_open = lines[start].count('"') % 2 == 1
    end = start + 1
    while still_open:
        if end == len(lines) or len(split(lines[end]) or ()) == width:
            return None
        still_open ^= lines[end].count('"') % 2 == 1
        end += 1
    if end > start + 1 and len(split("\n".join(lines[start:end])) or ()) != width:
        return None
    return end


def _damage(cells: Sequence[str] | None, columns: Sequence[str], unended: bool) -> str | None:
    if cells is None:
        return "torn (a quote is left open or misplaced)"
    if len(cells) != len(columns):
        return f"torn ({len(cells)} cells, not {len(columns)})"
    if cells[0].removeprefix("\ufeff") == columns[0] and list(cells[1:]) == list(columns[1:]):
        return "repeats the header"
    if unended and _SELF_DELIMITING.fullmatch(cells[-1]) is None:
        return "torn (no line end)"
    return None


def foreign(cell: str) -> str | None:
    """What makes a text one that attnbench does not write and no figure can hold, or `None`."""
    if len(cell) > MAX_CELL:
        return f"has more than {MAX_CELL} characters"
    if _NOT_UTF8.search(cell):
        return "is not UTF-8"
    return "holds a control character" if _CONTROL.search(cell) else None


def _check_header(path: Path, line: str, wanted: Sequence[str]) -> None:
    for separator, name in _SEPARATORS.items():
        if line.count(separator) > line.count(","):
            raise TableError(
                f"{path}: row 1 is separated by {name}; attnbench writes ',' between cells and '.' "
                "in numbers"
            )
    header = split(line)
    if header is None:
        raise TableError(f"{path}: row 1 is no header: a quote is left open or misplaced")
    missing = [c for c in wanted if c not in header]
    unknown = [c for c in header if c not in wanted]
    if missing:
        instead = f", {shown(unknown[0])} stands there" if unknown else ""
        raise TableError(f"{path}: row 1: column '{missing[0]}' is missing{instead}")
    if unknown:
        raise TableError(
            f"{path}: row 1: column {shown(unknown[0])} is unknown in schema {SCHEMA_VERSION}"
        )
    for column in wanted:
        if header.count(column) > 1:
            raise TableError(
                f"{path}: row 1: column '{column}' stands {header.count(column)} times"
            )
    if header != list(wanted):
        first = next(a for a, b in zip(header, wanted, strict=True) if a != b)
        raise TableError(f"{path}: row 1: column '{first}' is not in its place")
