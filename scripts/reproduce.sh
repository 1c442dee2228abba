#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# From a fresh clone to measured curves: set up, build, measure, fit, plot, report.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
usage: scripts/reproduce.sh [--quick] [--publish] [--out DIR] [--help]

Sets up this machine, builds attnbench, runs the default sweep (n = 128 ... 8192, five to six
minutes on two cores), then fits exponents, draws the plots, writes the report and prints the table.

  --quick     the same with n up to 2048: about a minute
  --publish   five worker processes, ten rounds: intervals that hold between runs; the results go
              to results/<cpu model>/<date>-<build_id>/ and the README, to be committed
  --out DIR   where the results go; otherwise out/<UTC time>/, which git ignores

For numbers worth keeping: mains power, the governor "performance", nothing else running.

Exit codes: 0 good; 1 a result was wrong, mistrusted, failed or timed out (everything is still
plotted); 2 usage; any other code is that of the step that failed. Interrupted (Ctrl-C), nothing that
was measured is lost, and the last line says how to go on.
HELP
}

fail() {
  echo "reproduce: $1" >&2
  exit "${2:-1}"
}
warn() { echo "reproduce: warning: $*" >&2; }

quick=no
publish=no
out=""
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=yes ;;
    --publish) publish=yes ;;
    --out)
      [ -n "${2:-}" ] || fail "--out needs a folder, as in --out out/mine" 2
      out=$2 && shift
      ;;
    --out=?*) out=${1#--out=} ;;
    -h | --help) usage && exit 0 ;;
    *) fail "unknown option '$1'; scripts/reproduce.sh --help lists them" 2 ;;
  esac
  shift
done

if [ "$quick" = yes ] && [ "$publish" = yes ]; then
  fail "--quick and --publish exclude each other: what is published is the whole sweep" 2
fi

# Before our own build raises it.
load=$(cut -d ' ' -f 1 /proc/loadavg 2>/dev/null || echo 0)

step() {
  local code=0
  "$@" || code=$?
  [ "$code" -eq 0 ] || fail "'$*' ended with $code" "$code"
}

step scripts/setup.sh
[ -x .venv/bin/attnplot ] || fail "setup left no .venv/bin/attnplot; remove .venv and try again"
echo "reproduce: building"
step cmake --preset release
step cmake --build --preset release --target attnbench
attnbench=build/release/attnbench

slug() {
  local model
  model=$(LC_ALL=C lscpu 2>/dev/null | sed -n 's/^Model name:[[:space:]]*//p' | head -n 1)
  [ -n "$model" ] || model=$(uname -m)
  # "Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz" is intel-core-i7-8550u.
  echo "$model" | tr '[:upper:]' '[:lower:]' |
    sed -e 's/([a-z]*)//g; s/ @ .*//; s/[[:space:]]cpu\([[:space:]]\|$\)/ /; s/[^a-z0-9]\{1,\}/-/g; s/^-//; s/-$//'
}

if [ -z "$out" ] && [ "$publish" = yes ]; then
  build_id=$("$attnbench" list --json |
    .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["build_id"])') ||
    fail "'$attnbench list --json' gave no build_id"
  out="results/$(slug)/$(date -u +%Y-%m-%d)-$build_id"
fi
[ -n "$out" ] || out="out/$(date -u +%Y%m%dT%H%M%SZ)"
if [ -e "$out/samples.csv" ]; then
  fail "$out holds a run already; finish it with '$attnbench run --resume --out $out' or choose another --out" 2
fi

# What the CPUs did during one second, as "busy stolen" in CPUs.
cpu_use() {
  { head -n 1 /proc/stat && sleep 1 && head -n 1 /proc/stat; } | awk -v cpus="$(nproc --all)" '
    { for (i = 2; i <= 9; ++i) { now[i] = $i; if (NR == 1) before[i] = $i } }
    END {
      for (i = 2; i <= 9; ++i) total += now[i] - before[i]
      idle = now[5] + now[6] - before[5] - before[6]
      stolen = now[9] - before[9]
      if (total <= 0) total = 1
      printf "%.2f %.2f\n", cpus * (total - idle - stolen) / total, cpus * stolen / total
    }'
}
above() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > b) }'; }

for supply in /sys/class/power_supply/*/; do
  if [ "$(cat "$supply/type" 2>/dev/null)" = Battery ] &&
    [ "$(cat "$supply/status" 2>/dev/null)" = Discharging ]; then
    warn "this machine runs on its battery; on mains power the clock is steadier"
  fi
done
governors=$(cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor 2>/dev/null | sort -u | xargs || true)
if [ -n "$governors" ] && [ "$governors" != performance ]; then
  warn "the CPU governor is '$governors'; with 'performance' the clock is steadier"
fi
if above "$load" 0.3; then
  warn "the load average was $load before the build; other programs disturb the measurement"
fi
read -r busy stolen < <(cpu_use 2>/dev/null || echo "0 0")
if above "$busy" 0.3; then
  warn "other programs are using $busy CPUs right now; the measurement will be disturbed"
fi
if above "$stolen" 0.05; then
  warn "the host takes $stolen CPUs away from this virtual machine; the measurement will be disturbed"
fi
if [ "$publish" = yes ] && [ -n "$(git status --porcelain -- impls harness CMakeLists.txt 2>/dev/null)" ]; then
  warn "impls/, harness/ or CMakeLists.txt has changes that are not committed; the rows will say git_dirty"
fi

selection=()
[ "$quick" = no ] || selection+=(--preset quick)
[ "$publish" = no ] || selection+=(--processes 5)

# With a trap the shell outlives Ctrl-C and can say how to go on; attnbench gets the signal itself.
interrupted=0
trap 'interrupted=130' INT
trap 'interrupted=143' TERM
echo "reproduce: measuring into $out"
code=0
"$attnbench" run "${selection[@]}" --out "$out" || code=$?
trap - INT TERM
if [ "$code" -eq 130 ] || [ "$code" -eq 143 ] || [ "$interrupted" -ne 0 ]; then
  [ "$code" -ge 128 ] || code=$interrupted
  fail "interrupted; go on with: $attnbench run --resume --out $out && .venv/bin/attnplot report $out" "$code"
fi
[ "$code" -le 1 ] || fail "'$attnbench run' ended with $code" "$code"

step .venv/bin/attnplot fit "$out"
step .venv/bin/attnplot plot "$out"
report=(.venv/bin/attnplot report "$out" --format "md,html")
[ "$publish" = no ] || report+=(--readme README.md)
step "${report[@]}"
echo
step .venv/bin/attnplot table "$out"
echo
echo "reproduce: results, figures and report are in $out"
if [ "$code" -eq 1 ]; then
  fail "at least one result is wrong, mistrusted, failed or timed out; status_reason in $out/results.csv says which" 1
fi
if [ "$publish" = yes ]; then
  echo "reproduce: to publish: git add README.md $out && git commit"
fi
