#!/usr/bin/env bash
# Every C++ and CUDA file is formatted as clang-format 14 does it; other versions disagree with one another.
set -euo pipefail
if ! command -v clang-format-14 >/dev/null; then
  echo "skipped: clang-format-14 is not installed"
  exit 77
fi
if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  echo "skipped: not a git work tree, so it is unknown which files are sources"
  exit 77
fi
sources() {
  local file
  git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' |
    while IFS= read -r -d '' file; do
      [[ ! -f $file ]] || printf '%s\0' "$file"
    done
}
count=$(sources | tr -cd '\0' | wc -c)
((count > 0)) || { echo "no sources found" >&2; exit 1; }
# shellcheck disable=SC2016  # sh expands it
unformatted=$(sources | xargs -0 -P "$(nproc)" -I{} sh -c \
  'clang-format-14 --dry-run -Werror "$1" >/dev/null 2>&1 || echo "$1"' sh {} | sort)
if [[ -n $unformatted ]]; then
  printf 'not formatted; run: clang-format-14 -i %s\n' "$(tr '\n' ' ' <<<"$unformatted")"
  exit 1
fi
echo "$count files are formatted"
