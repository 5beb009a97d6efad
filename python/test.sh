#!/bin/sh
# Installs the package in a virtual environment and runs its tests:
#
#   sh python/test.sh [DIRECTORY]
#
# Makes the environment in DIRECTORY, by default build/python-venv, and keeps it. Needs Python 3.10 or newer with venv,
# a C++20 compiler, and a network for Python packages and for Eigen, nlohmann/json and utf8proc if they are not
# installed. PYTHON selects the interpreter. TORCH=1 also installs transformers and PyTorch, several GB; without them
# the tests that need them are skipped.
set -eu

cd "$(dirname "$0")/.."
environment=${1:-build/python-venv}

if [ ! -x "$environment/bin/python" ]; then
  "${PYTHON:-python3}" -m venv "$environment"
fi
"$environment/bin/python" -m pip install --quiet ./python pytest \
  --config-settings=cmake.define.ATTN_PYTHON_WERROR=ON
if [ "${TORCH:-0}" = 1 ]; then
  "$environment/bin/python" -m pip install --quiet torch transformers
fi
OMP_WAIT_POLICY=passive "$environment/bin/python" -m pytest python/tests
