# SPDX-License-Identifier: MIT
"""Cells as text in the C locale, and files that are written whole or not at all."""

import contextlib
import csv
import io
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from attnplot.rows import TableError

Cell = str | int | float | bool | None
# C locale only: Python's float() would also take "1_000", " 1" and "infinity".
FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# What a spreadsheet takes for the start of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def format_cell(value: Cell) -> str:
    """A value in the C locale: empty for `None`, `true`/`false`, shortest exact decimal for floats.

    Text that a spreadsheet would take for a formula gets an apostrophe in front, as one types it
    there; numbers, and lists of them, stay as they are.

    Raises:
        ValueError: for NaN and infinities, which no file of ours may hold.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} must not be written")
        return repr(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    text = str(value)
    formula = text.startswith(_FORMULA) and not all(map(FLOAT.fullmatch, text.split(" ")))
    return f"'{text}" if formula else text


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Writes an RFC 4180 file.

    Raises:
        TableError: when the file cannot be written.
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([format_cell(v) for v in row] for row in rows)
    write_text(path, buffer.getvalue())


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text without touching its line ends, whole or not at all.

    Raises:
        TableError: when the file cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file beside its place and moves it there: a full disk leaves what was there before.

    Raises:
        TableError: when the file cannot be written.
    """
    target = path.resolve()  # what a link points to is replaced, not the link
    fresh = target.with_name(target.name + ".new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_bytes(data)
            os.replace(fresh, target)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
    except OSError as error:
        raise TableError(f"{path}: cannot be written ({error.strerror})") from error


def read_text(path: Path) -> str:
    """Reads UTF-8 text without touching its line ends.

    Raises:
        TableError: when the file is missing, unreadable or not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{path}: byte {error.start} is not UTF-8") from error


def split_readme(readme: Path, part: str) -> tuple[str, str]:
    """What stands before and after a generated part, its markers included.

    Args:
        readme: a file with `<!-- part:begin -->` and `<!-- part:end -->`.
        part: the name in the markers.

    Raises:
        TableError: the file cannot be read, or does not hold each marker once and in order.
    """
    text = read_text(readme)
    begin, end = f"<!-- {part}:begin -->", f"<!-- {part}:end -->"
    for marker in (begin, end):
        count = text.count(marker)
        if count != 1:
            raise TableError(f"{readme}: marker '{marker}' stands {count} times, not once")
    head, rest = text.split(begin)
    if end not in rest:
        raise TableError(f"{readme}: marker '{end}' stands before '{begin}'")
    return head + begin, end + rest.split(end)[1]


def write_readme(readme: Path, part: str, text: str) -> None:
    """Replaces what stands between a part's two markers.

    Raises:
        TableError: as `split_readme`, or the file cannot be written.
    """
    head, tail = split_readme(readme, part)
    write_text(readme, f"{head}\n{text}{tail}")


def readme_link(readme: Path, target: Path) -> str:
    """The address of a file as a README links it."""
    return quote(Path(os.path.relpath(target.resolve(), readme.resolve().parent)).as_posix())
