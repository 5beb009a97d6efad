"""Tensors of files."""

from __future__ import annotations

import os
import pathlib

import numpy

from attn import _attn


def load(path: str | os.PathLike[str]) -> dict[str, numpy.ndarray]:
    """The tensors of a .safetensors file by name, or the array of a .npy file under its stem.

    Arrays view the mapped file and are read-only. bfloat16, which numpy lacks, becomes float32; the
    8-bit floats of safetensors become their bytes, uint8. Raises OSError for a file that cannot be
    read or breaks its format, ValueError for another kind of file.
    """
    file = pathlib.Path(path)
    if file.suffix == ".npy":
        return {file.stem: numpy.load(file, mmap_mode="r", allow_pickle=False)}
    if file.suffix == ".safetensors":
        return _attn.load_safetensors(file)
    raise ValueError(f"[load] path must end with .safetensors or .npy; found {file.name}.")
