#!/usr/bin/env bash
# Starts a program as several ranks of this machine, with the variables that torchrun sets, and without torchrun.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/ranks.sh [--restarts N] RANKS PROGRAM [ARGUMENT…]

Starts PROGRAM RANKS times, with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (a free
port, unless it is set). Passes SIGTERM and SIGINT on to all. When a rank fails, the others have 10 seconds to end by
themselves. Ends with 0, or the exit code of the first that failed: of those with 2 (a mistake) or 3 (out of memory)
if there are any.

  --restarts N   start all ranks again when one has failed or was killed, up to N times; not after a mistake (exit
                 code 2), out of memory (3) or a signal to this script. Give moelab train --resume auto with it.

example: scripts/ranks.sh 2 build/ci/bin/moelab train --config moe-pico data.path=data/python-stdlib
TEXT
}

mistake() {
  echo "scripts/ranks.sh: $1" >&2
  usage >&2
  exit 2
}

restarts=0
case ${1-} in
  -h | --help) usage && exit 0 ;;
  --restarts)
    [[ ${2-} =~ ^[0-9]+$ ]] || mistake "--restarts needs a number"
    restarts=$2
    shift 2
    ;;
esac
[[ ${1-} =~ ^[1-9][0-9]*$ ]] || mistake "the number of ranks comes first"
(($# > 1)) || mistake "there is no program to start"
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

export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} WORLD_SIZE=$RANKS LOCAL_WORLD_SIZE=$RANKS
readonly PORT=${MASTER_PORT-}

declare -A running
stopped=""
pass_on() {
  local process
  stopped=$1
  for process in "${!running[@]}"; do kill -"$1" "$process" 2>/dev/null || true; done
}
trap 'pass_on TERM' TERM
trap 'pass_on INT' INT

# Runs all ranks; returns the exit code.
run_ranks() {
  local rank process ended killer="" code=0
  export MASTER_PORT=${PORT:-$(free_port)}
  for ((rank = 0; rank < RANKS; ++rank)); do
    # a rank ends when this script is killed, too
    RANK=$rank LOCAL_RANK=$rank setpriv --pdeathsig KILL "$@" &
    running[$!]=$rank
  done
  while ((${#running[@]} > 0)); do
    ended=0
    wait -n -p process "${!running[@]}" || ended=$?
    # A signal to this script ends the wait as well, without a process.
    [[ -n ${process-} ]] || continue
    unset "running[$process]"
    # A rank's reason counts more than that the others have lost it.
    if ((ended != 0 && (code == 0 || (code != 2 && (ended == 2 || ended == 3))))); then code=$ended; fi
    if ((ended != 0)) && [[ -z $killer ]]; then
      (sleep 10 && kill -KILL "${!running[@]}") >/dev/null 2>&1 &  # holds no pipe of the caller's open
      killer=$!
    fi
  done
  [[ -z $killer ]] || kill "$killer" 2>/dev/null || true
  return "$code"
}

for ((restart = 0; ; ++restart)); do
  export TORCHELASTIC_RESTART_COUNT=$restart
  code=0
  run_ranks "$@" || code=$?
  if ((code == 0 || code == 2 || code == 3 || restart == restarts)) || [[ -n $stopped ]]; then exit "$code"; fi
  echo "scripts/ranks.sh: a rank ended with $code; restart $((restart + 1)) of $restarts" >&2
done
