# SPDX-License-Identifier: MIT
"""The command line of attnplot.

Exit codes: 0 good, 2 usage, 4 nothing was measured, 6 a file could not be read or written or is not
what attnbench writes. Errors are one sentence on stderr.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from attnplot import __version__, figures
from attnplot.bars import write_bars
from attnplot.crossover import write_crossovers
from attnplot.files import split_readme
from attnplot.fit import MIN_N, write_fits
from attnplot.report import FORMATS, README_PART, update_readme, write_report
from attnplot.selection import SelectionError, baseline_name, complexity
from attnplot.table import Table, TableError, load
from attnplot.tables import analyse, terminal

USAGE = 2
NOTHING_MEASURED = 4
FILE = 6

_EPILOG = """\
a first look:
  attnplot table out/2026-01-02T030405Z          exponents, crossovers and decode in the terminal
  attnplot report out/2026-01-02T030405Z         fits.csv, crossovers.csv, figures/ and report.md

exit codes:
  0 good   2 usage   4 nothing was measured   6 a file is missing, foreign or cannot be written
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence instead of argparse's usage block."""
        self.exit(USAGE, f"attnplot: {message}; '{self.prog} --help' shows what would work\n")


def _size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive integer")
    return int(text)


def _formats(text: str) -> tuple[str, ...]:
    wanted = tuple(dict.fromkeys(text.split(",")))
    for name in wanted:
        if name not in FORMATS:
            raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(FORMATS)}")
    return wanted


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="attnplot",
        description="Reads a results folder of attnbench (results.csv, samples.csv, run.json).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"attnplot {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, summary: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary, description=text, allow_abbrev=False)
        command.add_argument("dir", metavar="DIR", type=Path, help="the results folder")
        return command

    fit = add(
        "fit",
        "exponents, memory degrees and crossovers as CSV",
        "Writes DIR/fits.csv (time exponents with 95 %% intervals, exact memory degrees, two- and "
        "three-term models) and DIR/crossovers.csv (attention against RNN, GRU and LSTM).",
    )
    plot = add(
        "plot",
        "figures as PNG and SVG",
        "Writes DIR/figures/KIND.png and .svg for every kind that the run has points for.",
    )
    plot.add_argument(
        "--kind",
        action="append",
        choices=list(figures.KINDS),
        help="only this figure; may be given more than once (default: all)",
    )
    table = add(
        "table",
        "result tables in the terminal",
        "Prints Markdown: exponents, memory degrees, ratios, crossovers, decode, and every row "
        "without a time together with its reason.",
    )
    report = add(
        "report",
        "everything, as Markdown or as one web page",
        "Writes fits.csv, crossovers.csv and the report into DIR, also when no row has a time.",
    )
    report.add_argument(
        "--format",
        metavar="FORMATS",
        type=_formats,
        default=("md",),
        help="md: report.md and figures/ (default); html: report.html, one file with figures and "
        "every point, which loads nothing; md,html: both",
    )
    report.add_argument(
        "--readme",
        metavar="FILE",
        type=Path,
        help="also replace the text of FILE between '<!-- attnplot:begin -->' and "
        "'<!-- attnplot:end -->' by one figure and one table",
    )
    bars = commands.add_parser(
        "bars",
        help="what the CPU kernels must reach, beside their peers",
        description="Prints the bars of the CPU kernels with what the runs reached, intervals, "
        "verdicts and the peers' rates, and writes bars.md and bars.csv. "
        "scripts/bench_peers.sh makes the runs.",
        allow_abbrev=False,
    )
    bars.add_argument(
        "dirs", metavar="DIR", type=Path, nargs="+", help="results folders of one machine and build"
    )
    bars.add_argument(
        "--out", metavar="FOLDER", type=Path, help="where the two files go (the folder of DIR)"
    )
    bars.add_argument(
        "--readme",
        metavar="FILE",
        type=Path,
        help="also replace the text of FILE between '<!-- bars:begin -->' and '<!-- bars:end -->' "
        "by a link to bars.md and the table of bars",
    )
    for command in (fit, table, report):
        command.add_argument(
            "--min-n",
            metavar="N",
            type=_size,
            default=MIN_N,
            help=f"smallest n of an exponent (default {MIN_N}: below it, constant costs weigh in)",
        )
    for command in (plot, table, report):
        command.add_argument(
            "--baseline",
            metavar="NAME",
            help="backend that ratios refer to (default blas.three_step, else the first)",
        )
    return parser


def _note(text: str) -> None:
    print(f"attnplot: note: {text}", file=sys.stderr)


def _plot(table: Table, kinds: Sequence[str] | None, baseline: str | None) -> int:
    written: list[Path] = []
    for kind in kinds or figures.KINDS:
        try:
            written += figures.save(figures.make(table, kind, baseline), table.folder, kind)
        except figures.NothingToDraw as error:
            if kinds:
                raise
            _note(f"no figure '{kind}': {error}")
    for path in written:
        print(path)
    return 0 if written else NOTHING_MEASURED


def _bars(folders: Sequence[Path], out: Path | None, readme: Path | None) -> int:
    text, notes, measured = write_bars(folders, out or folders[0].resolve().parent, readme)
    for note in notes:
        _note(note)
    if not measured:
        names = ", ".join(map(str, folders))
        raise figures.NothingToDraw(f"{names}: nothing was measured")
    print(text, end="")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "bars":
        return _bars(arguments.dirs, arguments.out, arguments.readme)
    table = load(arguments.dir)
    for note in table.notes:
        _note(note)
    reasons = ", ".join(sorted({p.status for p in table.points})) or "no rows"
    nothing = figures.NothingToDraw(f"{table.folder}: nothing was measured ({reasons})")
    # A report says so itself: it lists every row and why it has no time.
    if not table.measured and arguments.command != "report":
        raise nothing
    baseline: str | None = getattr(arguments, "baseline", None)
    if baseline is not None:
        baseline_name(complexity(table), baseline)  # refuse before anything is written
    if arguments.command == "plot":
        return _plot(table, arguments.kind, baseline)
    results = analyse(table, arguments.min_n, baseline)
    if arguments.command == "table":
        print(terminal(results), end="")
        return 0
    if arguments.command == "fit" and not results.fits:
        raise figures.NothingToDraw(
            f"{table.folder}: nothing to fit, no point lies on a curve in n"
        )
    readme: Path | None = getattr(arguments, "readme", None)
    if readme is not None:
        split_readme(readme, README_PART)  # the same
    write_fits(table, results.fits)
    write_crossovers(table, results.crossovers)
    written = [table.folder / "fits.csv", table.folder / "crossovers.csv"]
    if arguments.command == "report":
        written += write_report(results, arguments.format)
        if readme is not None and table.measured:
            update_readme(results, readme)
            written.append(readme)
    for path in written:
        print(path)
    if not table.measured:
        raise nothing
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs attnplot.

    Args:
        argv: arguments without the program's name; `None` takes those of the process.

    Returns:
        The exit code (usage errors leave through `SystemExit` with 2).
    """
    # The same bytes in every locale; a path may hold bytes that are not UTF-8.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except OSError as error:
        # What is still buffered must not fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code, text = FILE, f"standard output: {error.strerror}"
    except TableError as error:
        code, text = FILE, str(error)
    except SelectionError as error:
        code, text = USAGE, str(error)
    except figures.NothingToDraw as error:
        code, text = NOTHING_MEASURED, str(error)
    print(f"attnplot: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
