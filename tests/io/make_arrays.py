"""Writes tests/data/npy, whose elements are 0, 1, 2, .. in C's order: make_arrays.py FOLDER"""
import sys

import numpy as np

folder = sys.argv[1]
x = np.arange(24).reshape(2, 3, 4)
for name, array in {
    "c_f4": x.astype("<f4"),
    "fortran_f8": np.asfortranarray(x.astype("<f8")),
    "big_f4": x.astype(">f4"),
    "big_fortran_i2": np.asfortranarray(x.astype(">i2")),
    "f2": x.astype("<f2"),
    "u8": x.astype("<u8"),
}.items():
    np.save(f"{folder}/{name}.npy", array)
np.save(f"{folder}/bool.npy", x % 2 == 1)
np.save(f"{folder}/scalar.npy", np.float64(7))
np.save(f"{folder}/empty.npy", np.zeros((0, 5), np.float32))
np.save(f"{folder}/text.npy", np.array(["a"]))
np.savez(f"{folder}/stored.npz", a=x.astype("<f4"), b=x.astype("<i8"))
np.savez_compressed(f"{folder}/compressed.npz", a=x.astype("<f4"), b=np.zeros((100, 1000), "<f8"))
