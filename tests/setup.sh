#!/bin/sh
# Installs what attn's build, tests and examples need and this machine lacks, by apt; says what, and nothing if all is there.
#
# Each package is probed by what it brings (a program, a header), so that one installed in another way counts too.
# Where there is no apt-get, or no right to use it, the list is printed and the caller goes on.
set -u

missing=''

# need PACKAGE COMMAND...: the package is missing unless the command succeeds.
need() {
  package=$1
  shift
  "$@" >/dev/null 2>&1 || missing="$missing $package"
}

program() { command -v "$1"; }
header() {
  printf '#if !__has_include(<%s>)\n#error missing\n#endif\n' "$1" | c++ -E -I/usr/include/eigen3 -x c++ -
}
# clang brings neither its OpenMP runtime nor its sanitizers by itself.
clang_links() { printf 'int main() {}\n' | clang++ "$1" -x c++ - -o /dev/null; }

need g++ program g++
need cmake program cmake
need git program git
need ninja-build program ninja
need clang program clang++
# Not Debian 12's own clang-format 14, which tears `requires` clauses apart.
need clang-format-16 program clang-format-16
need pkg-config program pkg-config
need qemu-user program qemu-x86_64
# The tests for AArch64 are cross-compiled, and GoogleTest with them.
need g++-aarch64-linux-gnu program aarch64-linux-gnu-g++
need googletest test -f /usr/src/googletest/CMakeLists.txt
need libsimde-dev header simde/x86/avx512.h
need valgrind program valgrind
need python3 program python3
need python3-venv python3 -c 'import ensurepip, venv'
need python3-pip python3 -m pip --version
need libomp-dev clang_links -fopenmp
need libclang-rt-dev clang_links -fsanitize=address
need libeigen3-dev header Eigen/Core
need nlohmann-json3-dev header nlohmann/json.hpp
need libgtest-dev header gtest/gtest.h
need libgmock-dev header gmock/gmock.h
need libbenchmark-dev header benchmark/benchmark.h
need libcli11-dev header CLI/CLI.hpp
need libutf8proc-dev header utf8proc.h
need libpng-dev header png.h
need libedit-dev header editline/readline.h
# Looks at the pages that programs write.
need chromium program chromium
# The site, a test builds it.
need doxygen program doxygen
need doxygen-awesome-css test -f /usr/share/doxygen-awesome-css/doxygen-awesome.css

[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "setup: no apt-get here; please install (Debian's names):$missing"
  exit 0
fi
as_root=''
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "setup: neither root nor sudo; please install:$missing"
    exit 0
  fi
  as_root=sudo
fi

echo "setup: installing$missing"

log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
# Lock::Timeout: another apt may be at work, as on a machine that has just started.
apt() {
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 \
    -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1 </dev/null
}

# A list that could not be refreshed may still do.
apt update || echo "setup: apt-get update failed: $(tail -n 1 "$log")"
# shellcheck disable=SC2086  # a list of words
if ! apt install --no-install-recommends $missing; then
  # One by one, so that a name which this release does not have costs only itself.
  for package in $missing; do
    apt install --no-install-recommends "$package" ||
      echo "setup: could not install $package: $(grep '^E:' "$log" | head -n 1)"
  done
fi
