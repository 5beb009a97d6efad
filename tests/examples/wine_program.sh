#!/bin/sh
# Runs a program for Windows as the scripts of this folder expect it: wine_program.sh WINE PROGRAM ARGUMENT... The output
# has line ends of Unix, the folder of models is that of the scripts (wine hides HOME), and /NAME is a file, not an option.
set -u

output=$(mktemp -d) || exit 1
trap 'rm -rf "$output"' EXIT
wine=$1 program=$2
shift 2
for argument; do
  shift
  case $argument in /*) argument=Z:$argument ;; esac
  set -- "$@" "$argument"
done
export XDG_CACHE_HOME="${XDG_CACHE_HOME:-${HOME:-}/.cache}" WINEDEBUG=-all
"$wine" "$program" "$@" >"$output/out" 2>"$output/err"
status=$?
tr -d '\r' <"$output/out"
tr -d '\r' <"$output/err" >&2
exit $status
