#!/usr/bin/env bash
# Runs scripts/test.sh in a bare Debian 12, where nothing is installed but what scripts/setup.sh brings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/test_bare.sh [--root FOLDER] [--ccache FOLDER] [CTEST ARGUMENT…]

Makes a bare Debian 12 in a folder (3 minutes, 9 GB with everything built), copies the last commit into it, and runs
scripts/test.sh there: set-up, build, tests. No CUDA toolkit can be found there. Must run as root and needs mmdebstrap.

  --root    make the Debian in FOLDER and keep it: a second run sets up and builds only what changed
            (default: a temporary folder, removed at the end)
  --ccache  a compiler cache to share with it, such as ~/.cache/ccache
  Other arguments go to ctest.

example: scripts/test_bare.sh --root /var/tmp/bare -R huggingface
TEXT
}

# Debian 12's package sources as this machine's apt has them; nothing where it has none: mmdebstrap knows Debian's own.
package_sources() {
  apt-get indextargets --format "deb \$(REPO_URI) \$(CODENAME) \$(COMPONENT)" 'Created-By: Packages' 'Origin: Debian' |
    grep '^deb [^ ]* bookworm' | sort -u
}

# How this machine's apt downloads: proxies, certificates, checks of dates.
apt_downloads() {
  apt-config dump --format '%f "%v";%n' Acquire | grep -E '^Acquire::(https?::|Check-)'
}

make_root() {
  local root=$1 sources
  say "Making a bare Debian 12 in $root"
  mapfile -t sources < <(package_sources || true)
  # mmdebstrap carries over /etc/resolv.conf itself.
  quietly "$root.log" mmdebstrap --variant=minbase --include=ca-certificates \
    --aptopt=<(apt_downloads || true) bookworm "$root" "${sources[@]}"
  local file
  for file in /etc/hosts /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
    [[ ! -e $file ]] || cp --dereference "$file" "$root$file"
  done
  touch "$root/.made"
}

# The last commit, in the same folder as here, so that a shared compiler cache knows its files again.
copy_tree() {
  git init --quiet "$1$PWD"
  git -C "$1$PWD" fetch --quiet --depth 1 "file://$PWD" HEAD
  git -C "$1$PWD" reset --quiet --hard FETCH_HEAD
}

# The settings of pip, proxies and certificates in this process's environment, as NAME=VALUE, each ended by a zero byte.
download_settings() {
  env --null | grep --null-data -iE '^(PIP_|[a-z]+_proxy=|SSL_CERT_|REQUESTS_CA_BUNDLE=)'
}

# run_inside ROOT CCACHE COMMAND…: in ROOT, from this folder. Runs in a mount namespace of its own, which takes the
# mounts with it when it ends.
run_inside() {
  set -euo pipefail
  local root=$1 ccache=$2 settings folder
  shift 2
  mapfile -d '' settings < <(download_settings)
  mount -t proc proc "$root/proc"
  for folder in /sys /dev; do mount --rbind "$folder" "$root$folder"; done
  if [[ -n $ccache ]]; then
    mkdir -p "$root/root/.cache/ccache"
    mount --bind "$ccache" "$root/root/.cache/ccache"
  fi
  chroot "$root" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    "${settings[@]}" env --chdir="$PWD" "$@"
}

main() {
  local root="" ccache=""
  while (($# > 0)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --root | --ccache)
        (($# > 1)) || fail "$1 needs a folder; see scripts/test_bare.sh --help"
        mkdir -p "$2"
        declare "${1#--}=$(realpath "$2")"
        shift 2
        ;;
      *) break ;;
    esac
  done
  (($(id -u) == 0)) || fail "only root can change into another Debian: run sudo scripts/test_bare.sh"
  command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing; run: apt-get install -y mmdebstrap"
  unshare --mount true || fail "this machine allows no mounts: run it outside of a container, or in a privileged one"
  if [[ -z $root ]]; then
    root=$(mktemp -d "${TMPDIR:-/var/tmp}/moelab-bare.XXXXXX")
    # shellcheck disable=SC2064  # this root, not what the variable holds at the end
    trap "rm -rf --one-file-system '$root' '$root.log'" EXIT
    chmod 755 "$root"
  fi
  [[ -e $root/.made ]] || make_root "$root"
  copy_tree "$root"
  unshare --mount --propagation private \
    bash -c "$(declare -f download_settings run_inside); run_inside \"\$@\"" bash "$root" "$ccache" scripts/test.sh "$@"
}

main "$@"
