"""The seed of random cases, printed on top: ATTN_TEST_SEED repeats a run."""

import json
import os
import pathlib
import random
import struct

import numpy
import pytest

SEED = int(os.environ.get("ATTN_TEST_SEED", random.SystemRandom().randrange(2**31)))
DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data"


def pytest_report_header():
    return f"ATTN_TEST_SEED={SEED}"


def write_safetensors(path, tensors):
    """`tensors`: (dtype, shape, bytes) by name."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.fixture
def rng(request):
    """A generator of the test's own: a test that runs alone has the same numbers."""
    return numpy.random.default_rng([SEED, *request.node.nodeid.encode()])
