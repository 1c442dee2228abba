#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Registers, shared memory and spills of every CUDA kernel: the table, and what changed in it.

Reads what `nvcc -Xptxas -v` printed, a log named FILE.log for each source file. Needs Python and
c++filt alone. Exit codes: 0 the table is right, 1 it is not, 2 usage, 77 it is another nvcc's.
"""

import argparse
import csv
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

KEY = ("file", "kernel", "architecture")
COUNTS = (
    "registers",
    "static_shared_bytes",
    "stack_bytes",
    "spill_store_bytes",
    "spill_load_bytes",
)
COLUMNS = ("nvcc", *KEY, *COUNTS)
SKIPPED = 77

Key = tuple[str, ...]
Table = dict[Key, dict[str, str]]


class BadInputError(Exception):
    """A file that is not what it should be, in one sentence."""


def demangled(text: str) -> str:
    """The text with the mangled names of C++ in it spelt out."""
    done = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True)
    return done.stdout


def short_name(signature: str) -> str:
    """`void a::(anonymous namespace)::f<64, a::B>(int)` is `f<64, B>`."""
    name = re.sub(r"\w+::", "", signature.replace("(anonymous namespace)::", ""))
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            name = name[:at]
            break
    return name.removeprefix("void ").replace("> >", ">>")


def kernels(log: str, file: str) -> Table:
    """What ptxas said of each function and architecture; only a kernel has registers."""
    found: Table = {}
    architecture = ""
    row: dict[str, str] = {}
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function .* for '(sm_\w+)'", line):
            architecture = match[1]
        elif match := re.search(r"Function properties for (.*)", line):
            key = (file, short_name(match[1]), architecture)
            if key in found:
                raise BadInputError(
                    f"{file} has two kernels {key[1]}; give one of them another name"
                )
            row = found[key] = dict.fromkeys(COUNTS, "")
        elif match := re.search(
            r"(\d+) bytes stack.* (\d+) bytes spill s.* (\d+) bytes spill l", line
        ):
            row.update(zip(COUNTS[2:], match.groups(), strict=True))
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            row.update(registers=match[1], static_shared_bytes=shared[1] if shared else "0")
    return found


def order(key: Key) -> tuple[Key, int]:
    """By file, kernel and the architecture's number."""
    return key[:2], int(re.sub(r"\D", "", key[2]))


def read_logs(logs: Iterable[Path]) -> Table:
    """The table as the compiler would have it now."""
    table: Table = {}
    for log in logs:
        table |= kernels(demangled(log.read_text()), log.stem)
    if not table:
        raise BadInputError("no kernel in any log; was it written by nvcc -Xptxas -v?")
    return dict(sorted(table.items(), key=lambda row: order(row[0])))


def read_table(path: Path) -> tuple[str, Table]:
    """The version of nvcc, and what it made of each kernel."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    versions = {row.get("nvcc", "") for row in rows}
    if not rows or tuple(rows[0]) != COLUMNS or len(versions) != 1:
        raise BadInputError(f"{path} is no table of one nvcc with the columns {','.join(COLUMNS)}")
    return versions.pop(), {tuple(r[k] for k in KEY): {c: r[c] for c in COUNTS} for r in rows}


def write_table(path: Path, nvcc: str, table: Table) -> None:
    """Replaces the file."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows((nvcc, *key, *counts.values()) for key, counts in table.items())


def spilling(table: Table) -> list[str]:
    """A line for each function that keeps registers in memory."""
    stores, loads = COUNTS[-2:]
    return [
        f"{' '.join(key)}: {stores} {row[stores]}, {loads} {row[loads]}"
        for key, row in table.items()
        if (row[stores], row[loads]) != ("0", "0")
    ]


def changes(old: Table, new: Table) -> list[str]:
    """A line for each kernel and architecture that is not as it was."""
    lines = []
    for key in sorted({*old, *new}, key=order):
        if key not in new:
            what = "gone"
        elif key not in old:
            what = "new: " + ", ".join(f"{c} {new[key][c]}" for c in COUNTS)
        else:
            differ = [c for c in COUNTS if old[key][c] != new[key][c]]
            what = ", ".join(f"{c} {old[key][c]} -> {new[key][c]}" for c in differ)
        if what:
            lines.append(f"{' '.join(key)}: {what}")
    return lines


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="cuda_resources", description=__doc__)
    parser.add_argument("logs", nargs="+", type=Path, metavar="FILE.log")
    parser.add_argument("--table", required=True, type=Path, help="the table, a CSV")
    parser.add_argument("--nvcc", required=True, help="version of the nvcc that wrote the logs")
    parser.add_argument(
        "--write", action="store_true", help="rewrite the table instead of comparing"
    )
    parser.add_argument(
        "--allow-spills", action="store_true", help="with --write: also with spills"
    )
    parser.add_argument("--rewrite-command", default="the same and --write", help="what to suggest")
    options = parser.parse_args(arguments)
    fresh = read_logs(options.logs)

    if options.write:
        spills = spilling(fresh)
        if spills and not options.allow_spills:
            print("\n".join(spills), file=sys.stderr)
            raise BadInputError(
                "kernels do not spill: repair these, or write the table with --allow-spills"
            )
        write_table(options.table, options.nvcc, fresh)
        print(f"cuda_resources: {options.table}: {len(fresh)} rows")
        return 0

    nvcc, table = read_table(options.table)
    if nvcc != options.nvcc:
        print(f"cuda_resources: skipped: {options.table} is nvcc {nvcc}'s, this is {options.nvcc}")
        return SKIPPED
    if lines := changes(table, fresh):
        print("\n".join(lines))
        print(f"cuda_resources: {len(lines)} rows of {options.table} have changed; if they should,")
        print(f"rewrite it with: {options.rewrite_command}")
        return 1
    print(f"cuda_resources: {len(fresh)} rows as in {options.table}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (BadInputError, OSError) as error:
        print(f"cuda_resources: {error}", file=sys.stderr)
        sys.exit(1)
