#!/bin/sh
# Installs missing packages, compiles five examples, or all of them (see --help), and runs them. From any directory.
#
# ATTN_BUILD_DIR names the build directory (default: build; from the top of the repository).
set -eu

usage="Usage: sh examples/run.sh [all]
Installs what is missing, compiles the examples and runs them. ATTN_BUILD_DIR names the build directory.

  (nothing)  quickstart, tutorials, semantic_search, attention_map, chat: 90 to 150 seconds on two cores,
             175 MB of models to download, 45 MB in the build directory
  all        these and the other examples, of which five train a model: about six minutes on two cores,
             180 MB of models and texts to download, 250 MB in the build directory

transcribe and search_images are not run: they need the folder of a Whisper, and of a CLIP or SigLIP
(docs/huggingface.md)."

case "$# ${1-}" in
  '0 ' | '1 all') ;;
  '1 -h' | '1 --help')
    echo "$usage"
    exit
    ;;
  *)
    echo "run.sh: takes all or no argument; see --help" >&2
    exit 2
    ;;
esac

cd "$(dirname "$0")/.."
. cmake/functions.sh
build=${ATTN_BUILD_DIR:-build}
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

programs='quickstart tutorials semantic_search attention_map chat'
if [ "${1-}" = all ]; then
  programs="$programs generate models logits classify_image quantize json_answer train_reverse finetune_search finetune_chat train_gpt"
  if program mpicxx >/dev/null && program mpirun >/dev/null; then
    programs="$programs chat_mpi train_gpt_mpi"
  fi
fi
echo "$usage" | grep -A 1 "^  ${1:-(nothing)} "
echo "             and what apt installs, if anything"

step "Looking for what the build needs"
sh examples/setup.sh

if [ -f "$build/CMakeCache.txt" ]; then
  configure "$build"
else
  configure "$build" -D ATTN_BUILD_TESTS=OFF -D ATTN_BUILD_BENCHMARKS=OFF
fi

step "Compiling attn::compiled, which all examples share, and $programs"
# Prints a line for each file, on a terminal too: otherwise Ninja would overwrite the lines of busy().
# shellcheck disable=SC2086  # a list of words
busy compiling env TERM=dumb NINJA_STATUS='    after %e s, %f of %t done: ' \
  cmake --build "$build" --parallel "$jobs" --target $programs

step "Fetching all-MiniLM-L6-v2"
busy downloading sh examples/fetch_model.sh

step "Fetching SmolLM2-135M-Instruct"
busy downloading sh examples/fetch_llm.sh

step "quickstart: the smallest program"
"$build/examples/quickstart"

step "tutorials: the numbers of the tutorials"
"$build/examples/tutorials"

step 'semantic_search --file examples/data/help_center.txt "How do I get my money back?"'
"$build/examples/semantic_search" --file examples/data/help_center.txt "How do I get my money back?"

sentence='The cat did not cross the street because it was too tired.'
step "attention_map --out $build/attention_map.html --png $build/attention_map.png \"$sentence\""
"$build/examples/attention_map" --out "$build/attention_map.html" --png "$build/attention_map.png" "$sentence"
echo "Open $build/attention_map.html in a browser: the attention weights of every head."

step "chat: two questions to a language model of 135 million weights, in 8 bits"
printf '%s\n' 'What is gravity?' 'Why is the sky blue?' | "$build/examples/chat" --stats --tokens 80
echo "Run \`$build/examples/chat\` for a conversation."

if [ "${1-}" != all ]; then
  step "Done. \`sh examples/run.sh all\` runs the other examples too."
  exit
fi

step "generate: a rhyme, continued by a GPT that nobody trained"
"$build/examples/generate"

step "models tests/data/pretrained/llama: from a Hugging Face folder to its next tokens"
"$build/examples/models" tests/data/pretrained/llama

step "logits tests/data/pretrained/qwen3 --ids 5,7,9 --tokens 5: what a Hugging Face folder computes"
"$build/examples/logits" tests/data/pretrained/qwen3 --ids 5,7,9 --tokens 5

step "classify_image $build/attention_map.png: a vision transformer of random weights"
"$build/examples/classify_image" "$build/attention_map.png"

llm=${ATTN_LLM_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/attn/SmolLM2-135M-Instruct}/SmolLM2-135M-Instruct.Q4_1.gguf
step "quantize SmolLM2-135M-Instruct.Q4_1.gguf $build/SmolLM2.Q8_0.gguf: the language model's file in 8 bits"
"$build/examples/quantize" "$llm" "$build/SmolLM2.Q8_0.gguf"

step "json_answer: a language model fills in a shape of JSON"
busy answering "$build/examples/json_answer"

step "train_reverse: a Transformer learns to reverse sequences, for 20 s"
busy training "$build/examples/train_reverse"

step "finetune_search --seeds 1: the encoder learns which line of a help centre answers a question"
busy training "$build/examples/finetune_search" --seeds 1

step "finetune_chat --steps 10: the language model learns to answer as the help centre does"
busy training "$build/examples/finetune_chat" --steps 10 --save "$build/finetune_chat.safetensors"

step "Fetching Shakespeare's plays"
busy downloading sh examples/fetch_plays.sh

step "train_gpt --seconds 20 --out $build/train_gpt.html"
busy training "$build/examples/train_gpt" --seconds 20 --out "$build/train_gpt.html"
case $programs in
  *train_gpt_mpi)
    # For root, and on fewer cores than ranks.
    on_two_ranks() {
      env OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 mpirun -n 2 "$@"
    }
    step "mpirun -n 2 train_gpt_mpi --seconds 10: the same on two ranks"
    busy training on_two_ranks "$build/examples/train_gpt_mpi" --seconds 10
    step "mpirun -n 2 chat_mpi --prompt ..: a language model whose weights two ranks share"
    busy answering on_two_ranks "$build/examples/chat_mpi" --prompt 'What is the capital of France?' --tokens 40
    ;;
  *) echo "chat_mpi and train_gpt_mpi are left out: MPI was not found (Debian: libopenmpi-dev openmpi-bin)" ;;
esac
echo "Open $build/train_gpt.html in a browser: the losses, and samples of the training run."
