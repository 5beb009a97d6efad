"""The seed of random cases, printed on top: ATTN_TEST_SEED repeats a run."""

import os
import pathlib
import random

import numpy
import pytest

SEED = int(os.environ.get("ATTN_TEST_SEED", random.SystemRandom().randrange(2**31)))
DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data"


def pytest_report_header():
    return f"ATTN_TEST_SEED={SEED}"


@pytest.fixture
def rng(request):
    """A generator of the test's own: a test that runs alone has the same numbers."""
    return numpy.random.default_rng([SEED, *request.node.nodeid.encode()])
