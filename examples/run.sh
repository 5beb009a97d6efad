#!/bin/sh
# Installs what is missing, builds the examples and runs each of them: `sh examples/run.sh`, from any directory.
#
# ATTN_BUILD_DIR names the build directory (default: build; from the top of the repository).
set -eu

case "${1-}" in
  '') ;;
  -h | --help)
    echo "Usage: sh examples/run.sh
Installs what is missing, builds the examples and runs each of them. ATTN_BUILD_DIR names the build directory."
    exit
    ;;
  *)
    echo "run.sh: takes no argument; see --help" >&2
    exit 2
    ;;
esac

cd "$(dirname "$0")/.."
build=${ATTN_BUILD_DIR:-build}
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

step() { echo "==> $*"; }

step "Looking for what the build needs"
sh tests/setup.sh

step "Configuring in $build"
# By the variable, not by -G: a directory that is configured already keeps its generator.
CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja} cmake -S . -B "$build" --log-level=WARNING

step "Building the examples"
cmake --build "$build" --parallel "$jobs" --target quickstart tutorials generate semantic_search attention_map chat quantize train_reverse train_gpt finetune_search finetune_chat models classify_image

step "Fetching the weights of all-MiniLM-L6-v2"
sh examples/fetch_model.sh

step "Fetching SmolLM2-135M-Instruct"
sh examples/fetch_llm.sh

step "quickstart: the smallest program"
"$build/examples/quickstart"

step "tutorials: the numbers of the tutorials"
"$build/examples/tutorials"

step "generate: a rhyme, continued by a GPT that nobody trained"
"$build/examples/generate"

step 'semantic_search --file examples/data/help_center.txt "How do I get my money back?"'
"$build/examples/semantic_search" --file examples/data/help_center.txt "How do I get my money back?"

sentence='The cat did not cross the street because it was too tired.'
step "attention_map --out $build/attention_map.html --png $build/attention_map.png \"$sentence\""
"$build/examples/attention_map" --out "$build/attention_map.html" --png "$build/attention_map.png" "$sentence"
echo "Open $build/attention_map.html in a browser: every head, and where each token looks."

step "models tests/data/pretrained/llama: from a Hugging Face folder to its next tokens"
"$build/examples/models" tests/data/pretrained/llama

step "classify_image $build/attention_map.png: a vision transformer of random weights"
"$build/examples/classify_image" "$build/attention_map.png"

step "train_reverse: a Transformer learns to reverse sequences, for 20 s"
"$build/examples/train_reverse"

step "finetune_search --seeds 1: the encoder learns which line of a help centre answers a question"
"$build/examples/finetune_search" --seeds 1

step "finetune_chat --steps 10: the language model learns to answer as the help centre does"
"$build/examples/finetune_chat" --steps 10 --save "$build/finetune_chat.safetensors"

step "Fetching Shakespeare's plays"
sh examples/fetch_plays.sh

step "train_gpt --seconds 20 --out $build/train_gpt.html"
"$build/examples/train_gpt" --seconds 20 --out "$build/train_gpt.html"
echo "Open $build/train_gpt.html in a browser: the loss, and what the model wrote on the way."
step "chat: two questions to a language model of 135 million weights, in 8 bits"
printf '%s\n' 'What is gravity?' 'Why is the sky blue?' | "$build/examples/chat" --stats --tokens 80
echo "Without input, \`$build/examples/chat\` is a conversation."
