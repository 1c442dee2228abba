# SPDX-License-Identifier: MIT
from pathlib import Path

import pytest

from attnplot import figures
from attnplot.files import write_text
from attnplot.report import report, write_report
from attnplot.table import load
from attnplot.tables import analyse
from synthetic import default_sweep


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run like the default sweep, every row with its command, one of them noisy, reported."""
    run = default_sweep(processes=5)
    for i, row in enumerate(run.rows):
        row["repro_cmd"] = f"attnbench run --only {row['backend']} --n {row['n_kv']} --tag row={i}"
    run.rows[3]["noisy"] = True
    folder = run.write(tmp_path_factory.mktemp("run"))
    results = analyse(load(folder))
    write_report(results, ("html",))
    write_text(folder / "report.md", report(results, figures.KINDS))
    return folder
