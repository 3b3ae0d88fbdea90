#!/usr/bin/env bash
# Starts a program as several ranks of this machine, with the variables that torchrun sets, and without torchrun.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/ranks.sh RANKS PROGRAM [ARGUMENT…]

Starts PROGRAM RANKS times, with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (a free
port, unless it is set). Passes SIGTERM and SIGINT on to all. When a rank fails, the others have 10 seconds to end by
themselves. Ends with the exit code of the first that failed, or 0.

example: scripts/ranks.sh 2 build/ci/bin/moelab train --config moe-pico data.path=data/python-stdlib
TEXT
}

case ${1-} in
  -h | --help) usage && exit 0 ;;
esac
if (($# < 2)) || [[ ! $1 =~ ^[1-9][0-9]*$ ]]; then
  usage >&2
  exit 2
fi
readonly RANKS=$1
shift

# A port that nobody listens on now, below those that the system gives to outgoing connections.
free_port() {
  local port
  while port=$((20000 + RANDOM % 12000)); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
  echo "$port"
}

export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-$(free_port)}
export WORLD_SIZE=$RANKS LOCAL_WORLD_SIZE=$RANKS

declare -A running
pass_on() {
  local process
  for process in "${!running[@]}"; do kill -"$1" "$process" 2>/dev/null || true; done
}
trap 'pass_on TERM' TERM
trap 'pass_on INT' INT

for ((rank = 0; rank < RANKS; ++rank)); do
  RANK=$rank LOCAL_RANK=$rank "$@" &
  running[$!]=$rank
done

code=0
while ((${#running[@]} > 0)); do
  ended=0
  wait -n -p process "${!running[@]}" || ended=$?
  # A signal to this script ends the wait as well, without a process.
  [[ -n ${process-} ]] || continue
  unset "running[$process]"
  if ((ended != 0 && code == 0)); then
    code=$ended
    (sleep 10 && kill -KILL "${!running[@]}") >/dev/null 2>&1 &  # holds no pipe of the caller's open
    killer=$!
  fi
done
[[ -z ${killer-} ]] || kill "$killer" 2>/dev/null || true
exit "$code"
