#!/bin/sh
# Installs missing packages, builds everything and runs every test: `sh tests/run.sh`, from any directory.
#
# ATTN_BUILD_DIR names the build directory (default: build; from the top of the repository).
set -eu

cd "$(dirname "$0")/.."
. cmake/functions.sh
build=${ATTN_BUILD_DIR:-build}
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

step "Looking for what the build needs"
sh tests/setup.sh

step "Looking for the weights of all-MiniLM-L6-v2, which a test compares with PyTorch"
sh examples/fetch_model.sh || echo "Continuing without the weights: tests that need them are skipped."

step "Looking for SmolLM2-135M-Instruct, whose log-probabilities a test compares with double precision"
sh examples/fetch_llm.sh || echo "Continuing without the model: tests that need it are skipped."

step "Looking for ONNX's operator cases, which conformance tests run"
sh tests/conformance/make_cases.sh || echo "Continuing without the cases: the conformance tests are skipped."

# Compiles several test files at once, which is faster. The folder may have been configured by examples/run.sh, for
# examples only.
configure "$build" -D ATTN_UNITY_TESTS=ON -D ATTN_BUILD_TESTS=ON -D ATTN_BUILD_BENCHMARKS=ON

step "Building the tests, benchmarks and examples"
cmake --build "$build" --parallel "$jobs"

step "Running the tests"
ctest --test-dir "$build" --output-on-failure --no-tests=error --label-exclude '^slow$' --parallel "$jobs"
