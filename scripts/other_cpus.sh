#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs the tests of impls/simd on emulated CPUs: instruction sets that this machine does not execute.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
usage: scripts/other_cpus.sh [avx512|neon|all] [--filter GTEST_FILTER] [--timeout S] [--help]

Builds the tests of impls/simd (exp_test, simd_targets_test and of conformance_test what concerns it) for
a CPU that this machine need not be and runs them on an emulated one. An emulator's times say nothing.

  avx512  a PC that Bochs emulates (Skylake X: Highway's AVX3), booted by a Debian kernel into the tests
  neon    aarch64, cross-compiled, its instructions emulated by QEMU
  all     both (the default)

  --filter GTEST_FILTER  these tests instead, e.g. '*AVX3*' or 'EveryInstructionSet/Exp.*'
  --timeout S            give up after S seconds of each emulator (7200)

scripts/setup.sh --other-cpus installs what it needs (on x86-64, from Debian's mirrors).
Exit code: 0 every test passed, 1 a test failed or did not end, 2 usage, or something is missing.
HELP
}

fail() {
  echo "other_cpus: $1" >&2
  exit 2
}

cpus='' filter='' timeout=7200
while [ $# -gt 0 ]; do
  case $1 in
    avx512 | neon | all)
      [ -z "$cpus" ] || fail "one of avx512, neon and all, not '$cpus' and '$1'"
      cpus=$1
      ;;
    --filter | --timeout)
      [ $# -gt 1 ] || fail "$1 wants a value; scripts/other_cpus.sh --help explains"
      case $1 in
        --filter) filter=$2 ;;
        --timeout) timeout=$2 ;;
      esac
      shift
      ;;
    -h | --help) usage && exit 0 ;;
    *) fail "unknown argument '$1'; scripts/other_cpus.sh --help lists them" ;;
  esac
  shift
done
[[ $timeout =~ ^[1-9][0-9]{0,5}$ ]] || fail "--timeout: '$timeout' is no number of seconds"
cpus=${cpus:-all}
[ "$cpus" != all ] || cpus="avx512 neon"

here=build/other-cpus
setup="scripts/setup.sh --other-cpus installs it"
# The rest of simd_alone_test speaks of backends that it lacks; the other instruction sets of the emulated
# CPU are this machine's too.
filter=${filter:-'*simd*:*Exp.*:Repeat.*-*AVX2*:*SSE4*:*SCALAR*'}
targets='*SayWhichTheyAre*'
failed=no
summary=()

# build CPU ARGUMENTS...: simd_alone_test for that CPU.
build() {
  local cpu=$1
  shift
  echo "other_cpus: building for $cpu"
  cmake -S . -B "$here/$cpu" -G Ninja -DCMAKE_BUILD_TYPE=Release -DATTN_BLAS=OFF -DATTN_CUDA=OFF \
    -DATTN_HWY=ON "$@" >"$here/configure-$cpu.log" 2>&1 ||
    { cat "$here/configure-$cpu.log" && fail "configuring for $cpu failed"; }
  cmake --build "$here/$cpu" --target simd_alone_test || { echo "other_cpus: the build failed" >&2 && exit 1; }
}

# judge CPU TARGET: the log says that the program passed, and that the CPU had Highway's TARGET.
judge() {
  local log=$here/$1.log passed
  passed=$(grep -ac '^\[       OK \]' "$log" || true)
  if ! grep -aq '^other_cpus: ended with 0' "$log"; then
    failed=yes
    summary+=("other_cpus: $1: FAILED, or did not end, after $passed tests passed: see $log")
  elif ! grep -aq "^  SayWhichTheyAre/.*_$2" "$log"; then
    failed=yes
    summary+=("other_cpus: $1: FAILED: Highway did not see $2 on that CPU: see $log")
  elif [ "$passed" = 0 ]; then
    failed=yes
    summary+=("other_cpus: $1: FAILED: no test matches $filter")
  else
    summary+=("other_cpus: $1: $passed tests passed under $2: $log")
  fi
}

# ---- neon ------------------------------------------------------------------------------------------
neon() {
  local root=$PWD/$here/arm64/root status=0 kind
  command -v aarch64-linux-gnu-g++ >/dev/null || fail "no aarch64-linux-gnu-g++ here; $setup"
  command -v qemu-aarch64-static >/dev/null || fail "no qemu-aarch64-static here; $setup"
  [ -e "$root/usr/include/hwy" ] || fail "no arm64 libraries in $here; $setup"
  # CMake looks for packages in Debian's arm64 files alone, never in this machine's.
  local find_root=(-DCMAKE_FIND_ROOT_PATH="$root" -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER)
  for kind in LIBRARY INCLUDE PACKAGE; do
    find_root+=("-DCMAKE_FIND_ROOT_PATH_MODE_$kind=ONLY")
  done
  build neon -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ "${find_root[@]}"
  local emulated=(timeout "$timeout" qemu-aarch64-static -L /usr/aarch64-linux-gnu
    -E "LD_LIBRARY_PATH=$root/usr/lib/aarch64-linux-gnu" "$here/neon/tests/simd_alone_test")
  {
    "${emulated[@]}" --gtest_list_tests "--gtest_filter=$targets" || true
    OMP_WAIT_POLICY=passive "${emulated[@]}" "--gtest_filter=$filter" 2>&1 || status=$?
    echo "other_cpus: ended with $status"
  } | tee "$here/neon.log"
  judge neon NEON
}

# ---- avx512 ----------------------------------------------------------------------------------------
# The tests, the libraries that they load, and an init that runs them and switches the PC off.
fill_guest() {
  local root=$1 test=$here/avx512/tests/simd_alone_test
  rm -rf "$root"
  mkdir -p "$root"/{bin,dev,proc,sys,tests}
  cp /bin/busybox "$root/bin/"
  cp "$test" "$root/tests/"
  ldd "$test" | grep -o '/[^ ]*' | xargs cp -L --parents -t "$root"
  cp --parents "$PWD"/tests/impls/{must_run,known_faults}.csv "$root"
  cat >"$root/init" <<INIT
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
export OMP_WAIT_POLICY=passive
/tests/simd_alone_test --gtest_list_tests '--gtest_filter=$targets'
/tests/simd_alone_test --gtest_color=no '--gtest_filter=$filter'
echo other_cpus: ended with \$?
/bin/busybox sleep 2 # the serial line is slow
/bin/busybox poweroff -f
INIT
  chmod +x "$root/init"
}

avx512() {
  local guest=$here/guest log=$here/avx512.log kernel
  [ "$(uname -m)" = x86_64 ] || fail "avx512 is emulated on x86-64 only; this is $(uname -m)"
  kernel=$(find "$here/kernel/root/boot" -name 'vmlinuz-*' 2>/dev/null | head -n 1)
  command -v bochs >/dev/null || fail "no bochs here; $setup"
  [ -n "$kernel" ] || fail "no kernel in $here; $setup"
  command -v xorriso >/dev/null || fail "no xorriso here; $setup"
  [ -f /usr/lib/ISOLINUX/isolinux.bin ] || fail "no isolinux here; $setup"
  build avx512
  fill_guest "$guest/root"
  mkdir -p "$guest/iso"
  (cd "$guest/root" && find . | cpio --quiet -o -H newc) >"$guest/iso/initrd"
  cp "$kernel" "$guest/iso/vmlinuz"
  cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$guest/iso/"
  # Linux 6.1 gives AVX up where the sizes of saved registers contradict each other, as those of Bochs 2.7
  # do with PKU (515), XSAVEC (321) and XSAVES (323).
  cat >"$guest/iso/isolinux.cfg" <<'CFG'
DEFAULT tests
LABEL tests
  KERNEL /vmlinuz
  INITRD /initrd
  APPEND console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable clearcpuid=515,321,323
CFG
  xorriso -as mkisofs -quiet -o "$guest/guest.iso" -b isolinux.bin -c boot.cat -no-emul-boot \
    -boot-load-size 4 -boot-info-table "$guest/iso" 2>"$guest/xorriso.log"
  cat >"$guest/bochsrc" <<RC
display_library: rfb, options="timeout=0"
megs: 1024
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
cpu: model=corei7_skylake_x, ips=50000000
ata0-master: type=cdrom, path=$guest/guest.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$log
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
speaker: enabled=0
log: $guest/bochs.log
panic: action=fatal
error: action=ignore
RC
  rm -f "$log" "$guest"/*.lock
  : >"$log"
  echo "other_cpus: booting; the guest's words are in $log"
  tail -f "$log" --pid $$ 2>/dev/null &
  local follower=$!
  # Debian's Bochs begins in its debugger.
  echo c >"$guest/continue"
  timeout "$timeout" bochs -q -f "$guest/bochsrc" -rc "$guest/continue" </dev/null >"$guest/bochs.out" 2>&1 || true
  kill "$follower" 2>/dev/null || true
  judge avx512 AVX3
}

mkdir -p "$here"
for cpu in $cpus; do "$cpu"; done
echo
printf '%s\n' "${summary[@]}"
[ "$failed" = no ]
