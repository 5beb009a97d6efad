#!/bin/sh
# Compares the speed of attn, its Python package, PyTorch, ONNX Runtime, OpenVINO and llama.cpp on
# this machine and prints a Markdown table: `sh bench/peers/run.sh [--threads N] [--quick] [--row
# NAME]... [--json FILE]`, from any directory. It takes about an hour, less with --row. --quick
# takes ten minutes and only shows that everything runs: its times mean nothing.
#
# pip, with your settings, installs the other libraries into a virtual environment,
# ${XDG_CACHE_HOME:-~/.cache}/attn/peers-venv. That takes 6 GB, most of them CUDA, unless
# PIP_EXTRA_INDEX_URL names PyTorch's index of CPU builds.
# ATTN_BUILD_DIR names the build directory (default: build; from the top of the repository).
set -eu

peers=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$peers/../.." && pwd)
build=${ATTN_BUILD_DIR:-build}
case $build in /*) ;; *) build=$root/$build ;; esac
cache=${XDG_CACHE_HOME:-$HOME/.cache}/attn
venv=$cache/peers-venv
python=$venv/bin/python
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# The folder of examples/fetch_model.sh. Offline: no library may look for the model elsewhere.
export ATTN_MODEL_DIR="${ATTN_MODEL_DIR:-$cache/all-MiniLM-L6-v2}" HF_HUB_OFFLINE=1

# To standard error: standard output holds only the table.
step() { echo "==> $*" >&2; }

usage() {
  echo "usage: sh bench/peers/run.sh [--threads N] [--quick] [--row NAME]... [--json FILE]" >&2
  exit "$1"
}

# Checks the arguments before gigabytes are installed; table.py reads them again.
check_arguments() {
  while [ $# -gt 0 ]; do
    case $1 in
      --quick) shift ;;
      --threads | --row | --json) [ $# -gt 1 ] || usage 2; shift 2 ;;
      --help | -h) usage 0 ;;
      *) usage 2 ;;
    esac
  done
}

# pinned PACKAGE...: installs them, in the versions of requirements.txt.
pinned() { "$python" -m pip install --quiet --constraint "$peers/requirements.txt" "$@" >&2; }

check_arguments "$@"

if ! "$python" -m pip --version >/dev/null 2>&1; then
  step "Making a virtual environment in $venv"
  python3 -m venv --clear "$venv"
fi
step "Installing numpy"
pinned numpy
for packages in torch "onnxruntime onnx" openvino \
    "sentence-transformers transformers tokenizers safetensors" "gguf accelerate"; do
  step "Installing $packages"
  # shellcheck disable=SC2086  # a list of words
  pinned $packages || step "Could not install $packages: going on without"
done

step "Building attn's Python package, which takes minutes"
pinned "$root/python" || step "Could not build it: going on without"

step "Building llama-cpp-python, which takes minutes"
# Compiled by g++ 12, the AMX code of this llama.cpp ends with a segmentation fault: machines with
# AMX use AVX-512.
flags=
if echo | "${CXX:-c++}" -march=native -dM -E -x c++ - 2>/dev/null | grep -q __AMX_TILE__; then
  flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
fi
(
  export CFLAGS="${CFLAGS:-} $flags" CXXFLAGS="${CXXFLAGS:-} $flags"
  pinned llama-cpp-python
) || step "Could not build it: going on without"

step "Fetching the weights of all-MiniLM-L6-v2 and SmolLM2-135M-Instruct"
sh "$root/examples/fetch_model.sh" >&2 || step "Could not fetch the former: going on without"
sh "$root/examples/fetch_llm.sh" >&2 || step "Could not fetch the latter: going on without"

step "Building attn_report, minilm_speed and llm_speed in $build"
if [ ! -f "$build/CMakeCache.txt" ]; then
  sh "$root/tests/setup.sh" >&2
  CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja} cmake -S "$root" -B "$build" --log-level=WARNING >&2
fi
# Builds only what has changed.
cmake --build "$build" --parallel "$jobs" --target attn_report minilm_speed llm_speed >&2

step "Measuring"
exec "$python" "$peers/table.py" --report "$build/bench/attn_report" "$@"
