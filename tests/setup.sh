#!/bin/sh
# Installs, by apt, the packages that tests, benchmarks and examples need and this machine lacks, and lists them; prints
# nothing if all are there.
set -u

cd "$(dirname "$0")/.." || exit 1
. cmake/functions.sh

# The package clang does not include its OpenMP runtime or its sanitizers.
clang_links() { printf 'int main() {}\n' | clang++ "$1" -x c++ - -o /dev/null; }

need_for_examples
need libsndfile1-dev header sndfile.hh
need git program git
need clang program clang++
# Not clang-format 14 of Debian 12, which breaks `requires` clauses.
need clang-format-16 program clang-format-16
need qemu-user program qemu-x86_64
# The tests for AArch64 are cross-compiled, and GoogleTest with them.
need g++-aarch64-linux-gnu program aarch64-linux-gnu-g++
need googletest test -f /usr/src/googletest/CMakeLists.txt
need libsimde-dev header simde/x86/avx512.h
need valgrind program valgrind
need python3-venv python3 -c 'import ensurepip, venv'
need libomp-dev clang_links -fopenmp
need libclang-rt-dev clang_links -fsanitize=address
need libopenmpi-dev program mpicxx
need openmpi-bin program mpirun
need libgtest-dev header gtest/gtest.h
need libgmock-dev header gmock/gmock.h
need libbenchmark-dev header benchmark/benchmark.h
# Opens the pages that programs write.
need chromium program chromium
# Builds the site, as a test does.
need doxygen program doxygen
need doxygen-awesome-css test -f /usr/share/doxygen-awesome-css/doxygen-awesome.css

install_missing
