#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Sets up, builds and runs every test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
usage: scripts/test.sh [--all] [--help]

Sets up this machine, builds with warnings as errors (preset ci), runs the C++ tests (ctest) and the
Python tests (pytest), both even when the first fails, and ends with the runners' summary lines.

  --all   between the two: the C++ tests again under the address and undefined-behaviour sanitizers
          (preset sanitize), those with threads under the thread sanitizer (preset thread), and the
          fuzz targets, 20 seconds each (preset fuzz; longer: tests/fuzz/README.md)

One test alone:  ctest --preset ci -R Roofs.NamesAndUnits   or   .venv/bin/pytest -k name
Exit code: 0 when everything passed, 1 otherwise, 2 usage.
HELP
}

all=no
while [ $# -gt 0 ]; do
  case $1 in
    --all) all=yes ;;
    -h | --help) usage && exit 0 ;;
    *) echo "test: unknown option '$1'; scripts/test.sh --help lists them" >&2 && exit 2 ;;
  esac
  shift
done

scripts/setup.sh --dev

mkdir -p build
failed=no
summary=()

# Two tests at a time on two cores: OpenMP threads that wait must sleep then, not spin.
export OMP_WAIT_POLICY=passive

# Builds a preset and runs its tests: ctest_preset <preset> <arguments of ctest ...>
ctest_preset() {
  local preset=$1 log=build/ctest-$1.log
  shift
  echo "test: building preset $preset"
  if ! cmake --preset "$preset" >"build/configure-$preset.log" 2>&1; then
    cat "build/configure-$preset.log"
    failed=yes
    summary+=("ctest, preset $preset: not run, because configuring failed")
  elif ! cmake --build --preset "$preset"; then
    failed=yes
    summary+=("ctest, preset $preset: not run, because the build failed")
  else
    ctest --preset "$preset" "$@" 2>&1 | tee "$log" || failed=yes
    summary+=("ctest, preset $preset: $(grep -E '% tests passed|No tests were found' "$log" | tail -n 1)")
  fi
}

ctest_preset ci -j 2
if [ "$all" = yes ]; then
  ctest_preset sanitize -j 2
  ctest_preset thread -j 2
  ctest_preset fuzz -j 2
fi

.venv/bin/python -m pytest -n 2 --dist loadfile 2>&1 | tee build/pytest.log || failed=yes
summary+=("pytest: $(tail -n 1 build/pytest.log)")

echo
printf '%s\n' "${summary[@]}"
[ "$failed" = no ]
