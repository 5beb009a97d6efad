#!/bin/sh
# Compiles and runs one program with every compiler and standard on this machine, and prints a table: `sh
# tests/compilers.sh`. Warnings are errors, with many of them enabled. A missing compiler is a line of the table; a
# failure ends the script with the compiler's messages.
set -u

cd "$(dirname "$0")/.."
. tests/everywhere/rows.sh

# c++2b is C++23 for older compilers.
flags="-O2 -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror"
for standard in 20 2b; do
  for compiler in g++-11 g++-12 clang++-14 clang++-15 clang++-16 clang++-19; do
    run_program "$compiler" "c++$standard" "" "$compiler" -std=c++$standard $flags
  done
  run_program clang++-19 "c++$standard, libc++" "" clang++-19 -std=c++$standard -stdlib=libc++ $flags
done
print_rows
