#!/usr/bin/env bash
# Runs a command on a loopback device of its own with a limited rate, to see what ranks do on a slower link.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/slow_link.sh RATE COMMAND [ARGUMENT…]

RATE: megabits per second in each direction, such as 1000. The loopback device carries both directions, so its limit is
twice RATE. The network is a namespace of this user's own: no rights are needed, and nothing outside can be reached.

example: scripts/slow_link.sh 1000 scripts/ranks.sh 2 build/quick/bin/moelab train --config moe-micro \
             data.path=data/python-stdlib parallel.zero=2
TEXT
}

case ${1-} in
  -h | --help) usage && exit 0 ;;
esac
if (($# < 2)) || [[ ! $1 =~ ^[1-9][0-9]*$ ]]; then
  usage >&2
  exit 2
fi
for tool in unshare tc ip; do
  command -v "$tool" >/dev/null || { echo "scripts/slow_link.sh: $tool is missing; run: apt-get install -y util-linux iproute2" >&2; exit 2; }
done
rate=$((2 * $1))mbit
shift
export TORCH_CPP_LOG_LEVEL=${TORCH_CPP_LOG_LEVEL:-ERROR}  # c10d warns that hosts have no names there
# shellcheck disable=SC2016  # the inner shell expands them
exec unshare --map-root-user --net bash -c '
  ip link set lo up && tc qdisc add dev lo root tbf rate "$0" burst 256kb latency 400ms && exec "$@"' "$rate" "$@"
