# What the train_*.sh beside it, which source it, have in common. They run where the caller stands, whose paths they take.
# shellcheck shell=bash
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly ROOT
source "$ROOT/scripts/lib.sh"

readonly CORPUS=$ROOT/data/python-stdlib  # read where no data.path is given

# What the calling script's head says, and what holds for all of them.
train_usage() {
  echo "usage: $0 [--device auto|cpu|cuda] [--scale SHARE] [--resume latest|PATH] [option …] [key=value …]"
  echo
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  cat <<TEXT

Options and settings are those of moelab train, whose --help lists them all; a setting given here replaces the
preset's. Without data.path=DIR the shards in $CORPUS are read.
MODEL_PATH=FOLDER in front starts from those weights: a checkpoint, or a Hugging Face folder, of the model's shape.

Examples:
  $0 --device cpu --scale 1/64 train.steps=20    # a miniature, on any machine
  MODEL_PATH=my/checkpoint $0 data.path=my/shards
TEXT
}

# The program: what MOELAB_PROGRAM names, or that of the newest build.
find_program() {
  local newest=${MOELAB_PROGRAM-} program
  if [[ -z $newest ]]; then
    for program in "$ROOT"/build/*/bin/moelab; do
      [[ ! -x $program || $program -ot $newest ]] || newest=$program
    done
  fi
  [[ -x $newest ]] || fail "moelab is not built${newest:+ ($newest)}: run scripts/quickstart.sh," \
    "or scripts/setup.sh && cmake --preset dev && cmake --build --preset dev"
  echo "$newest"
}

# train_preset CONFIG PRESET [ARGUMENT…]: what moelab train does with them, and with a name of the script's own.
train_preset() {
  local config=(--config "$1") preset=$2 data=("data.path=$CORPUS") scale="" before="" argument program
  local name=("$(basename "$0" .sh)") init=()
  shift 2
  for argument in "$@"; do
    case $argument in
      -h | --help) train_usage && exit 0 ;;
      --config | --config=*) config=() ;;
      --scale=* | run.scale=*) scale=${argument#*=} ;;
      data.path=*) data=() ;;
      run.name=* | run.dir=*) name=() ;;
    esac
    [[ $before != --scale ]] || scale=$argument
    [[ $before != --config || ! -f $argument ]] || data=()  # a file says where its data are
    before=$argument
  done
  program=$(find_program)
  [[ ${#data[@]} == 0 || -f $CORPUS/meta.json ]] ||
    fail "no data is prepared in $CORPUS: run $ROOT/.venv/bin/python $ROOT/scripts/prepare_data.py --bytes" \
      "--python-stdlib --out $CORPUS, or give data.path=DIR"
  # a miniature's checkpoints are of another shape, so they go to another folder
  ((${#name[@]} == 0)) || name=("run.name=${name[0]}${scale:+-scale-${scale//\//-}}")
  [[ -z ${MODEL_PATH-} ]] || init=("train.init=$MODEL_PATH")
  exec "$program" train "${config[@]}" --preset "$preset" "${data[@]}" "${name[@]}" "${init[@]}" "$@"
}
