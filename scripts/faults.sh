#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Kills, stops, interrupts and starves runs at random moments and counts what is lost: nothing may be.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
usage: scripts/faults.sh [--moments N] [--seed S] [--attnbench FILE] [--table FILE] [--help]

Does harm to small runs of attnbench, resumes each until it is complete, and prints one table: fault,
moments, samples finished before, samples lost, rows doubled, lines glued, torn lines named, complete.

  kill -9      of worker, supervisor and both at random moments, and inside writes
  signals      SIGINT, SIGTERM, SIGHUP in the middle of file operations, from the first to the last
  stops        SIGSTOP for longer than --timeout, then SIGCONT
  storage      a full disk at every operation, ulimit -f, a small tmpfs (root), a folder moved or removed
  the rest     the clock set back, a journal cut, emptied, with junk, doubled lines or CRLF

  --moments N       kill -9 at N random moments (200: about ten minutes); the rest in proportion
  --seed S          of the random moments (1)
  --attnbench FILE  the program to try; without it preset release is built
  --table FILE      where the table goes (results/faults.md)

Nothing in the product helps with this: tests/faults/shim.cpp is preloaded where a fault must strike
inside a system call.
Exit code: 0 nothing lost, doubled or glued and everything resumed, 1 otherwise, 2 usage.
HELP
}

moments=200 seed=1 attnbench='' table=results/faults.md
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --moments | --seed | --attnbench | --table)
      [ $# -gt 1 ] || { echo "faults: $1 wants a value; scripts/faults.sh --help explains" >&2 && exit 2; }
      case $1 in
        --moments) moments=$2 ;;
        --seed) seed=$2 ;;
        --attnbench) attnbench=$2 ;;
        --table) table=$2 ;;
      esac
      shift
      ;;
    *) echo "faults: unknown option '$1'; scripts/faults.sh --help lists them" >&2 && exit 2 ;;
  esac
  shift
done
[[ $moments =~ ^[1-9][0-9]{0,5}$ ]] || { echo "faults: --moments: '$moments' is no number from 1 on" >&2 && exit 2; }
[[ $seed =~ ^[0-9]{1,9}$ ]] || { echo "faults: --seed: '$seed' is no number from 0 on" >&2 && exit 2; }
if [ -n "$attnbench" ] && [ ! -x "$attnbench" ]; then
  echo "faults: --attnbench: there is no program $attnbench; leave it out to build preset release" >&2
  exit 2
fi

scripts/setup.sh --dev
if [ -z "$attnbench" ]; then
  mkdir -p build
  cmake --preset release >build/configure-release.log 2>&1 ||
    { cat build/configure-release.log && exit 1; }
  cmake --build --preset release --target attnbench
  attnbench=build/release/attnbench
fi

ATTNBENCH=$(realpath "$attnbench") PYTHONPATH=scripts:tests/faults:tests/scripts \
  exec .venv/bin/python tests/faults/campaign.py --moments "$moments" --seed "$seed" --table "$table"
