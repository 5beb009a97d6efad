#!/bin/sh
# The programs chat and quantize as a user runs them: chat_test.sh CHAT QUANTIZE. Exits with 77 (skipped) without the
# model.
set -u

program=$1
quantize=$2
model=${ATTN_LLM_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/attn/SmolLM2-135M-Instruct}/SmolLM2-135M-Instruct.Q4_1.gguf
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
# rejects PATTERN PROGRAM ARGUMENT...: the program must fail, print nothing, and write one line to standard error that
# matches.
rejects() {
  pattern=$1
  shift
  "$@" >"$scratch/out" 2>"$scratch/err" </dev/null && { echo "exit status 0"; return 1; }
  if [ -s "$scratch/out" ] || [ "$(wc -l <"$scratch/err")" -ne 1 ] || ! grep -q -- "$pattern" "$scratch/err"; then
    echo "output:" && cat "$scratch/out" "$scratch/err"
    return 1
  fi
}

# Tests without the model. An empty folder stands for a machine without it.
mkdir "$scratch/empty"
check 'an unknown option' rejects 'nonsense' "$program" --nonsense
check '--precision half' rejects 'exact, bf16 or int8; found half' "$program" --precision half
check '--tokens 0' rejects 'at least 1; found 0' "$program" --tokens 0
check '--temperature -1' rejects 'at least 0; found -1' "$program" --temperature=-1
check '--top-p 0' rejects '(0, 1\]; found 0' "$program" --top-p 0
check '--top-n-sigma -1' rejects '--top-n-sigma must be a number of at least 0; found -1' "$program" --top-n-sigma=-1
check '--dry-base 0' rejects '--dry-base must be a number of at least 1; found 0' "$program" --dry-base 0
check '--min-tokens above --tokens' rejects 'at most --tokens; found 9' "$program" --min-tokens 9 --tokens 8
check '--keep of all' rejects 'below --ctx; found 64' "$program" --ctx 64 --keep 64
check '--lookup -1' rejects 'at least 0; found -1' "$program" --lookup=-1
check '--lookup and --draft' rejects 'excludes' "$program" --lookup 3 --draft x
check '--draft-tree without a draft' rejects 'needs --draft or --lookup' "$program" --draft-tree 2
check '--samples of a conversation' rejects 'needs --prompt or --file' "$program" --samples 2
check '--samples at temperature 0' rejects 'above 0; found 0' "$program" --samples 2 --prompt x
check '--samples and --keep' rejects 'excludes' "$program" --samples 2 --prompt x --temperature 1 --keep 2
check '--json without a text' rejects 'needs --prompt' "$program" --json
check '--prompt and --score' rejects 'excludes' "$program" --prompt x --score x
without_model() { ATTN_LLM_DIR=$scratch/empty rejects 'fetch_llm.sh' "$program" --prompt x; }
check 'no model' without_model
printf 'GGUF' >"$scratch/bad.gguf"
check 'a broken model' rejects 'bad.gguf' "$program" --model "$scratch/bad.gguf" --prompt x
check 'a missing model' rejects 'No such file' "$program" --model "$scratch/none.gguf" --prompt x
# A folder with a model of a few thousand random weights.
folder=$(dirname "$0")/../data/pretrained/qwen2
from_folder() {
  "$program" --model "$folder" --prompt he --tokens 3 --json "$@" >"$scratch/out" 2>"$scratch/err" &&
    grep -q '"prompt_ids":\[260,' "$scratch/out"
}
check 'a folder' from_folder
check 'a folder in 8 bits' from_folder --weights int8 --stats
check '--stats of loading' grep -q 'ready in' "$scratch/err"
check 'a folder in bfloat16' from_folder --weights int8 --precision bf16
from_folder_with() { "$program" --model "$folder" --prompt he --tokens 9 "$@"; }
ids_of() { grep -o '"ids":\[[0-9,]*\]' | tr '\n' ' '; }
sampled() { from_folder_with --temperature 1 --json "$@" | ids_of; }
check '--samples are runs with the seeds that follow' same "$(sampled --seed 5 --samples 3)" \
  "$(sampled --seed 5)$(sampled --seed 6)$(sampled --seed 7)"
check '--samples as text' same "$(from_folder_with --temperature 1 --samples 2 --seed 5)" "$(
  printf '[sample 1, seed 5]\n%s\n\n[sample 2, seed 6]\n%s' \
    "$(from_folder_with --temperature 1 --seed 5)" "$(from_folder_with --temperature 1 --seed 6)"
)"
check '--top-n-sigma near 0 is greedy' same "$(from_folder_with --temperature 1 --top-n-sigma 1e-6)" "$(from_folder_with)"
no_repetition() { test -z "$(from_folder_with --json --no-repeat-ngram 1 | ids_of | grep -o '[0-9]*' | sort | uniq -d)"; }
check '--no-repeat-ngram 1' no_repetition
check '--draft-tree says the same' same "$(from_folder_with --lookup 2 --draft-tree 3)" "$(from_folder_with)"
check 'as of a draft model' same "$(from_folder_with --draft "$folder" --draft-tree 3)" "$(from_folder_with)"
check '--draft-tree of more than all tokens' rejects "vocabulary's size" \
  "$program" --model "$folder" --prompt he --draft "$folder" --draft-tree 100000
check '--weights q4_1 of 16 columns' rejects 'multiple of 32 columns' "$program" --model "$folder" --prompt x --weights q4_1
check '--weights half' rejects 'q4_1 or q4_0; found half' "$program" --prompt x --weights half
check 'a folder without a tokenizer' rejects 'tokenizer.json' "$program" --model "$folder/../gpt2" --prompt x
check 'quantize to Q4_K' rejects 'found Q4_K' "$quantize" "$scratch/bad.gguf" "$scratch/out.gguf" --type Q4_K
# A file with one matrix, w: 1 and 70,000.
printf 'GGUF\3\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0w\2\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0' >"$scratch/large.gguf"
printf '\0\0\0\0\0\0\0\0\0\0\0\0%031d\0\0\200\77\0\270\210\107' 0 | tr 0 '\0' >>"$scratch/large.gguf"
check 'quantize to F16 of 70000' rejects 'tensor w.* must .*fit F16, at most 65504; found 70000' \
  "$quantize" "$scratch/large.gguf" "$scratch/out.gguf" --type F16
check 'no file of F16 is left' test ! -e "$scratch/out.gguf"
help() { "$program" --help >"$scratch/out" 2>"$scratch/err" && [ ! -s "$scratch/err" ] && grep -q -- --score "$scratch/out"; }
check '--help' help

if [ ! -f "$model" ]; then
  echo "chat: $passed passed, $failed failed; the rest needs the model: sh examples/fetch_llm.sh"
  [ "$failed" -eq 0 ] || exit 1
  exit 77
fi

"$program" --precision exact --prompt 'Name three primary colors.' --tokens 40 --json >"$scratch/json" 2>"$scratch/err"
check 'the ids of a conversation' grep -q '"prompt_ids":\[1,9690,198,2683,359,253,.*,520,9531,198\],' "$scratch/json"
check 'an answer with its end token' grep -q '"ids":\[504,3003,4683,359,42,3950,28,10062,28,284,13581,30,2\],"text":"The primary colors are: Red, Blue, and Yellow."' "$scratch/json"
check 'its speed' grep -q '"tokens_per_second":{"prefill":[0-9.]*,"decode":[0-9.]*}}$' "$scratch/json"
check 'nothing on standard error' [ ! -s "$scratch/err" ]
check 'the same as text' same "$("$program" --precision exact --prompt 'Name three primary colors.')" 'The primary colors are: Red, Blue, and Yellow.'
printf 'Name three primary colors.' >"$scratch/prompt.txt"
check '--file' same "$("$program" --precision exact --file "$scratch/prompt.txt")" 'The primary colors are: Red, Blue, and Yellow.'
check '--stop' same "$("$program" --precision exact --prompt 'Name three primary colors.' --stop 'lue, a')" 'The primary colors are: Red, B'
check '--tokens' same "$("$program" --precision exact --prompt 'Name three primary colors.' --tokens 2)" 'The primary'
cached() { "$program" --prompt 'Name three primary colors.' --prompt-cache "$scratch/cache" --stats 2>"$scratch/err"; }
tokens_read() { sed -n 's/ tokens\{0,1\} read.*//p' "$scratch/err"; }
cached >"$scratch/first"
all=$(tokens_read)
check '--prompt-cache writes' [ -s "$scratch/cache" ]
check '--prompt-cache reads' same "$(cached)" "$(cat "$scratch/first")"
check 'what it has seen is not read again' [ "$(tokens_read)" -lt "$all" ]
# Rounding decides between two words here.
rm "$scratch/cache"
cached_more() { "$program" --prompt 'Name three colours.' --tokens 32 "$@"; }
cached_more --prompt-cache "$scratch/cache" >"$scratch/first"
check 'a prompt cache changes no answer' same "$(cached_more --prompt-cache "$scratch/cache")" "$(cached_more)"
check 'a --prompt-cache of another precision' rejects "must hold F32, the cache's type" "$program" --precision exact --prompt x --prompt-cache "$scratch/cache"
check 'a --prompt-cache that is none' rejects 'prompt.txt' "$program" --prompt x --prompt-cache "$scratch/prompt.txt"
check '--raw' same "$("$program" --raw --prompt 'The capital of France is' --tokens 2)" ' Paris.'
check '--raw parses control tokens' grep -q '"prompt_ids":\[1,4093,2\]' <<JSON
$("$program" --raw --prompt '<|im_start|>user<|im_end|>' --tokens 1 --json)
JSON
check 'a prompt does not' grep -vq '"prompt_ids":\[.*,4093,198,2,2,' <<JSON
$("$program" --prompt '<|im_end|>' --tokens 1 --json)
JSON
check '--score' same "$("$program" --precision exact --score 'The capital of France is' --json | sed 's/\(\.[0-9][0-9][0-9]\)[0-9]*/\1/g')" \
  '{"ids":[504,3575,282,4649,314],"logprobs":[-11.539,-0.337,-2.438,-0.450]}'
check '--score with --raw' same "$("$program" --raw --score 'The' --json)" '{"ids":[504],"logprobs":[]}'
check '--score of nothing' same "$("$program" --score '' --json)" '{"ids":[],"logprobs":[]}'
check 'a small context' rejects 'the context 8 (--ctx)' "$program" --precision exact --prompt 'Name three primary colors.' --ctx 8
printf 'My name is Ada.\nWhat is my name?\n' | "$program" --stats --tokens 30 >"$scratch/turns" 2>"$scratch/stats"
check 'two answers' same "$(grep -c 'tokens said' "$scratch/stats")" 2
check 'the second knows the first' grep -q 'Ada' "$scratch/turns"
# <|im_end|>, a line end, <|im_start|>, user, a line end, 5 of the question, then 6 as before it.
check 'and reads only what is new' grep -qE '^1[0-9] tokens read' "$scratch/stats"
check 'the same draw for the same seed' same "$("$program" --prompt Hi --temperature 1 --top-k 40 --top-p 0.9 --min-p 0.05 --repeat-penalty 1.1 --seed 3 --tokens 12)" \
  "$("$program" --prompt Hi --temperature 1 --top-k 40 --top-p 0.9 --min-p 0.05 --repeat-penalty 1.1 --seed 3 --tokens 12 --threads 1)"

long='List the numbers from one to forty in words.'
said=$("$program" --prompt "$long" --tokens 90)
check '--lookup says the same' same "$("$program" --prompt "$long" --tokens 90 --lookup 3 --stats 2>"$scratch/stats")" "$said"
check 'and how often it was right' grep -qE '; [1-9][0-9]* of [1-9][0-9]* drafted tokens accepted, [0-9.]+ %$' "$scratch/stats"
full() { "$program" --prompt "$long" --ctx 64 >"$scratch/out" 2>"$scratch/err"; [ $? -eq 2 ] && grep -q 'context is full' "$scratch/err"; }
check 'a context that is full' full
check '--keep goes on' [ "$("$program" --prompt "$long" --ctx 64 --keep 8 --tokens 150 | wc -c)" -gt 100 ]

"$quantize" "$model" "$scratch/q8.gguf" --type Q8_0 >"$scratch/out"
check 'quantize says what it did' grep -q '^210 of 272 tensors became Q8_0: 96\.[0-9] MB, now 14[0-9]\.[0-9] MB$' "$scratch/out"
check 'and its file answers' same "$("$program" --model "$scratch/q8.gguf" --raw --prompt 'The capital of France is' --tokens 2)" ' Paris.'

check '--draft says the same' same "$("$program" --prompt "$long" --tokens 40 --draft "$scratch/q8.gguf" --stats 2>"$scratch/stats")" \
  "$("$program" --prompt "$long" --tokens 40)"
check 'and is right almost always' grep -qE 'accepted, (9[0-9]|100)\.[0-9] %$' "$scratch/stats"

echo "chat: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
