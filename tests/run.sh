#!/bin/sh
# Installs what is missing, builds everything and runs every test: `sh tests/run.sh`, from any directory.
#
# ATTN_BUILD_DIR names the build directory (default: build; from the top of the repository).
set -eu

cd "$(dirname "$0")/.."
build=${ATTN_BUILD_DIR:-build}
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

step() { echo "==> $*"; }

step "Looking for what the build needs"
sh tests/setup.sh

step "Looking for the weights of all-MiniLM-L6-v2, which a test compares with PyTorch"
sh examples/fetch_model.sh || echo "Going on without the weights: the tests that need them will say so."

step "Configuring in $build"
# By the variable, not by -G: a directory that is configured already keeps its generator. Several test files at once compile
# sooner.
CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja} cmake -S . -B "$build" -D ATTN_UNITY_TESTS=ON --log-level=WARNING

step "Building the tests, benchmarks and examples"
cmake --build "$build" --parallel "$jobs"

step "Running the tests"
ctest --test-dir "$build" --output-on-failure --no-tests=error --label-exclude '^slow$' --parallel "$jobs"
