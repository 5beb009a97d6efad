#!/bin/sh
# The program semantic_search as a user runs it: semantic_search_test.sh PROGRAM. Exits with 77 (skipped) without the
# model.
set -u

program=$1
text=$(dirname "$0")/../../examples/data/help_center.txt
query='How do I get my money back?'
model_dir=${ATTN_MODEL_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/attn/all-MiniLM-L6-v2}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

# check TITLE COMMAND...: counts whether the command succeeds.
check() {
  title=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $title"
  fi
}
same() {
  [ "$1" = "$2" ] || { printf 'expected: %s\nfound:    %s\n' "$2" "$1"; return 1; }
}
# rejects PATTERN ARGUMENT...: the program must fail, print nothing, and write one line to standard error that matches.
rejects() {
  pattern=$1
  shift
  "$program" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null && { echo "exit status 0"; return 1; }
  if [ -s "$scratch/out" ] || [ "$(wc -l <"$scratch/err")" -ne 1 ] || ! grep -q -- "$pattern" "$scratch/err"; then
    echo "output:" && cat "$scratch/out" "$scratch/err"
    return 1
  fi
}

# Tests without the model. An empty folder stands for a machine without it.
mkdir "$scratch/empty"
check 'no query' rejects 'query' --file "$text"
check 'an empty query' rejects 'query' --file "$text" ''
check '--top 0' rejects 'at least 1; found 0' --file "$text" --top 0 "$query"
check '--top -1' rejects 'at least 1; found -1' --file "$text" --top -1 "$query"
check '--top many' rejects 'many' --file "$text" --top many "$query"
check '--embed with a query' rejects 'excludes' --file "$text" --embed "$query"
check '--top past its range' rejects 'at most 9223372036854775807; found 99999999999999999999' \
  --file "$text" --top 99999999999999999999 "$query"
check '--top far below its range' rejects 'at least 1' --file "$text" --top -99999999999999999999 "$query"
check '--top of a fraction' rejects 'a whole number; found 1.5' --file "$text" --top 1.5 "$query"
check '--top in another base' rejects 'a whole number; found 0x10' --file "$text" --top 0x10 "$query"
without_model() { ATTN_MODEL_DIR=$scratch/empty rejects 'fetch_model.sh' --file "$text" "$query"; }
check 'no model' without_model
check 'a model that is not there' rejects 'config.json' --model "$scratch/none" --file "$text" "$query"
check 'a folder that is no model' rejects 'config.json' --model "$scratch/empty" --file "$text" "$query"
# A tiny model whose config has an unknown key.
cp -r "$(dirname "$0")/../data/sentence_encoder/mean" "$scratch/tiny"
sed 's/{/{"made_up": 1, "made_too": 2,/;t end;b;:end;n;b end' "$scratch/tiny/config.json" >"$scratch/config.json"
cp "$scratch/config.json" "$scratch/tiny/config.json"
check 'an unknown key' rejects 'made_too' --model "$scratch/tiny" --ignore-key made_up --file "$text" "$query"
ignored() {
  "$program" --model "$scratch/tiny" --ignore-key made_up --ignore-key made_too --file "$text" "$query" >"$scratch/out"
}
check 'unknown keys that are accepted' ignored
help() { "$program" --help >"$scratch/out" 2>"$scratch/err" && [ ! -s "$scratch/err" ] && grep -q -- --embed "$scratch/out"; }
check '--help' help

if [ ! -f "$model_dir/model.safetensors" ] || [ ! -f "$model_dir/modules.json" ]; then
  echo "semantic_search: $passed passed, $failed failed; the rest needs the model: sh examples/fetch_model.sh"
  [ "$failed" -eq 0 ] || exit 1
  exit 77
fi

check 'a missing file' rejects 'No such file' --file "$scratch/none.txt" "$query"
check 'a directory' rejects 'directory' --file "$scratch" "$query"
check 'an empty name' rejects "cannot read ''" --file '' "$query"
directory_as_input() { ! "$program" "$query" <"$scratch" >"$scratch/out" 2>"$scratch/err" && grep -q 'cannot read standard input' "$scratch/err"; }
check 'a directory as standard input' directory_as_input

# The text in the repository: only the line about refunds answers the query; ten lines use one of its words in another
# sense.
refund=$(grep -n '^Refunds are issued' "$text" | cut -d : -f 1)
check 'one refund line' same "$(grep -ci refund "$text")" 1
check 'ten other lines with money or back' same "$(grep -ciE 'money|back' "$text")" 10
check 'none of them with both' same "$(grep -i money "$text" | grep -ci back)" 0
check 'at least 200 lines' [ "$(wc -l <"$text")" -ge 200 ]

one_line() { echo a | "$program" x 2>&1 >/dev/null | grep -qE '^1 line in [0-9.]+ s, [0-9]+ sentences? per second$'; }
check 'one line is singular' one_line
# Prints $1 lines of $2 words each, 2 tokens less than the line has.
cut() {
  awk -v lines="$1" -v words="$2" 'BEGIN { while (lines-- > 0) { for (i = 0; i < words; ++i) printf "a "; print "" } }' |
    "$program" --embed 2>&1 >/dev/null
}
check 'lines that fit' same "$(cut 2 254)" ''
check 'a line that is cut' same "$(cut 1 255)" '1 line was cut: only the first 256 tokens count'
check 'two that are' same "$(cut 2 255)" '2 lines were cut: only the first 256 tokens count'

"$program" --file "$text" "$query" >"$scratch/table" 2>"$scratch/speed"
check 'the speed, on standard error' grep -qE '^[0-9]+ lines in [0-9.]+ s, [0-9]+ sentences per second$' "$scratch/speed"
check 'a heading and five rows' same "$(wc -l <"$scratch/table" | tr -d ' ')" 6
check 'the refund line is first' same "$(awk '$1 == 1 { print $4 }' "$scratch/table")" "$refund"

# The first 40 lines, which include the one about refunds, are enough for the other tests.
head -n 40 "$text" >"$scratch/short.txt"
text=$scratch/short.txt
"$program" --file "$text" --json --top 3 "$query" >"$scratch/json"
check 'JSON begins with the refund line' \
  grep -q "^\[{\"line\":$refund,\"score\":0\.48[0-9]*,\"text\":\"Refunds are " "$scratch/json"
check 'JSON has --top objects' same "$(grep -o '"line"' "$scratch/json" | wc -l | tr -d ' ')" 3
check '--top past the end gives every line' same \
  "$(printf 'a\nb\n' | "$program" --json --top 99 "$query" | grep -o '"line"' | wc -l | tr -d ' ')" 2
check 'no lines, no hits' same "$("$program" --json "$query" </dev/null)" '[]'
check 'standard input is --file' same "$("$program" --json --top 3 "$query" <"$text")" "$(cat "$scratch/json")"
sed "s/\$/$(printf '\r')/" "$text" >"$scratch/crlf.txt"
check 'CRLF is LF' same "$("$program" --file "$scratch/crlf.txt" --json --top 3 "$query")" "$(cat "$scratch/json")"
check 'bytes that are no UTF-8 become U+FFFD' same \
  "$(printf 'a\377b\n' | "$program" --json x | sed 's/.*"text"://')" "$(printf '"a\357\277\275b"}]')"
check 'control characters do not reach the terminal' same \
  "$(printf 'a\033[2Jb\n' | "$program" x 2>/dev/null | tail -n 1 | sed 's/.*  //')" 'a\u001b[2Jb'
check 'nor do what turns text around and the control characters of Latin-1' same \
  "$(printf 'a\342\200\256b\302\233c\n' | "$program" x 2>/dev/null | tail -n 1 | sed 's/.*  //')" 'a\u202eb\u009bc'
check 'in JSON neither' same \
  "$(printf 'a\342\200\256b\n' | "$program" --json x | sed 's/.*"text"://')" '"a\u202eb"}]'

printf 'one\n\nthe third line has no end' | "$program" --embed >"$scratch/embed"
check 'one row of 384 numbers per line' same "$(awk '{ print NF }' "$scratch/embed" | tr '\n' ' ')" '384 384 384 '
check 'rows have length 1' same \
  "$(awk '{ s = 0; for (i = 1; i <= NF; ++i) s += $i * $i; printf "%.5f ", s }' "$scratch/embed")" '1.00000 1.00000 1.00000 '
check 'nothing to embed' same "$("$program" --embed </dev/null)" ''
check 'a letter with 60,000 accents is the letter' same \
  "$(awk 'BEGIN { printf "a"; for (i = 0; i < 30000; ++i) printf "\314\201\314\226" }' | "$program" --embed)" "$(printf a | "$program" --embed)"
check 'one empty line' same "$(echo | "$program" --embed | wc -l | tr -d ' ')" 1
# wine_program.sh passes on the output when the program has ended.
if [ -w /dev/full ] && ! grep -q wine_program.sh "$program"; then
  full_disk() { ! "$program" --file "$text" --embed >/dev/full 2>"$scratch/err" && [ "$(wc -l <"$scratch/err")" -eq 1 ]; }
  check 'a full disk' full_disk
fi

echo "semantic_search: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
