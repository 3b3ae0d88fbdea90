# Shared by the scripts beside it: `source scripts/lib.sh` from the repository's root.
# shellcheck shell=bash

# say TEXT: a stage's headline, with the time since the script began.
say() {
  printf '\n== [%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"
}

# fail TEXT: one line on stderr, exit 2 (something for the user to put right).
fail() {
  printf 'moelab: %s\n' "$*" >&2
  exit 2
}

# quietly LOG COMMAND…: the command's output goes to LOG; its end is shown when the command fails.
quietly() {
  local log=$1 code=0
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 || code=$?
  if ((code != 0)); then
    tail -n 40 "$log" >&2
    printf 'moelab: "%s" failed (exit %d); all of its output is in %s\n' "$*" "$code" "$log" >&2
  fi
  return "$code"
}

# Bytes of memory this process may use now: what is free, or what its control group has left if that is less.
available_memory() {
  local free limit used
  # %.0f: the %d of mawk, Debian's awk, ends at 2^31
  free=$(awk '/^MemAvailable:/ {printf "%.0f", $2 * 1024}' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  used=$(cat /sys/fs/cgroup/memory.current 2>/dev/null || echo 0)
  if [[ $limit != max ]] && ((limit - used < free)); then
    free=$((limit - used))
  fi
  echo "$free"
}

# Compilers to run side by side: one a core, as far as memory goes. One of LibTorch's files takes 1.5 GB.
build_jobs() {
  local cores by_memory
  cores=$(nproc)
  by_memory=$(($(available_memory) / 1500000000))
  if ((by_memory < 1)); then
    echo 1
  else
    echo $((by_memory < cores ? by_memory : cores))
  fi
}

have_gpu() {
  command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'
}

# configure_and_build PRESET TARGET [CMAKE ARGUMENT…]: configures build/PRESET, if it is new or the arguments
# differ from last time, and builds TARGET there.
configure_and_build() {
  local preset=$1 target=$2 folder=build/$1 arguments
  shift 2
  arguments="$(sha256sum CMakePresets.json) $*"
  if [[ ! -f $folder/build.ninja || $(cat "$folder/.configured" 2>/dev/null) != "$arguments" ]]; then
    quietly "$folder/configure.log" cmake --preset "$preset" "$@" || return
    echo "$arguments" >"$folder/.configured"
  fi
  cmake --build "$folder" --target "$target" -j "$(build_jobs)"
}
