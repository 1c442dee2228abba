#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs every linter; changes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
usage: scripts/lint.sh [TOOL ...] [--help]

Runs the linters, all of them or those named: clang-format clang-tidy ruff mypy shellcheck.
A clean tool prints one line; the findings of the others are printed in full.

To repair:  clang-format -i FILE    .venv/bin/ruff format    .venv/bin/ruff check --fix
Exit code: 0 clean, 1 findings, 2 usage.
HELP
}

tools=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    clang-format | clang-tidy | ruff | mypy | shellcheck) tools+=("$1") ;;
    *) echo "lint: unknown tool or option '$1'; scripts/lint.sh --help lists them" >&2 && exit 2 ;;
  esac
  shift
done
[ ${#tools[@]} -gt 0 ] || tools=(clang-format shellcheck ruff mypy clang-tidy)

scripts/setup.sh --dev

# Files of the project, also those not yet added, that exist: files <pattern ...>
files() {
  git ls-files --cached --others --exclude-standard --deduplicate -- "$@" |
    while read -r file; do [ ! -f "$file" ] || echo "$file"; done
}

mkdir -p build
failed=no
# report <tool and version> <command ...>: one line when it is clean, all it says when not.
report() {
  local what=$1 output
  shift
  if output=$("$@" 2>&1); then
    echo "lint: $what: clean"
  else
    failed=yes
    printf '%s\n' "$output"
    echo "lint: $what: findings above" >&2
  fi
}
first_version() { grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1; }

# One line a file: a finding of clang-format points at a blank, and the repair is the same for all.
format_check() {
  local unformatted
  clang-format --dry-run -Werror "$@" >build/clang-format.log 2>&1 && return
  mapfile -t unformatted < <(sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: error: .*/\1/p' build/clang-format.log | sort -u)
  if [ ${#unformatted[@]} -eq 0 ]; then
    cat build/clang-format.log
  else
    echo "not formatted; repair with: clang-format -i ${unformatted[*]}"
  fi
  return 1
}
run_clang_format() {
  local sources
  mapfile -t sources < <(files '*.cpp' '*.hpp' '*.cu' '*.cuh')
  report "clang-format $(clang-format --version | first_version) (${#sources[@]} files)" \
    format_check "${sources[@]}"
}

run_shellcheck() {
  local sources
  mapfile -t sources < <(files 'scripts/*.sh' .ci/run)
  report "shellcheck $(shellcheck --version | first_version) (${#sources[@]} files)" \
    shellcheck "${sources[@]}"
}

run_ruff() {
  local version
  version=$(.venv/bin/ruff --version | first_version)
  report "ruff check $version" .venv/bin/ruff check .
  report "ruff format $version" .venv/bin/ruff format --check .
}

run_mypy() {
  report "mypy $(.venv/bin/mypy --version | first_version)" .venv/bin/mypy
}

# PyPI's, because from version 22 on it passes over the headers of the system: three times as quick as
# Debian's 14. Reads the compile commands of preset ci, the harness in large units, so it needs the generated
# headers but no build. .cu files are left out: their commands are nvcc's.
clang_tidy=.venv/bin/clang-tidy
tidy() {
  cmake --preset ci -B build/tidy -DATTN_UNITY=ON >build/configure-tidy.log 2>&1 ||
    { cat build/configure-tidy.log && return 1; }
  cmake --build build/tidy --target attn_identity generated/presets.cpp >/dev/null || return 1
  # Once is enough for a file that several programs compile: n entries are n^2 looks.
  .venv/bin/python - build/tidy/compile_commands.json <<'PYTHON'
import json, sys
with open(sys.argv[1]) as file:
    commands = {entry["file"]: entry for entry in json.load(file)}
with open(sys.argv[1], "w") as file:
    json.dump(list(commands.values()), file)
PYTHON
  local code=0
  # Its own headers first, then g++'s, for omp.h.
  .venv/bin/python .venv/bin/run-clang-tidy.py -clang-tidy-binary "$clang_tidy" \
    -extra-arg="-idirafter$(g++ -print-file-name=include)" -extra-arg=-Wno-deprecated-declarations \
    -p build/tidy -quiet -j "$(nproc)" "^$PWD/((impls|harness|tests)/.*\\.cpp|build/tidy/.*/unity_.*)\$" \
    >build/clang-tidy.log 2>&1 || code=$?
  # Only the findings: the tool also prints every command line and a count of suppressed warnings.
  sed 's/\x1b\[[0-9;]*m//g' build/clang-tidy.log |
    grep -vE '^(clang-tidy|Enabled checks|[0-9]+ (warnings?|errors?) .*generated|Suppressed |Use -header-filter|Running clang-tidy|\[ *[0-9]+/[0-9]+\]|$)' || true
  return "$code"
}
run_clang_tidy() {
  report "clang-tidy $("$clang_tidy" --version | first_version)" tidy
}

for tool in "${tools[@]}"; do "run_${tool//-/_}"; done
[ "$failed" = no ]
