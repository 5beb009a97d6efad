"""The programs of docs/python.md print what the page shows below them."""

import contextlib
import io
import pathlib
import re

import pytest

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"
PROGRAM_AND_OUTPUT = re.compile(
    r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAMS = PROGRAM_AND_OUTPUT.findall(GUIDE.read_text(encoding="utf-8"))


def test_guide_has_programs():
    assert len(PROGRAMS) == 2


@pytest.mark.parametrize("program, expected", PROGRAMS, ids=["numpy", "torch"])
def test_program(program, expected):
    if "import torch" in program:
        pytest.importorskip("torch")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, str(GUIDE), "exec"), {})
    assert printed.getvalue() == expected
