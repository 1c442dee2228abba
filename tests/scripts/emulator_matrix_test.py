# SPDX-License-Identifier: MIT
"""The matrix in the emulator's README speaks of the kernels as they are."""

import re
from collections import defaultdict

from binary import ROOT

README = ROOT / "tests" / "cuda_emulator" / "README.md"
WORDS = r"__syncthreads|__syncwarp|cp_async_wait"


def test_every_synchronisation_of_every_kernel_has_its_row() -> None:
    rows: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for word, file, line in re.findall(rf"`({WORDS})`, (\w+\.cu):(\d+)", README.read_text()):
        rows[file].add((int(line), word))
    assert len(rows) >= 6
    folders = [ROOT / "impls" / "cuda", ROOT / "tests" / "cuda_emulator" / "kernels"]
    for path in [p for folder in folders for p in sorted(folder.glob("*.cu"))]:
        found = set()
        for number, text in enumerate(path.read_text().splitlines(), start=1):
            if match := re.search(rf"\b({WORDS})\b", text.split("//")[0]):
                found.add((number, match[1]))
        if path.name != "words.cu":  # single words, no kernel to remove one from
            assert rows.pop(path.name, set()) == found, (
                f"{path.name}: run python3 tests/cuda_emulator/matrix.py"
            )
    assert not rows, "rows of kernels that are gone"
