#!/bin/sh
# Installs the package in a virtual environment and runs its tests:
#
#   sh python/test.sh [DIRECTORY]
#
# The environment is made in DIRECTORY, build/python-venv by default, and kept. Needs Python 3.10 or
# newer with venv, a C++20 compiler, and either a network or Eigen, nlohmann/json, utf8proc and a
# local index of Python packages. PYTHON selects the interpreter; TORCH=0 leaves out PyTorch, and
# with it the tests that compare with it.
set -eu

cd "$(dirname "$0")/.."
environment=${1:-build/python-venv}

if [ ! -x "$environment/bin/python" ]; then
  "${PYTHON:-python3}" -m venv "$environment"
fi
"$environment/bin/python" -m pip install --quiet ./python pytest
if [ "${TORCH:-1}" != 0 ]; then
  "$environment/bin/python" -m pip install --quiet torch
fi
OMP_WAIT_POLICY=passive "$environment/bin/python" -m pytest python/tests
