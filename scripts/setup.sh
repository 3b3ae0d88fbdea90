#!/usr/bin/env bash
# Installs what building, testing and running moelab takes: packages of Debian or Ubuntu, and in .venv
# LibTorch (from PyTorch's wheel) and Python packages. Safe to repeat; does nothing, quickly, when nothing is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/setup.sh [--cuda auto|toolkit|wheels|none] [--for run|test]

  --cuda   where the CUDA half of LibTorch and its compiler come from (default: as last time, else auto)
             toolkit  a CUDA 13 toolkit on this machine (nvcc on PATH); takes 1.6 GB in .venv
             wheels   PyPI's packages, a whole toolkit; takes 5 GB in .venv
             none     nowhere: train on the CPU only; takes 1.1 GB in .venv, or 3.4 GB with --for test,
                      because Python's torch cannot be imported without NVIDIA's libraries
             auto     toolkit if nvcc 13 is on PATH, else wheels if there is a GPU, else none
  --for    run: what training and reports need; test (default): and what tests and conversions need
TEXT
}

readonly APT_PACKAGES=(g++ cmake ninja-build ccache git python3 python3-venv libcli11-dev libyaml-cpp-dev
  nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev libxxhash-dev liburing-dev libgloo-dev strace)
readonly ALLOCATORS=(libjemalloc2 libtcmalloc-minimal4)  # of memory.host_allocator; a run says what it lacks
readonly FORMATTER=clang-format-14  # other versions format differently; the format check skips without it
readonly BROWSER=chromium  # that a test looks at reports with; it skips without one
readonly FUZZER=clang  # that scripts/fuzz.sh compiles with
readonly SHELL_TO_COMPLETE_IN=zsh  # that a test completes command lines in; it skips without

readonly TORCH=torch==2.11.0
# PyTorch's wheel names these versions: those of CUDA 13.0.
readonly CUPTI=nvidia-cuda-cupti==13.0.85 CUDART=nvidia-cuda-runtime==13.0.96
readonly COMPILER=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-cccl==13.0.85)
readonly CUDA_LIBRARIES=requirements-cuda-libraries.txt
# Libraries of LibTorch's CUDA half that a toolkit may lack, and the packages of CUDA_LIBRARIES that hold them.
readonly BESIDE_TOOLKIT=(libcusparseLt.so.0=nvidia-cusparselt-cu13 libnvshmem_host.so.3=nvidia-nvshmem-cu13
  libcufile.so.0=nvidia-cufile libcudnn.so.9=nvidia-cudnn-cu13 libnccl.so.2=nvidia-nccl-cu13)

readonly MODE_FILE=.venv/moelab-cuda  # read by cmake/LibTorch.cmake

missing_packages() {
  local installed package
  # dpkg-query fails when it does not know one of them.
  installed=" $({ dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true; } |
    awk '$1 == "installed" {print $2}' | tr '\n' ' ') "
  for package in "$@"; do
    [[ $installed == *" $package "* ]] || echo "$package"
  done
}

has_candidate() {
  apt-cache policy "$1" 2>/dev/null | grep 'Candidate:' | grep -qv '(none)'
}

# Prints the words that run the rest of the line as root; fails where this user may not.
as_root() {
  if (($(id -u) == 0)); then
    echo env
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
    echo sudo
  else
    return 1
  fi
}

# apt_install PREFIX PACKAGE…
apt_install() {
  "$1" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${@:2}" </dev/null >/dev/null
}

# install_system_packages run|test
install_system_packages() {
  local missing package prefix optional=("${ALLOCATORS[@]}")
  if ! command -v dpkg-query >/dev/null; then
    echo "not Debian or Ubuntu: install what these are there: ${APT_PACKAGES[*]}"
    return
  fi
  mapfile -t missing < <(missing_packages "${APT_PACKAGES[@]}")
  if ((${#missing[@]} > 0)); then
    prefix=$(as_root) ||
      fail "this user may not install what is missing; run: sudo apt-get install -y ${missing[*]}"
    say "Installing ${missing[*]}"
    "$prefix" apt-get update -qq
    apt_install "$prefix" "${missing[@]}"
  fi
  [[ $1 == run ]] || optional+=("$FORMATTER" "$BROWSER" "$FUZZER" "$SHELL_TO_COMPLETE_IN")
  while read -r package; do
    if has_candidate "$package" && prefix=$(as_root) && apt_install "$prefix" "$package"; then continue; fi
    echo "note: $package cannot be installed here; what needs it says so and does without"
  done < <(missing_packages "${optional[@]}")
}

# at_least NAME FOUND WANTED
at_least() {
  [[ $(printf '%s\n%s\n' "$3" "$2" | sort -V | head -n 1) == "$3" ]] ||
    fail "$1 $2 is too old: $1 $3 or newer is needed (Debian 12 and Ubuntu 24.04 have it)"
}

make_venv() {
  [[ -x .venv/bin/python ]] && .venv/bin/python -c '' 2>/dev/null && return
  local python=${PYTHON:-python3}
  at_least python3 "$($python -c 'import platform; print(platform.python_version())')" 3.11
  at_least cmake "$(cmake --version | awk 'NR == 1 {print $3}')" 3.25
  at_least g++ "$(g++ -dumpfullversion)" 12
  say "Making .venv with $($python --version)"
  "$python" -m venv --clear .venv
}

pip_install() {
  local quiet=(-q)
  [[ -t 1 ]] && quiet=()
  # Conflicts: LibTorch lacks, on purpose, dependencies that its Python half names. Python compiles what it imports,
  # when it does: most of LibTorch's Python half is never imported.
  .venv/bin/python -m pip install "${quiet[@]}" --no-input --disable-pip-version-check --no-warn-conflicts \
    --no-compile "$@"
}

nvcc_13() {
  command -v nvcc >/dev/null && nvcc --version | grep -q 'release 13\.'
}

detect_cuda() {
  if nvcc_13; then
    echo toolkit
  elif have_gpu; then
    echo wheels
  else
    echo none
  fi
}

# Packages for libraries that neither the system nor the toolkit holds.
beside_toolkit() {
  local toolkit entry library
  toolkit=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  local ldconfig=ldconfig
  command -v ldconfig >/dev/null || ldconfig=/sbin/ldconfig
  local known
  known=$($ldconfig -p)
  for entry in "${BESIDE_TOOLKIT[@]}"; do
    library=${entry%%=*}
    [[ $known == *"$library "* || -e $toolkit/lib64/$library ]] || echo "${entry#*=}"
  done
}

# The packages are laid out for running; a linker looks for lib64 and for names without a version.
complete_wheel_toolkit() {
  local nvidia folder library name
  nvidia=$(echo .venv/lib/python3*/site-packages/nvidia)
  ln -sfn lib "$nvidia/cu13/lib64"
  for folder in "$nvidia"/{cu13,nccl,cudnn}/lib; do
    for library in "$folder"/lib*.so.*; do
      name=${library%%.so.*}.so
      [[ -e $name ]] || ln -s "$(basename "$library")" "$name"
    done
  done
}

install_torch() {
  local mode=$1 packages
  say "Installing LibTorch ($TORCH, CUDA: $mode)"
  case $mode in
    toolkit)
      nvcc_13 || fail "no nvcc of CUDA 13 on PATH: put it there, or take --cuda wheels or --cuda none"
      mapfile -t packages < <(beside_toolkit)
      pip_install --no-deps --constraint "$CUDA_LIBRARIES" "$TORCH" "${packages[@]}"
      ;;
    wheels)
      pip_install "$TORCH" "${COMPILER[@]}"
      complete_wheel_toolkit
      ;;
    none) pip_install --no-deps "$TORCH" "$CUDART" "$CUPTI" ;;
  esac
  echo "$mode" >"$MODE_FILE"
}

# install_requirements FILE: unless this very file was installed before.
install_requirements() {
  local stamp=.venv/moelab-$1.sha256
  if ! sha256sum --status -c "$stamp" 2>/dev/null; then
    say "Installing the Python packages of $1"
    pip_install -r "$1"
    sha256sum "$1" >"$stamp"
  fi
}

main() {
  local cuda="" purpose=test
  while (($# > 0)); do
    case "$1 ${2-}" in
      --cuda\ auto | --cuda\ toolkit | --cuda\ wheels | --cuda\ none) cuda=$2 ;;
      --for\ run | --for\ test) purpose=$2 ;;
      -h\ * | --help\ *) usage && exit 0 ;;
      *) usage >&2 && fail "unknown argument: $1 ${2-}" ;;
    esac
    shift 2
  done
  install_system_packages "$purpose"
  make_venv
  local present
  present=$(cat "$MODE_FILE" 2>/dev/null || true)
  cuda=${cuda:-${present:-auto}}
  [[ $cuda == auto ]] && cuda=$(detect_cuda)
  [[ $cuda == "$present" ]] || install_torch "$cuda"
  install_requirements requirements.txt
  [[ $purpose == run ]] && return
  install_requirements requirements-test.txt
  [[ $cuda != none ]] || install_requirements "$CUDA_LIBRARIES"
}

main "$@"
