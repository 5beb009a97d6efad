#!/bin/sh
# Runs attn on many platforms: compilers, processors by emulation, Windows by wine, one header, packages; prints a
# table. `sh tests/everywhere.sh` takes hours; `sh tests/everywhere.sh programs` only compiles and runs one program per
# processor and compiler, in minutes. The table names what is not installed. Debian's packages are g++-11
# clang-{14,15,16,19} libc++-19-dev g++-{aarch64,riscv64,powerpc64le,s390x}-linux-gnu qemu-user
# g++-mingw-w64-x86-64-posix wine64 and, for the presets, those of tests/setup.sh.
set -u

cd "$(dirname "$0")/.."
. tests/everywhere/rows.sh

command_row "compilers" "x86-64" sh tests/compilers.sh
cat "$work/output"

for processor in aarch64 riscv64 powerpc64le s390x; do
  machine=$(echo $processor | sed s/powerpc64le/ppc64le/)
  run_program "$processor, Linux" "g++ 12, qemu" "qemu-$machine -L /usr/$processor-linux-gnu" \
    $processor-linux-gnu-g++ -std=c++20 -O2
done
# In Debian, wine's loader is not in PATH.
wine=$(command -v wine64 || echo /usr/lib/wine/wine64)
for openmp in "" -fopenmp; do
  run_program "x86-64, Windows" "MinGW $openmp" "$wine" x86_64-w64-mingw32-g++-posix -std=c++20 -O2 -static $openmp
done

if [ "${1:-}" != programs ]; then
  command_row "attention's tests" "one header" cmake --workflow --preset single-header
  command_row "kernels' tests" "emulated AVX-512" cmake --workflow --preset emulated
  command_row "tests, examples" "Windows, wine" cmake --workflow --preset mingw
  command_row "examples" "Windows, serial" cmake --workflow --preset mingw-serial
  command_row "tests" "AArch64, qemu" cmake --workflow --preset aarch64
  command_row "Python" "its package" sh python/test.sh
fi
print_rows
