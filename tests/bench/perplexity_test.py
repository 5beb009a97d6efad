"""bench/perplexity against chat on the same tokens: perplexity_test.py PERPLEXITY CHAT."""
import json
import math
import os
import subprocess
import sys
import tempfile

TEXT = ("It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it was "
        "the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of Darkness.")


def run(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)


def main():
    perplexity, chat = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "text.txt")
        with open(file, "w", encoding="utf-8") as out:
            out.write(TEXT)
        for words, expected in [([file, "--ctx", "7"], b"must be even; found 7"), ([folder], b"is a directory"),
                                ([file + "x"], b"No such file"), ([], b"FILE is required")]:
            result = run(perplexity, *words)
            assert result.returncode == 2 and expected in result.stderr and not result.stdout, (words, result)
        scores = run(chat, "--score", TEXT, "--json", "--precision", "exact")
        if b"fetch_llm.sh" in scores.stderr:
            print(scores.stderr.decode(), end="", file=sys.stderr)
            sys.exit(77)
        of_chat = json.loads(scores.stdout)
        count = len(of_chat["ids"])
        context = count // 2 * 2
        losses = [-x for x in of_chat["logprobs"][context // 2 - 1:context - 1]]
        mean = sum(losses) / len(losses)
        error = math.sqrt(sum((x - mean) ** 2 for x in losses) / (len(losses) - 1) / len(losses)) * math.exp(mean)
        found = json.loads(run(perplexity, file, "--ctx", str(context), "--json").stdout)
        assert found["windows"] == 1 and found["tokens"] == context // 2, found
        # Both sets of log-probabilities are within 3e-4 of exact ones.
        assert abs(found["perplexity"] / math.exp(mean) - 1) < 1e-3, (found, math.exp(mean))
        assert abs(found["standard_error"] / error - 1) < 1e-2, (found, error)
        line = run(perplexity, file, "--ctx", str(context)).stdout.decode()
        assert line.startswith("perplexity ") and line.endswith(f" over {context // 2} tokens of 1 windows\n"), line
        assert json.loads(run(perplexity, file, "--ctx", "8", "--json").stdout)["windows"] == count // 8
        shorter = json.loads(run(perplexity, file, "--ctx", "8", "--bytes", "100", "--json").stdout)
        assert 0 < shorter["windows"] < count // 8, shorter
        long = run(perplexity, file)
        assert long.returncode == 2 and f"the text has {count} tokens, a window 512".encode() in long.stderr, long


main()
