"""The package: names, stubs and documentation."""

import ast
import importlib.resources
import pathlib
import re

import attn
from attn import _attn

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_version_is_that_of_the_library():
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    assert re.search(r"^  VERSION (\S+)$", cmake, re.MULTILINE)[1] == attn.__version__
    project = (ROOT / "python/pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{attn.__version__}"' in project


def stub():
    return importlib.resources.files("attn").joinpath("_attn.pyi").read_text(encoding="utf-8")


def test_stub_has_every_name():
    tree = ast.parse(stub())
    found = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    names = {name for name in dir(_attn) if not name.startswith("_")}
    assert names <= found
    assert importlib.resources.files("attn").joinpath("py.typed").is_file()


def test_everything_is_documented():
    for name in attn.__all__:
        assert getattr(attn, name).__doc__, name
    assert "scale query key^T" in attn.scaled_dot_product_attention.__doc__


def test_overloads_have_the_parameters_of_the_function():
    signature = attn.scaled_dot_product_attention.__nb_signature__[0][0]
    ours = ast.parse(signature + ": ...").body[0].args
    functions = [node for node in ast.parse(stub()).body if isinstance(node, ast.FunctionDef)]
    overloads = [node for node in functions if node.name == "scaled_dot_product_attention"]
    assert len(overloads) == 2
    for node in overloads:
        assert [x.arg for x in node.args.args] == [x.arg for x in ours.args]
        assert [x.arg for x in node.args.kwonlyargs] == [x.arg for x in ours.kwonlyargs]
