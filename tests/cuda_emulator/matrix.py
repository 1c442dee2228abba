# SPDX-License-Identifier: MIT
"""Writes the mutation matrix into README.md: runs `mutation` of the builds ci and thread."""

import csv
import io
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build"
BEGIN, END = "<!-- matrix begins -->", "<!-- matrix ends -->"

Row = dict[str, str]


def run(preset: str, mode: str) -> list[Row]:
    program = BUILD / preset / "tests" / "mutation"
    done = subprocess.run([program, mode], stdout=subprocess.PIPE, text=True, check=True)
    return list(csv.DictReader(io.StringIO(done.stdout)))


def reason(row: Row) -> str:
    name, number = row["line"].split(":")
    source = next(HERE.parents[1].glob(f"[it]*/**/{name}")).read_text().splitlines()
    with (HERE / "expected.csv").open() as file:
        for known in csv.DictReader(file):
            if known["file"] == name and known["source"] in source[int(number) - 1]:
                return known["reason"]
    return ""


def verdict(row: Row) -> str:
    if row["expected"] == "nothing":
        return f"redundant: {reason(row)}"
    by = [name for name in ("in_order", "reverse", "random", "greedy") if row[name] != "0"]
    by += ["ThreadSanitizer"] if row["sanitizer"] == "reported" else []
    text = f"real, caught by {', '.join(by).replace('_', '-')}"
    return text + (f"; no order is wrong: {reason(row)}" if row["expected"] == "race" else "")


def table(rows: list[Row]) -> str:
    lines = [
        "| Kernel | Removed | in-order | reverse | random | greedy | ThreadSanitizer | Verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        orders = [
            "wrong" if row["in_order"] != "0" else "right",
            "wrong" if row["reverse"] != "0" else "right",
            f"{row['random']} of 5",
            f"{row['greedy']} of 5",
        ]
        removed = f"`{row['word']}`, {row['line']}"
        cells = [row["kernel"], removed, *orders, row["sanitizer"], verdict(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    rows = run("ci", "schedules")
    sanitizer = {
        (row["kernel"], row["line"]): row["sanitizer"] for row in run("thread", "sanitizer")
    }
    for row in rows:
        row["sanitizer"] = sanitizer[row["kernel"], row["line"]]
    kernels = [row["kernel"] for row in rows]
    rows.sort(key=lambda row: (kernels.index(row["kernel"]), int(row["line"].split(":")[1])))
    readme = HERE / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
