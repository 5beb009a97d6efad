"""Tokenizer beside the Python package tokenizers, one thread each.

Tokenizes unusual lines and plays with SmolLM2's vocabulary, and plays with a small SentencePiece
vocabulary (tests/data/sentencepiece).

  python tokenizers_speed.py BUILD [LINES]     # the build folder; 5000 odd lines if not given

Needs what tests/data/smollm2/make_token_ids.py needs, SmolLM2 (examples/fetch_llm.sh) and, for the
other rows, the plays (examples/fetch_plays.sh). Prints lines whose ids differ, and MB of text per
second: the best of several runs of each. With llama-cpp-python, also prints the unusual lines that
llama.cpp tokenizes differently.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # before the package is loaded
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/data/smollm2"))
import make_token_ids
from tokenizers import Tokenizer

PLAYS = pathlib.Path(
    os.environ.get("ATTN_PLAYS_DIR")
    or (os.environ.get("XDG_CACHE_HOME") or os.environ["HOME"] + "/.cache") + "/attn/plays"
)


def best_seconds(f, seconds=3):
    best, first = float("inf"), time.perf_counter()
    while time.perf_counter() - first < seconds:
        start = time.perf_counter()
        f()
        best = min(best, time.perf_counter() - start)
    return best


def compare(name, lines, tokenizer, *program):
    ids = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "lines.json"
        path.write_text(
            json.dumps([{"text": line, "ids": i} for line, i in zip(lines, ids, strict=True)])
        )
        found = json.loads(subprocess.run([*program, path], check=True, capture_output=True).stdout)
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    theirs = megabytes / best_seconds(
        lambda: tokenizer.encode_batch_fast(lines, add_special_tokens=False)
    )
    ours = found["mb_per_second"]
    print(
        f"{name}: {len(lines)} lines, {megabytes:.2f} MB, {found['unequal']} with other ids; "
        f"attn {ours:.1f} MB/s, tokenizers {theirs:.1f} MB/s: {ours / theirs:.1f} x"
    )


def list_llama_differences(lines, tokenizer):
    try:
        import llama_cpp
    except ImportError:
        print("llama-cpp-python is not there: its ids are not compared")
        return
    vocabulary = llama_cpp.Llama(
        make_token_ids.LLM_DIR + "/SmolLM2-135M-Instruct.Q4_1.gguf", vocab_only=True, verbose=False
    )
    unequal = 0
    for line in lines:
        ids = tokenizer.encode(line, add_special_tokens=False).ids
        theirs = vocabulary.tokenize(line.encode(), add_bos=False, special=True)
        if ids != theirs:
            unequal += 1
            print(f"  {ascii(line)}: {ids}; llama.cpp {theirs}")
    print(f"llama.cpp: {len(lines)} odd lines, {unequal} with other ids")


def main():
    program = pathlib.Path(sys.argv[1]).resolve() / "bench/tokenizer_speed"
    tokenizer = make_token_ids.make_tokenizer()
    odd = make_token_ids.make_lines(int(sys.argv[2]) if len(sys.argv) > 2 else 5000)
    compare("odd lines", odd, tokenizer, program)
    list_llama_differences(odd, tokenizer)
    texts = [
        path.read_text(encoding="utf-8", errors="replace") for path in sorted(PLAYS.glob("*.txt"))
    ]
    lines = [line for text in texts for line in text.splitlines()]
    if lines:
        compare("plays", lines, tokenizer, program)
        folder = ROOT / "tests/data/sentencepiece"
        compare(
            "plays by SentencePiece",
            lines,
            Tokenizer.from_file(str(folder / "llama/tokenizer.json")),
            program,
            "--model",
            folder / "llama.gguf",
        )


if __name__ == "__main__":
    main()
