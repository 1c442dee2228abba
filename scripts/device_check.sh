#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# All that only a machine with a GPU can tell, in one go of at most eight minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

budget=480 sweep_budget=300

usage() {
  cat <<'HELP'
usage: scripts/device_check.sh [--preset NAME] [--no-build] [--emulated] [--out DIR] [--help]

For a machine with a CUDA device and toolkit. Builds what it needs, then, within eight minutes:

  golden       what the device makes of each word that the emulator imitates, as small files
  golden_compare   whether the emulator makes the same of them; for its tests to compare from then on:
               mkdir -p tests/cuda_emulator/golden && cp DIR/golden/* tests/cuda_emulator/golden/
  conformance  every case of the conformance suite on every backend of impls/cuda
  memcheck, racecheck   compute-sanitizer on a few of the cases, where the tool is installed
  run          the rungs of impls/cuda, interleaved: 16 heads of 64 and 128, causal and not,
               n = 512 ... 8192; five minutes, a call of more than a second is cut off
  table        `attnplot table` of it, where scripts/setup.sh has made .venv

A step that fails or runs out of time keeps what it has and the next one follows. DIR, by default
out/device-<UTC time>, gets logs, conformance.xml, golden/, run/, nvidia-smi -q from before and after,
and summary.md, which says what ran, what did not and why. Its path is the last line.

  --preset NAME   the build to use (cuda; with --emulated: release)
  --no-build      what is built already is right; building does not count as part of the eight minutes
  --emulated      try the script itself on a machine without a GPU: every step on the emulated device,
                  few cases, n = 32 and 64; what it measures says nothing of any device
  --out DIR       a folder that does not exist yet

Exit code: 0 good, 1 something is wrong, 2 usage, 4 nothing measured because there is no device.
HELP
}

fail() {
  echo "device_check: $1" >&2
  exit "${2:-2}"
}

preset='' build=yes emulated=no out=out/device-$(date -u +%Y%m%dT%H%M%SZ)
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --no-build) build=no ;;
    --emulated) emulated=yes ;;
    --preset | --out)
      [ -n "${2:-}" ] || fail "$1 wants a value; scripts/device_check.sh --help explains"
      if [ "$1" = --preset ]; then preset=$2; else out=$2; fi
      shift
      ;;
    *) fail "unknown option '$1'; scripts/device_check.sh --help lists them" ;;
  esac
  shift
done
[ ! -e "$out" ] || fail "--out: $out is there already; choose another folder"

if [ "$emulated" = yes ]; then
  preset=${preset:-release}
  attnbench=attnbench_emulated conformance=emulated_conformance_test golden=golden_emulated
  cases='*cuda_*core_causal_n31:*cuda_*heads6_3' axes=(--n '32,64' --heads 2 --max-samples 3)
else
  preset=${preset:-cuda}
  attnbench=attnbench conformance=conformance_test golden=golden
  cases='*cuda_*' axes=(--n 512:8192 --heads 16 --max-samples 8)
  # Before minutes of building. WSL and Jetson name their devices otherwise.
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || compgen -G '/dev/nvhost*' >/dev/null ||
    [ -e /dev/dxg ] || fail "no CUDA device: /dev has none; nothing was run (--emulated tries the script itself)" 4
fi
axes+=(--only 'cuda.*' --head-dim '64,128' --causal both --cutoff-time 1s --timeout 20s)
few_cases='*cuda_*core_causal_n129:*cuda_*heads8_2_slack:*cuda_*few_queries_causal*:*cuda_*few_keys*:*cuda_*_d128'

if [ "$build" = yes ]; then
  echo "device_check: building preset $preset"
  cmake --preset "$preset" >/dev/null || fail "'cmake --preset $preset' failed" 1
  cmake --build --preset "$preset" --target "$attnbench" "$conformance" "$golden" golden_emulated ||
    fail "the build of preset $preset failed" 1
fi
# The path of a built program: program <target>
program() {
  local path
  for path in "build/$preset/$1" "build/$preset/tests/$1" "build/$preset/tests/cuda/$1"; do
    if [ -f "$path" ] && [ -x "$path" ]; then echo "$path" && return; fi
  done
  fail "build/$preset has no program $1; build it, or leave out --no-build"
}
attnbench=$(program "$attnbench")
conformance=$(program "$conformance")
golden=$(program "$golden")
golden_emulated=$(program golden_emulated)

mkdir -p "$out/golden"
SECONDS=0
wrong=0
say() { printf '[%3d s of %d] %s\n' "$SECONDS" "$budget" "$*"; }
note() { echo "$*" >>"$out/summary.md"; }
# report <step> <outcome ...>: a line on the screen and in the summary
report() {
  local step=$1
  shift
  say "$step: $*"
  note "| $step | $SECONDS | $* |"
}

# step <name> <seconds> <command ...>: runs it with output to <name>.log; `code` is how it ended, 124
# when its own time was up, 125 when no time was left for it.
step() {
  local name=$1 limit=$2
  shift 2
  [ "$limit" -le $((budget - SECONDS)) ] || limit=$((budget - SECONDS))
  code=125
  [ "$limit" -gt 0 ] || return 0
  say "$name: at most $limit s, output in $out/$name.log"
  code=0
  timeout --foreground --signal=INT --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1 || code=$?
  [ "$code" -ne 130 ] || { report "$name" "interrupted" && echo "$out" && exit 130; }
}
# judge <step> <good outcome>: of a step that is right when it ended with 0
judge() {
  case $code in
    0) report "$1" "$2" ;;
    125) report "$1" "not run: the time was up" ;;
    124) wrong=1 && report "$1" "WRONG: not finished in its time" ;;
    *) wrong=1 && report "$1" "WRONG: ended with $code: $(tail -n 1 "$out/$1.log")" ;;
  esac
}
# judge_cases <step> <good outcome>: of a run of the conformance suite, which calls no case at all good
judge_cases() {
  local passed refused
  passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$out/$1.log" 2>/dev/null || true)
  refused=$(grep -c '^\[  SKIPPED \].*ms)' "$out/$1.log" 2>/dev/null || true)
  if [ "$code" -eq 0 ] && [ "${passed:-0}" -eq 0 ]; then
    wrong=1
    report "$1" "WRONG: no case passed, $refused refused"
  else
    judge "$1" "$2: ${passed:-0} cases, and $refused refused"
  fi
}

step golden 30 "$golden" write "$out/golden"
if [ "$code" -eq 4 ]; then
  reason=$(tail -n 1 "$out/golden.log")
  rm -r "$out"
  fail "${reason#golden: }; nothing was run" 4
fi
note "# Device check of $(date -u +%Y-%m-%d)"
note ""
note "Device: $(cat "$out/golden/device.txt" 2>/dev/null || echo unknown) · commit: $(git rev-parse HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ', changed') · preset: $preset"
[ "$emulated" = no ] || note "Tried on the emulated device: no number here says anything of a device."
note ""
note "| step | ended after, s | outcome |"
note "|---|---|---|"
judge golden "$(find "$out/golden" -name '*.txt' ! -name device.txt | wc -l) outputs written"

step golden_compare 30 "$golden_emulated" compare "$out/golden"
judge golden_compare "the emulator agrees"

smi() { timeout 20 nvidia-smi -q >"$out/nvidia-smi-$1.txt" 2>&1 || true; }
if command -v nvidia-smi >/dev/null; then
  smi before
else
  report nvidia-smi "not run: it is not installed here"
fi

step conformance 120 "$conformance" --gtest_filter="$cases" --gtest_output="xml:$out/conformance.xml"
judge_cases conformance "passed"

for tool in memcheck racecheck; do
  if [ "$emulated" = yes ]; then
    report $tool "not run: compute-sanitizer needs a device"
  elif ! command -v compute-sanitizer >/dev/null; then
    report $tool "not run: compute-sanitizer is not installed here"
  else
    step $tool 45 compute-sanitizer --tool $tool --error-exitcode 9 "$conformance" --gtest_filter="$few_cases"
    judge_cases $tool "nothing found"
  fi
done

# What is left of its time is for the table.
[ $((SECONDS + sweep_budget)) -le $((budget - 30)) ] || sweep_budget=$((budget - 30 - SECONDS))
step run "$sweep_budget" "$attnbench" run "${axes[@]}" --out "$out/run"
measured=yes
case $code in
  0) report run "$(grep -E '^[0-9]+ points' "$out/run.log" | tail -n 1)" ;;
  124) report run "unfinished: its time was up; what it measured is kept, and attnbench run --resume --out $out/run goes on" ;;
  4) measured=no && report run "nothing measured: $(tail -n 1 "$out/run.log")" ;;
  *) judge run "" ;;
esac
! command -v nvidia-smi >/dev/null || smi after

if [ ! -x .venv/bin/attnplot ]; then
  report table "not run: there is no .venv/bin/attnplot; scripts/setup.sh makes it"
elif [ ! -f "$out/run/results.csv" ]; then
  report table "not run: there is no results.csv"
else
  step table 60 .venv/bin/attnplot table "$out/run"
  judge table "in table.log"
fi

echo "$out"
[ "$wrong" -eq 0 ] || exit 1
[ "$measured" = yes ] || exit 4
