#!/bin/sh
# Messages of examples/run.sh before it installs or compiles anything: run_test.sh RUN.SH
set -u

run=$1
failed=0

# expect STATUS PATTERN ARGUMENT...: checks the exit status, and that the output matches the pattern.
expect() {
  status=$1
  pattern=$2
  shift 2
  output=$(sh "$run" "$@" 2>&1 </dev/null)
  found=$?
  if [ "$found" -ne "$status" ] || ! echo "$output" | grep -q -- "$pattern"; then
    echo "FAILED: run.sh $*: exit status $found, not $status, or without '$pattern': $output"
    failed=1
  fi
}

expect 0 '^Usage: sh examples/run.sh \[all\]' --help
expect 0 '^  all  .*train' -h
expect 2 'takes all or no argument' everything
expect 2 'takes all or no argument' ''
expect 2 'takes all or no argument' --all
expect 2 'takes all or no argument' all all
expect 2 'takes all or no argument' nothing

# Packages that only tests need are not installed for the examples.
cd "$(dirname "$run")/.." || exit 1
. cmake/functions.sh
need() { echo "$1"; }
packages=$(need_for_examples)
for package in g++ cmake ninja-build libeigen3-dev libpng-dev; do
  echo "$packages" | grep -qx -- "$package" || { echo "FAILED: the examples do not install $package" && failed=1; }
done
for package in clang chromium doxygen valgrind libgtest-dev; do
  echo "$packages" | grep -qx -- "$package" && echo "FAILED: the examples install $package" && failed=1
done

# busy: keeps the command's output and exit status, and prints a sign of life while the command is silent.
output=$(busy waiting sh -c 'sleep 9; echo done; exit 3')
[ $? -eq 3 ] && [ "$output" = "    still waiting, 8 s
done" ] || { echo "FAILED: busy: $output" && failed=1; }
exit "$failed"
