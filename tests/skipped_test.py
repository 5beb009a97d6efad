"""Skipped tests say how to run them: skipped_test.py JSON_ANSWER PERPLEXITY CHAT, without models and torch."""
import os
import pathlib
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parent

json_answer, perplexity, chat = sys.argv[1:]
with tempfile.TemporaryDirectory() as empty:
    environment = {**os.environ, "HOME": empty, "XDG_CACHE_HOME": empty}
    environment.pop("ATTN_LLM_DIR", None)
    for script, programs, how in [("examples/json_answer_test.py", [json_answer], "`sh examples/fetch_llm.sh`"),
                                  ("bench/perplexity_test.py", [perplexity, chat], "`sh examples/fetch_llm.sh`"),
                                  ("pytorch/state_dicts.py", ["none"], "`sh bench/peers/run.sh`"),
                                  ("pytorch/t5_buckets.py", [], "`sh bench/peers/run.sh`")]:
        # -S disables packages.
        ended = subprocess.run([sys.executable, "-S", "-B", TESTS / script, *programs], env=environment, check=False,
                               capture_output=True, text=True, timeout=120)
        assert ended.returncode == 77 and how in ended.stderr, (script, ended)
