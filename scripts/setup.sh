#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what attnbench needs and does not find here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
usage: scripts/setup.sh [--dev] [--peers] [--other-cpus] [--help]

Makes this machine ready to build and run attnbench (Debian 12, Ubuntu 24.04 or newer):
  1. installs from apt the compiler, CMake and the libraries that are missing, and nothing else;
  2. creates .venv and installs the project's Python part, attnplot, into it.
What is already here stays as it is. A second call changes nothing and takes less than a second.

  --dev   also what scripts/test.sh and scripts/lint.sh need: clang with its sanitizers and OpenMP,
          clang-format, shellcheck and chromium with its driver from apt; clang-tidy, pytest,
          pytest-xdist, hypothesis, selenium, ruff and mypy into .venv
  --peers also what other projects' attention is measured with, some 10 GB: oneDNN from apt; PyTorch, ONNX
          Runtime and OpenVINO into .venv-peers; ZenDNN's plug-in, with a PyTorch of its own, into
          .venv-zendnn. Configure again afterwards
  --other-cpus
          also what scripts/other_cpus.sh needs: from apt Bochs, QEMU's user mode, a compiler for aarch64
          and what makes a bootable image; into build/other-cpus, from Debian's mirror and not installed,
          arm64's libraries and a kernel

Without apt it prints what is missing and ends with 2. It uses sudo only when not root.
HELP
}

dev=no
peers=no
other_cpus=no
while [ $# -gt 0 ]; do
  case $1 in
    --dev) dev=yes ;;
    --peers) peers=yes ;;
    --other-cpus) other_cpus=yes ;;
    -h | --help) usage && exit 0 ;;
    *) echo "setup: unknown option '$1'; scripts/setup.sh --help lists them" >&2 && exit 2 ;;
  esac
  shift
done

say() { echo "setup: $*"; }
fail() {
  echo "setup: $1" >&2
  exit "${2:-1}"
}

# What a package is recognised by: a command, or a header where there is no dpkg to ask.
commands=(g++:g++ cmake:cmake ninja-build:ninja git:git)
libraries=(
  libbenchmark-dev:benchmark/benchmark.h libfmt-dev:fmt/format.h libcli11-dev:CLI/CLI.hpp
  nlohmann-json3-dev:nlohmann/json.hpp libgtest-dev:gtest/gtest.h libgmock-dev:gmock/gmock.h
  libopenblas-openmp-dev:openblas-openmp/cblas.h libhwy-dev:hwy/highway.h
)
if [ "$dev" = yes ]; then
  # With clang's OpenMP comes Archer, which tells the thread sanitizer what OpenMP orders.
  # llvm-symbolizer gives reports their lines.
  # The report's page is tested in a real browser; its driver speaks to the same version only.
  commands+=(clang-format:clang-format shellcheck:shellcheck
    clang:clang++ llvm:llvm-symbolizer chromium:chromium chromium-driver:chromedriver)
  libraries+=(libomp-dev:omp.h libclang-rt-dev:sanitizer/tsan_interface.h)
fi
if [ "$other_cpus" = yes ]; then
  commands+=(g++-aarch64-linux-gnu:aarch64-linux-gnu-g++ qemu-user-static:qemu-aarch64-static
    bochs:bochs cpio:cpio xorriso:xorriso)
  libraries+=(busybox-static:- debian-archive-keyring:- isolinux:- syslinux-common:-)
fi

[ "$peers" = no ] || libraries+=(libdnnl-dev:dnnl.hpp)

# The first Python of at least 3.11 that can make a virtual environment.
find_python() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

installed=" "
have_dpkg=no
if command -v dpkg-query >/dev/null; then
  have_dpkg=yes
  # dpkg-query ends with 1 when it does not know one of the names, and still prints the others.
  # shellcheck disable=SC2016  # the format string is dpkg's own
  installed+=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${libraries[@]%%:*}" 2>/dev/null |
    awk '$1 == "installed" { printf "%s ", $2 }' || true)
fi

missing=()
check() {
  local entry
  missing=()
  for entry in "${commands[@]}"; do
    command -v "${entry#*:}" >/dev/null || missing+=("${entry%%:*}")
  done
  for entry in "${libraries[@]}"; do
    if [ "$have_dpkg" = yes ]; then
      [[ $installed == *" ${entry%%:*} "* ]] || missing+=("${entry%%:*}")
    elif ! echo "#include <${entry#*:}>" | g++ -E -fopenmp -x c++ - >/dev/null 2>&1; then
      missing+=("${entry%%:*}")
    fi
  done
  if [ ! -x .venv/bin/python ] && ! find_python >/dev/null; then
    missing+=(python3 python3-venv)
  fi
}
check

# Runs a command up to three times: mirrors fail now and then.
retry() {
  local attempt
  for attempt in 1 2 3; do
    "$@" && return
    [ "$attempt" = 3 ] || { say "that failed (attempt $attempt of 3); trying again" >&2 && sleep 5; }
  done
  return 1
}

changed=no
if [ ${#missing[@]} -gt 0 ]; then
  if ! command -v apt-get >/dev/null; then
    echo "setup: there is no apt here; please install these yourself (Debian's names):" >&2
    printf '  %s\n' "${missing[@]}"
    exit 2
  fi
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "not root and no sudo; as root, run: apt-get install ${missing[*]}" 2
    as_root=(sudo)
    [ "${CI:-}" != true ] || as_root=(sudo -n)
  fi
  apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
  say "installing from apt: ${missing[*]}"
  # A stale index names files that mirrors no longer have, so every attempt begins with an update.
  install_missing() {
    "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null
  }
  retry install_missing || fail "apt-get could not install: ${missing[*]}"
  hash -r
  changed=yes
fi

cmake_version=$(cmake --version | awk 'NR == 1 { print $3 }')
if [ "$(printf '3.25\n%s\n' "$cmake_version" | sort -V | head -n 1)" != 3.25 ]; then
  fail "cmake $cmake_version is too old; the presets need 3.25 or newer" 2
fi

# The environment is current when its stamp says so: the same pyproject.toml, place and extras.
if [ ! -f pyproject.toml ]; then
  say "no pyproject.toml here, so no Python part to install"
else
  stamp=.venv/attn-setup.stamp
  wanted="$(sha256sum <pyproject.toml | cut -c 1-64) $PWD"
  extra=""
  [ "$dev" = no ] || extra="[dev]"
  now=$(cat "$stamp" 2>/dev/null || true)
  # A base install is contained in a dev install of the same project.
  if ! .venv/bin/python -c '' 2>/dev/null ||
    { [ "$now" != "$wanted $extra" ] && [ "$now" != "$wanted [dev]" ]; }; then
    if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
      python=$(find_python) || fail "no Python of at least 3.11 with venv; on Debian: apt-get install python3-venv" 2
      say "creating .venv with $("$python" --version)"
      "$python" -m venv --clear .venv
    fi
    # Once dev, always dev: a plain setup after a dev one must not look like a step back.
    [[ $now != *"[dev]" ]] || extra="[dev]"
    say "installing the Python part into .venv: attnplot$extra"
    retry .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
      --retries 5 --timeout 30 --editable ".$extra" || fail "pip could not install attnplot$extra"
    echo "$wanted $extra" >"$stamp"
    changed=yes
  fi
fi

# Debian's arm64 libraries and a kernel, unpacked and not installed, by an apt with lists of its own and
# no status: this machine's packages and architectures stay as they are.
if [ "$other_cpus" = yes ] && [ ! -f build/other-cpus/stamp ]; then
  here=$PWD/build/other-cpus
  rm -rf "$here"/{apt,arm64,kernel}
  mkdir -p "$here"/apt/{lists,cache/archives}/partial "$here"/{arm64,kernel}/download
  # The mirror and the release that this machine's own apt knows.
  # shellcheck disable=SC2016  # the format string is apt's own
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' 'Component: main' |
    awk '$2 !~ /-/ { print; exit }')
  [ -n "$mirror" ] || fail "apt knows no Debian mirror here to take arm64's libraries from"
  echo "deb [arch=amd64,arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror main" \
    >"$here/apt/sources.list"
  cat >"$here/apt/apt.conf" <<CONF
APT::Architecture "amd64";
APT::Architectures { "amd64"; "arm64"; };
APT::Sandbox::User "";
Acquire::Retries "3";
Dir::Etc::sourcelist "$here/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$here/apt/lists";
Dir::State::status "/dev/null";
Dir::Cache "$here/apt/cache";
CONF
  # unpack FOLDER PACKAGE...: into build/other-cpus/FOLDER/root.
  unpack() {
    local folder=$here/$1 deb
    (cd "$folder/download" && APT_CONFIG=$here/apt/apt.conf retry apt-get -q download "${@:2}") ||
      fail "apt-get could not download ${*:2}"
    for deb in "$folder"/download/*.deb; do dpkg-deb -x "$deb" "$folder/root"; done
  }
  say "unpacking arm64's libraries and a kernel into build/other-cpus"
  APT_CONFIG=$here/apt/apt.conf retry apt-get -q update || fail "apt-get could not read the lists of $mirror"
  unpack arm64 {libhwy-dev,libhwy1,libbenchmark-dev,libbenchmark1debian,libfmt-dev,libfmt9}:arm64 \
    {libgtest-dev,libgmock-dev}:arm64 googletest libcli11-dev nlohmann-json3-dev
  unpack kernel "$(APT_CONFIG=$here/apt/apt.conf apt-cache depends linux-image-cloud-amd64 |
    awk '$1 == "Depends:" { print $2; exit }')"
  touch "$here/stamp"
  changed=yes
fi

# An environment with what an extra of pyproject.toml pins, without the project: peers_into <folder> <extra>
peers_into() {
  local folder=$1 extra=$2 wanted packages
  packages=$(.venv/bin/python -c 'import sys, tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"][sys.argv[1]])' "$extra")
  wanted="$PWD $packages"
  if "$folder/bin/python" -c '' 2>/dev/null &&
    [ "$(cat "$folder/attn-setup.stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  "$folder/bin/python" -c 'import pip' 2>/dev/null || .venv/bin/python -m venv --clear "$folder"
  say "installing into $folder: $packages"
  # shellcheck disable=SC2086  # one word a package
  retry "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    --retries 5 --timeout 30 $packages || fail "pip could not install $packages"
  echo "$wanted" >"$folder/attn-setup.stamp"
  changed=yes
}
if [ "$peers" = yes ] && [ -f pyproject.toml ]; then
  peers_into .venv-peers peers
  peers_into .venv-zendnn zendnn
fi

if [ "$changed" = yes ]; then
  say "done"
else
  say "everything is here, nothing to do"
fi
