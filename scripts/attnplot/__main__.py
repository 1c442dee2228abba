# SPDX-License-Identifier: MIT
"""`python -m attnplot` is the same as the console script `attnplot`."""

import sys

from attnplot.cli import main

sys.exit(main())
