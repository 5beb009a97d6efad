#!/bin/sh
# Compiles and runs one program with every compiler and standard that this machine has, and prints a table:
# `sh tests/compilers.sh`. Warnings are errors, as in the file of somebody who asks for many. A compiler that is missing
# is a line of the table; one that fails ends the script with its messages and an error.
set -u

cd "$(dirname "$0")/.."
. tests/everywhere/rows.sh

# c++2b: C++23, as the older ones call it.
flags="-O2 -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror"
for standard in 20 2b; do
  for compiler in g++-11 g++-12 clang++-14 clang++-15 clang++-16 clang++-19; do
    run_program "$compiler" "c++$standard" "" "$compiler" -std=c++$standard $flags
  done
  run_program clang++-19 "c++$standard, libc++" "" clang++-19 -std=c++$standard -stdlib=libc++ $flags
done
print_rows
