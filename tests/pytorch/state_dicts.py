"""Loads what attn's save_state_dict() writes into PyTorch's own modules, strictly.

    python tests/pytorch/state_dicts.py build/tests/save_state_dicts

Needs torch==2.15.0 safetensors==0.8.0, as the virtual environment of bench/peers/run.sh has them; ends with 77,
skipped, where they are missing.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    from safetensors import safe_open
except ImportError as error:
    print(f"state_dicts.py needs torch and safetensors: {error}; `sh bench/peers/run.sh` makes a virtual environment that has them, "
          "`cmake -B build -D Python3_EXECUTABLE=$HOME/.cache/attn/peers-venv/bin/python` takes it", file=sys.stderr)
    sys.exit(77)


def make_module(name, arguments):
    """A stack's arguments are its own and those of its layers."""
    arguments["batch_first"] = True  # attn is batch-first; this does not affect parameters
    if name not in ("TransformerEncoder", "TransformerDecoder"):
        return getattr(torch.nn, name)(**arguments)
    num_layers, norm = arguments.pop("num_layers"), arguments.pop("norm")
    layer = getattr(torch.nn, name + "Layer")(**arguments)
    return getattr(torch.nn, name)(layer, num_layers, torch.nn.LayerNorm(arguments["d_model"]) if norm else None)


def check(path):
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    module = make_module(metadata["class"], json.loads(metadata["arguments"]))
    module.load_state_dict(tensors, strict=True)
    numbers = sum(tensor.numel() for tensor in tensors.values())
    print(f"{path.stem}: {metadata['class']} has loaded {len(tensors)} tensors, {numbers} numbers")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/pytorch/state_dicts.py PATH/save_state_dicts")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], folder], check=True)
        paths = sorted(Path(folder).iterdir())
        if not paths:
            sys.exit("save_state_dicts has written nothing")
        for path in paths:
            check(path)


main()
