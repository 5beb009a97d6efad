#!/bin/sh
# chat_mpi prints what chat prints, on any number of ranks: chat_mpi_test.sh CHAT CHAT_MPI MPIRUN
set -u

chat=$1
chat_mpi=$2
mpirun=$3
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failed=0

# A folder with a model of a few thousand random weights, of two key/value heads.
folder=$(dirname "$0")/../data/pretrained/qwen2
without_speed() { sed 's/,"tokens_per_second.*//' "$1"; }
# compare ARGUMENT...: the program on one process and on 1 to 3 ranks.
compare() {
  "$chat" --model "$folder" "$@" >"$scratch/one" 2>"$scratch/error" || { cat "$scratch/error"; failed=1; }
  without_speed "$scratch/one" >"$scratch/expected"
  for ranks in 1 2 3; do
    "$mpirun" -n $ranks "$chat_mpi" --model "$folder" "$@" >"$scratch/many" 2>"$scratch/error" </dev/null ||
      { cat "$scratch/error"; failed=1; }
    without_speed "$scratch/many" >"$scratch/found"
    if ! [ -s "$scratch/found" ] || ! cmp "$scratch/expected" "$scratch/found"; then
      echo "FAILED on $ranks ranks: $*" && cat "$scratch/expected" "$scratch/found"
      failed=1
    fi
  done
}
compare --prompt he --tokens 8 --json
compare --prompt he --tokens 8 --json --precision exact --temperature 1 --seed 3
compare --prompt he --tokens 8 --json --weights int8 --temperature 1 --lookup 2
compare --score 'hello hello' --json --precision exact

# An error is reported, and ends all ranks.
"$mpirun" -n 2 "$chat_mpi" --model "$scratch/none" --prompt x >"$scratch/found" 2>"$scratch/error" </dev/null &&
  { echo "FAILED: a missing model ends well" && failed=1; }
grep -q 'No such file' "$scratch/error" || { cat "$scratch/error" && failed=1; }
"$chat_mpi" --json --prompt x --prompt-cache y 2>&1 | grep -q 'must not be given to chat_mpi' ||
  { echo "FAILED: --prompt-cache" && failed=1; }
[ $failed -eq 0 ] && echo "chat_mpi: the same as chat"
exit $failed
