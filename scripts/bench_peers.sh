#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Measures the CPU kernels beside their peers and prints the table of bars.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
usage: scripts/bench_peers.sh [--quick] [--rounds N] [--out DIR] [--no-avx2] [--help]

Sets up this machine, builds attnbench, measures a few grids in which simd.fused, simd.fused_bf16, simd.decode,
blas.three_step and the peers take turns in every round, and prints what each bar asks for, what was reached
with its 95 % interval, and the verdict; then the peers' rates. A peer that is not installed is named with
the reason; scripts/setup.sh --peers installs them. About 20 minutes on two cores (an estimate: it depends
on the peers).

  --quick     n up to 2048: a few minutes; bars beyond n = 2048 and the exponent are not measured
  --rounds N  least samples of a point (6, below which there is no interval); quick calls get up to three
              times as many, until the interval is within 0.5 %
  --out DIR   where the results go; otherwise results/<cpu model>/<date>-<build_id>-peers and, the bars,
              README.md; with --quick out/<UTC time>-peers, which git ignores. Grids that are there already are kept or resumed
  --no-avx2   leave out the second build, for which a CPU with AVX-512 pretends to have none

What lies there afterwards: bars.md (what is printed), bars.csv (one row a point under a bar), and one folder
a grid, each an ordinary run of attnbench:

  one-head       f32, 1 head, d = 64, causal and not, 1 thread and all
  eight-heads    f32, 8 heads, d = 64, causal and not
  wide           f32, 1 and 8 heads, d = 128
  own            simd.fused alone: d = 128 and 256, 1 thread and all
  torch-alone    torch.sdpa alone at a point of wide: with own it shows whether the pools of threads
                 of both run at full speed side by side
  tails          simd.fused alone: n that are no multiple of 16, and the next that are
  exponent       simd.fused alone: √2 steps on one thread
  bf16-own       simd.fused_bf16 beside simd.fused in f32
  bf16           bf16, 1 head, d = 64 and 128, causal and not, beside the peers
  decode-1/-4    1 and 4 queries, 32 heads on 8, d = 128, 65536 keys (256 MiB in bf16, 512 in f32)
  avx2           simd.fused alone, by a build without AVX-512; only where the CPU has it

Numbers worth keeping need a quiet machine: nothing else running, mains power, the governor "performance".

Exit codes: 0 good; 1 a result was wrong, mistrusted, failed or timed out (the table is still printed);
2 usage; 4 nothing was measured; 130/143 interrupted (the same command with --out goes on); any other code
is that of the step that failed.
HELP
}

fail() {
  echo "bench_peers: $1" >&2
  exit "${2:-1}"
}

quick=no avx2=yes publish=no rounds=6 out=''
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=yes ;;
    --no-avx2) avx2=no ;;
    --rounds | --out)
      [ -n "${2:-}" ] || fail "$1 wants a value; scripts/bench_peers.sh --help explains" 2
      case $1 in --rounds) rounds=$2 ;; --out) out=$2 ;; esac
      shift
      ;;
    --rounds=?*) rounds=${1#--rounds=} ;;
    --out=?*) out=${1#--out=} ;;
    -h | --help) usage && exit 0 ;;
    *) fail "unknown option '$1'; scripts/bench_peers.sh --help lists them" 2 ;;
  esac
  shift
done
if ! [[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || [ "$rounds" -lt 6 ]; then
  fail "--rounds: '$rounds' is no number from 6 to 9999; with fewer there is no interval" 2
fi

step() {
  local code=0
  "$@" || code=$?
  [ "$code" -eq 0 ] || fail "'$*' ended with $code" "$code"
}

step scripts/setup.sh
echo "bench_peers: building"
step cmake --preset release
step cmake --build --preset release --target attnbench
attnbench=build/release/attnbench
listed=$("$attnbench" list --json) || fail "'$attnbench list --json' failed"

slug() {
  local model
  model=$(LC_ALL=C lscpu 2>/dev/null | sed -n 's/^Model name:[[:space:]]*//p' | head -n 1)
  [ -n "$model" ] || model=$(uname -m)
  echo "$model" | tr '[:upper:]' '[:lower:]' |
    sed -e 's/([a-z]*)//g; s/ @ .*//; s/[[:space:]]cpu\([[:space:]]\|$\)/ /; s/[^a-z0-9]\{1,\}/-/g; s/^-//; s/-$//'
}
if [ -z "$out" ] && [ "$quick" = yes ]; then
  out="out/$(date -u +%Y%m%dT%H%M%SZ)-peers"
elif [ -z "$out" ]; then
  build_id=$(.venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["build_id"])' <<<"$listed") ||
    fail "'$attnbench list --json' gave no build_id"
  out="results/$(slug)/$(date -u +%Y-%m-%d)-$build_id-peers"
  publish=yes
fi

load=$(cut -d ' ' -f 1 /proc/loadavg 2>/dev/null || echo 0)
if awk -v a="$load" -v b="$(nproc)" 'BEGIN { exit !(a > 2 * b) }'; then
  echo "bench_peers: warning: the load average is $load; other programs disturb the measurement" >&2
fi

worst=0
folders=()
interrupted=0
trap 'interrupted=130' INT
trap 'interrupted=143' TERM
# grid <name> <program> <options ...>: measures it into a folder of its own, or goes on with it.
grid() {
  local folder=$out/$1 program=$2 code=0
  shift 2
  folders+=("$folder")
  if [ -e "$folder/samples.csv" ]; then
    echo "bench_peers: $folder is there; going on with it"
    "$program" run --resume --out "$folder" || code=$?
  else
    echo "bench_peers: measuring $folder"
    "$program" run --min-samples "$rounds" --max-samples $((3 * rounds)) --max-ci 0.5% \
      --rounds $((2 * rounds)) --cutoff-time 4s "$@" --out "$folder" || code=$?
  fi
  if [ "$code" -ge 128 ] || [ "$interrupted" -ne 0 ]; then
    [ "$code" -ge 128 ] || code=$interrupted
    fail "interrupted; to go on, give the same command --out $out" "$code"
  fi
  case $code in
    0 | 4 | 5) ;; # every row unsupported is an answer, and what is noisier has a wider interval
    1) worst=1 ;;
    *) fail "'$program run' ended with $code" "$code" ;;
  esac
}

# The globs of peers that this build knows: one that it lacks would be a usage error.
peers=()
for name in torch.sdpa torch.sdpa_math onednn.three_step onnxruntime.mha onnxruntime.gqa zendnn.sdpa openvino.sdpa; do
  if [[ $listed == *"\"$name\""* ]]; then peers+=("$name"); fi
done
beside() { (IFS=, && echo "$*"); } # names by commas
core=$(beside simd.fused blas.three_step "${peers[@]}")
narrow=$(beside simd.fused simd.fused_bf16 "${peers[@]}")
caches=$(beside simd.decode simd.fused blas.three_step "${peers[@]}")
threads=$(nproc)
one_and_all=1
[ "$threads" -eq 1 ] || one_and_all=1,$threads

top=8192 tails=517,528,1000,1008,2049,2064
[ "$quick" = no ] || top=2048

grid one-head "$attnbench" --only "$core" --heads 1 --causal both --threads "$one_and_all" --n 128:$top
grid eight-heads "$attnbench" --only "$core" --heads 8 --causal both --n 128:$top
grid wide "$attnbench" --only "$core" --heads 1,8 --head-dim 128 --n 128:$top
grid own "$attnbench" --only simd.fused --heads 1 --head-dim 128,256 --threads "$one_and_all" --n 2048:$top
if [[ $listed == *'"torch.sdpa"'* ]]; then
  grid torch-alone "$attnbench" --only torch.sdpa --heads 1 --head-dim 128 --n 2048
fi
grid tails "$attnbench" --only simd.fused --heads 1 --threads "$one_and_all" --n $tails
[ "$quick" = yes ] || grid exponent "$attnbench" --only simd.fused --heads 1 --threads 1 --n 1024:8192:xsqrt2
grid bf16-own "$attnbench" --only simd.fused,simd.fused_bf16 --heads 1 --head-dim 64,128 --causal both \
  --dtype f32,bf16 --n 512:$top
grid bf16 "$attnbench" --only "$narrow" --heads 1 --head-dim 64,128 --causal both --dtype bf16 --n 512:$top
for queries in 1 4; do
  grid decode-$queries "$attnbench" --only "$caches" --regime decode --heads 32 --heads-kv 8 --head-dim 128 \
    --dtype f32,bf16 --n 65536 --n-q $queries
done

if [ "$avx2" = yes ] && grep -qw avx512f /proc/cpuinfo 2>/dev/null; then
  echo "bench_peers: building without AVX-512"
  step cmake --preset release -B build/avx2 -DATTN_NO_AVX512=ON
  step cmake --build build/avx2 --target attnbench
  grid avx2 build/avx2/attnbench --only simd.fused --heads 1 --threads "$one_and_all" --n 512:$top --tag build=avx2
fi
trap - INT TERM

echo
table=(env PYTHONPATH=scripts .venv/bin/python -m attnplot bars "${folders[@]}" --out "$out")
[ "$publish" = no ] || table+=(--readme README.md)
step "${table[@]}"
echo
echo "bench_peers: bars.md, bars.csv and the runs are in $out"
if [ "$worst" -eq 1 ]; then
  fail "at least one result is wrong, mistrusted, failed or timed out; status_reason in $out/*/results.csv says which" 1
fi
