# What the train_*.sh beside it, which source it, have in common. They run where the caller stands, whose paths they take.
# shellcheck shell=bash
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly ROOT
source "$ROOT/scripts/lib.sh"

readonly CORPUS=$ROOT/data/python-stdlib  # read where no data.path is given
LAUNCHER=()                               # what starts the program, with its arguments; empty: itself

# What the calling script's head says, and what holds for all of them.
train_usage() {
  echo "usage: $0 [--device auto|cpu|cuda] [--scale SHARE] [--resume latest|auto|PATH] [option …] [key=value …]"
  echo
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  cat <<TEXT

Options and settings are those of moelab train, whose --help all lists them; a setting given here replaces the
preset's. Without data.path=DIR the shards in $CORPUS are read.
MODEL_PATH=FOLDER in front starts from the weights in that folder, with a model of their shape: a checkpoint, the
folder of a run, or a Hugging Face folder.

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

# train_preset CONFIG PRESET [ARGUMENT…]: runs moelab train with them. The run is named after the script, its data
# are the corpus, unless an ARGUMENT says otherwise: of two values the later wins, and the arguments come last.
train_preset() {
  local config=$1 preset=$2 data="data.path=$CORPUS" name scale="" before="" argument program
  name=$(basename "$0" .sh)
  shift 2
  for argument in "$@"; do
    case $argument in
      -h | --help) train_usage && exit 0 ;;
      --scale=* | run.scale=*) scale=${argument#*=} ;;
      --config=*) [[ ! -f ${argument#*=} ]] || data="" ;;  # a file says where its data are
      data.path=*) data="" ;;
    esac
    [[ $before != --scale ]] || scale=$argument
    [[ $before != --config || ! -f $argument ]] || data=""
    before=$argument
  done
  program=$(find_program)
  [[ -z $data || -f $CORPUS/meta.json ]] ||
    fail "no data is prepared in $CORPUS: run $ROOT/scripts/prepare_data.py --bytes" \
      "--python-stdlib --out $CORPUS, or give data.path=DIR"
  # a miniature's checkpoints are of another shape, so they go to another folder
  name+=${scale:+-scale-${scale//\//-}}
  exec "${LAUNCHER[@]}" "$program" train --config "$config" --preset "$preset" ${data:+"$data"} "run.name=$name" \
    ${MODEL_PATH:+"train.init=$MODEL_PATH"} "$@"
}
