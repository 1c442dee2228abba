# SPDX-License-Identifier: MIT
"""attnplot: turns the CSV files of an attnbench run into exponents, plots and tables.

It knows only the files of a run folder (`results.csv`, `samples.csv`, `run.json`), never the
program that wrote them.
"""

__version__ = "0.1.0"
