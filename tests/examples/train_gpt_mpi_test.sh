#!/bin/sh
# A checkpoint that only rank 0 has ends all ranks: train_gpt_mpi_test.sh TRAIN_GPT_MPI MPIRUN
set -u

program=$1
mpirun=$2
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

ATTN_PLAYS_DIR=$scratch/plays
export ATTN_PLAYS_DIR
mkdir "$ATTN_PLAYS_DIR"
seq 1 2000 >"$ATTN_PLAYS_DIR/numbers.txt"
: >"$ATTN_PLAYS_DIR/COMPLETE"
echo 'not a checkpoint' >"$scratch/first"
timeout 60 "$mpirun" -n 1 "$program" --steps 1 --checkpoint "$scratch/first" : \
  -n 1 "$program" --steps 1 --checkpoint "$scratch/second" >"$scratch/found" 2>"$scratch/error" </dev/null
status=$?
[ $status -ne 0 ] && [ $status -ne 124 ] && grep -q 'SafetensorsFile' "$scratch/error" &&
  echo "train_gpt_mpi: ends on all ranks" && exit 0
echo "FAILED: exit status $status" && cat "$scratch/found" "$scratch/error"
exit 1
