#!/bin/sh
# Makes ONNX's operator cases, with the package onnx (18 MB, from PyPI), in the folder where the conformance tests look.
#
# The folder is ${ATTN_CONFORMANCE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/attn/onnx-1.23.0}. The package is installed in a
# virtual environment that exists only during this run. May be run again.
set -eu

version=1.23.0
here=$(cd "$(dirname "$0")" && pwd)
folder=${ATTN_CONFORMANCE_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/attn/onnx-$version}

fail() {
  echo "make_cases.sh: $*" >&2
  exit 1
}

# The file that is written last: if it exists, all do.
if [ -f "$folder/LinearAttention.json" ]; then
  echo "ONNX's cases are already in $folder"
  exit 0
fi

python3 -c 'import ensurepip, venv' 2>/dev/null || fail "needs python3 with venv (Debian: apt-get install python3-venv)"
mkdir -p "$folder" 2>/dev/null || fail "cannot create the folder $folder"
scratch=$(mktemp -d "$folder/.make.XXXXXX" 2>/dev/null) || fail "cannot write to the folder $folder"
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

echo "Installing onnx $version into a virtual environment ..."
python3 -m venv "$scratch/venv" || fail "cannot make a virtual environment"
"$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: "onnx==$version" \
  >"$scratch/pip.log" 2>&1 || fail "pip could not install onnx: $(grep -i error "$scratch/pip.log" | tail -n 1)"
"$scratch/venv/bin/python" -B "$here/make_cases.py" "$scratch/cases" Attention FlexAttention RotaryEmbedding \
  LayerNormalization RMSNormalization Softmax LogSoftmax Gelu Swish SwiGLU LinearAttention || fail "no cases were made"
for file in "$scratch"/cases/*.safetensors; do
  mv -f "$file" "$folder/"
  operator=$(basename "$file" .safetensors)
  [ "$operator" = LinearAttention ] || mv -f "$scratch/cases/$operator.json" "$folder/"
done
mv -f "$scratch/cases/LinearAttention.json" "$folder/"
echo "ONNX's cases are ready in $folder"
