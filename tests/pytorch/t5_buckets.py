"""Compares the buckets in tests/attention/relative_bias_test.cpp with those of transformers' T5.

    python tests/pytorch/t5_buckets.py

Needs torch==2.15.0 transformers==5.23.0, as the virtual environment of bench/peers/run.sh has them; ends with 77,
skipped, where they are missing. Where they differ it prints what should stand there.
"""

import itertools
import re
import sys
from pathlib import Path

try:
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention
except ImportError as error:
    print(f"t5_buckets.py needs torch and transformers: {error}; `sh bench/peers/run.sh` makes a virtual environment that has them, "
          "`cmake -B build -D Python3_EXECUTABLE=$HOME/.cache/attn/peers-venv/bin/python` takes it", file=sys.stderr)
    sys.exit(77)

TEST = Path(__file__).parents[1] / "attention/relative_bias_test.cpp"


def expected_runs(bidirectional):
    """[(bucket, number of successive distances in it)], from -128 to 128."""
    distances = torch.arange(-128, 129)
    buckets = T5Attention._relative_position_bucket(distances, bidirectional, num_buckets=32, max_distance=128)
    return [(bucket, len(list(run))) for bucket, run in itertools.groupby(buckets.tolist())]


def runs_of(test):
    """The buckets in the test of that name."""
    body = re.search(rf"TEST\(T5RelativeBias, {test}\) {{(.*?)\n}}\n", TEST.read_text(), re.DOTALL)
    if body is None:
        sys.exit(f"{TEST.name} has no test {test}")
    return [tuple(map(int, pair)) for pair in re.findall(r"{(\d+), (\d+)}", body[1])]


def main():
    same = True
    for test, bidirectional in (("BucketsOfEncoders", True), ("BucketsOfDecoders", False)):
        expected = expected_runs(bidirectional)
        if runs_of(test) == expected:
            print(f"{test}: as transformers gives them, 257 distances in {len(expected)} buckets")
        else:
            same = False
            print(f"{test}: transformers gives {', '.join(f'{{{b}, {n}}}' for b, n in expected)}")
    sys.exit(0 if same else 1)


main()
