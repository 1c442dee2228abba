#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a folder of known faults, given as inputs, against every backend.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'HELP'
usage: scripts/cases.sh CASES_DIR [--only GLOB] [--help]

Runs every case of CASES_DIR on every attention backend that is built and runs, through `attnbench
apply` with the case's own options, lets CASES_DIR/check.py judge, and prints a table of case x
backend: pass, refused (and why) or FAIL (and why). A case is a folder with q.npy, k.npy, v.npy and
meta.json: "apply" is the command line, "repeat" how often, and on which threads, the output must be
the same bits; the last of these runs have a busy loop beside them.

  --only GLOB   only the cases whose folder matches, e.g. 'A03*'

The attnbench is $ATTNBENCH, or the build of preset ci or release; check.py needs NumPy, as .venv has.
The CUDA rungs on a machine without a GPU:  ATTNBENCH=build/ci/tests/attnbench_emulated scripts/cases.sh …

Exit code: 0 when cpu.naive passes every case and no backend fails one (a backend may refuse what
cpu.naive does); 1 otherwise; 2 usage.
HELP
}

fail() {
  echo "cases: $1" >&2
  exit 2
}

dir=""
only="*"
while [ $# -gt 0 ]; do
  case $1 in
    --only) only=${2:?"cases: --only needs a glob"} && shift ;;
    -h | --help) usage && exit 0 ;;
    -*) fail "unknown option '$1'; scripts/cases.sh --help lists them" ;;
    *) [ -z "$dir" ] || fail "one folder of cases, not '$dir' and '$1'" && dir=$1 ;;
  esac
  shift
done
[ -n "$dir" ] || fail "name the folder of cases; scripts/cases.sh --help explains"
[ -f "$dir/check.py" ] || fail "$dir has no check.py"
dir=$(cd "$dir" && pwd)

bench=${ATTNBENCH:-}
for preset in ci release; do
  [ -n "$bench" ] || [ ! -x "$here/build/$preset/attnbench" ] || bench=$here/build/$preset/attnbench
done
[ -x "$bench" ] || fail "there is no attnbench at '${bench:-build/ci or build/release}'; build it first"
python=$here/.venv/bin/python
[ -x "$python" ] || python=python3

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# field NAME: one value of the case's meta.json, words of a list apart, empty where there is none.
field() {
  "$python" - "$case_dir/meta.json" "$1" <<'PY'
import json, sys
value = json.load(open(sys.argv[1]))
for key in sys.argv[2].split("."):
    value = (value or {}).get(key)
print("" if value is None else " ".join(map(str, value)) if isinstance(value, list) else value)
PY
}

# apply BACKEND OUT [OPTION...]: the case's own line; its files lie in the case's folder.
apply() {
  local backend=$1 out=$2
  shift 2
  local -a words
  read -ra words <<<"$line"
  [ "${words[0]} ${words[1]} ${words[2]}" = "attnbench apply BACKEND" ] ||
    fail "$case_dir/meta.json: \"apply\" is '$line'"
  local -a options=()
  local word previous=""
  for word in "${words[@]:3}"; do
    case $previous in
      --q | --k | --v) word=$case_dir/$word ;;
      --out) word=$out ;;
    esac
    options+=("$word")
    previous=$word
  done
  "$bench" apply "$backend" "${options[@]}" "$@" >/dev/null 2>"$scratch/stderr"
}

# Why the outputs of COUNT runs on so many threads differ, or nothing. Half of them run beside a busy
# loop, which ends by itself should this script be killed.
repeat() {
  local backend=$1 count=$2 threads=$3 run first="" again busy=""
  for run in $(seq "$count"); do
    if [ "$run" -eq $((count / 2 + 1)) ]; then
      timeout 300 bash -c 'while :; do :; done' >/dev/null 2>&1 &
      busy=$!
    fi
    if ! apply "$backend" "$scratch/again.npy" --threads "$threads"; then
      echo "run $run on $threads threads: $(cat "$scratch/stderr")"
      break
    fi
    again=$(sha256sum <"$scratch/again.npy")
    first=${first:-$again}
    if [ "$first" != "$again" ]; then
      echo "run $run on $threads threads has other bits than run 1"
      break
    fi
  done
  if [ -n "$busy" ]; then
    kill "$busy"
    wait "$busy" || true
  fi
}

# Prints the outcome of one case on one backend: pass, "refused: ..." or "FAIL: ...".
judge() {
  local backend=$1 code=0 verdict threads
  rm -f "$scratch/z.npy"
  apply "$backend" "$scratch/z.npy" || code=$?
  if [ "$code" -eq 4 ] && [ "$backend" != cpu.naive ]; then
    echo "refused: $(sed 's/^attnbench: //' "$scratch/stderr")"
  elif [ "$code" -ne 0 ] && [ "$code" -ne 2 ] && [ "$code" -ne 4 ]; then
    echo "FAIL: exit code $code, $(head -c 300 "$scratch/stderr")"
  elif [ "$code" -ne 0 ]; then
    verdict=$("$python" "$dir/check.py" "$case" --refused "$code" "$scratch/stderr") || {
      echo "FAIL: ${verdict#FAIL "$case": }: exit code $code, $(head -c 300 "$scratch/stderr")"
      return
    }
    echo "pass"
  else
    verdict=$("$python" "$dir/check.py" "$case" "$scratch/z.npy" 2>&1) || {
      echo "FAIL: ${verdict#FAIL "$case": }"
      return
    }
    verdict=""
    for threads in $threads_list; do
      verdict=${verdict:-$(repeat "$backend" "$runs" "$threads")}
    done
    echo "${verdict:+FAIL: }${verdict:-pass}"
  fi
}

backends=$("$bench" list --json | "$python" -c '
import json, sys
for backend in json.load(sys.stdin)["backends"]:
    ours = backend["runs"] and not backend["peer"]
    if ours and backend["family"] in ("attention", "sparse", "linear"):
        print(backend["name"])')
[ -n "$backends" ] || fail "no attention backend runs here"

declare -A count=([pass]=0 [refused]=0 [FAIL]=0)
reasons=""
# shellcheck disable=SC2086 # a list of names
printf '%-10s' case && printf ' %-18s' $backends && echo
for case_dir in "$dir"/*/; do
  case_dir=${case_dir%/}
  case=$(basename "$case_dir")
  # shellcheck disable=SC2053 # a glob
  if [[ $case != $only ]] || [ ! -f "$case_dir/meta.json" ]; then continue; fi
  line=$(field apply)
  runs=$(field repeat.runs)
  threads_list=$(field repeat.threads)
  printf '%-10s' "$case"
  for backend in $backends; do
    outcome=$(judge "$backend")
    word=${outcome%%:*}
    count[$word]=$((count[$word] + 1))
    printf ' %-18s' "$word"
    [ "$word" = pass ] || reasons+="$word  $case  $backend: ${outcome#*: }"$'\n'
  done
  echo
done
printf '%s' "$reasons"
echo "cases: ${count[pass]} pass, ${count[refused]} refused, ${count[FAIL]} FAIL"
[ $((count[pass] + count[refused] + count[FAIL])) -gt 0 ] || fail "no case of $dir matches '$only'"
[ "${count[FAIL]}" -eq 0 ]
