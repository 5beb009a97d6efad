"""Compares attn's reader of .npy files with numpy's on random headers, in files of one to three arrays: npy_headers.py
READ_NPY. Exits with 77 (skipped) without numpy. Prints its seed; a seed may be given after READ_NPY.
"""
import os
import random
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**9)
print("seed", seed)
rng = random.Random(seed)
warnings.simplefilter("ignore")  # numpy warns of Python 2's headers

NAMES = {
    "BOOL": ["b1", "?", "bool"],
    "U8": ["u1", "B", "uint8", "ubyte"],
    "I8": ["i1", "b", "int8", "byte"],
    "U16": ["u2", "H", "uint16", "ushort"],
    "I16": ["i2", "h", "int16", "short"],
    "U32": ["u4", "I", "uint32", "uintc"],
    "I32": ["i4", "i", "int32", "intc"],
    "U64": ["u8", "L", "Q", "uint64", "uintp", "ulonglong"],
    "I64": ["i8", "l", "q", "p", "int64", "intp", "longlong"],
    "F16": ["f2", "e", "float16", "half"],
    "F32": ["f4", "f", "float32", "single"],
    "F64": ["f8", "d", "float64", "double", "float"],
}


def blank():
    return rng.choice(["", "", " ", "  ", "\t", "\n", "\f", "\r\n"])


def string(text):
    quote = rng.choice("'\"")
    return rng.choice(["", "", "u", "U", "r"]) + quote + text + quote


def array():
    """The bytes of one array with a random type, shape and form of header."""
    version = rng.choice([1, 1, 2, 3])
    dtype = rng.choice(list(NAMES))
    name = rng.choice(NAMES[dtype])
    if len(name) <= 2:
        name = rng.choice(["", "<", ">", "=", "|"]) + name
    shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
    long = rng.choice(["", "L"]) if version < 3 else ""
    extents = f"{blank()},{blank()}".join(f"{extent}{long}" for extent in shape)
    if len(shape) == 1 or (shape and rng.random() < 0.3):
        extents += blank() + ","
    values = {
        "descr": string(name),
        "fortran_order": rng.choice(["True", "False"]),
        "shape": f"({blank()}{extents}{blank()})",
    }
    items = [f"{string(key)}{blank()}:{blank()}{value}" for key, value in values.items()]
    rng.shuffle(items)
    header = f"{blank()},{blank()}".join(items) + rng.choice(["", ",", ", "])
    header = rng.choice(["", " ", "\t"]) + "{" + blank() + header + blank() + "}" + " " * rng.randrange(9) + rng.choice(["", "\n"])
    count = int(np.prod(shape)) if shape else 1
    if dtype == "BOOL":
        data = bytes(rng.randrange(2) for _ in range(count))
    else:
        # Small numbers in either byte order, so that all are finite and fit index_t.
        stored = np.dtype(name)
        data = np.array([rng.randrange(100) for _ in range(count)]).astype(stored).tobytes()
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode() + data


def lines_of(path):
    """The lines that read_npy must print for a file, from numpy."""
    lines = []
    with open(path, "rb") as file:
        while file.tell() < os.path.getsize(path):
            begin = file.tell()
            version = np.lib.format.read_magic(file)
            if version == (1, 0):
                _, order, _ = np.lib.format.read_array_header_1_0(file)
            elif version == (2, 0):
                _, order, _ = np.lib.format.read_array_header_2_0(file)
            else:
                order = None  # numpy has no public function for this
            file.seek(begin)
            x = np.load(file)
            kind = {"b": "BOOL", "u": "U", "i": "I", "f": "F"}[x.dtype.kind]
            name = kind if kind == "BOOL" else f"{kind}{8 * x.dtype.itemsize}"
            lines.append((name, order, list(x.shape), [float(value) for value in x.ravel()]))
    return lines


failures = 0
count = 0
with tempfile.TemporaryDirectory() as folder:
    paths = []
    for i in range(500):
        paths.append(os.path.join(folder, f"{i}.npy"))
        with open(paths[-1], "wb") as file:
            for _ in range(rng.choice([1, 1, 2, 3])):
                file.write(array())
    printed = subprocess.run([sys.argv[1], *paths], check=True, capture_output=True, text=True).stdout
    for path, text in zip(paths, printed.split("end of file\n")):
        found = []
        for line in text.splitlines():
            head, _, values = line.partition(":")
            name, *numbers = head.split()
            if name != "error":
                found.append((name, *map(int, numbers[:1]), [int(n) for n in numbers[1:]],
                              [float(value) for value in values.split()]))
        expected = lines_of(path)
        count += len(expected)
        same = len(found) == len(expected) and all(
            f[0] == e[0] and (e[1] is None or bool(f[1]) == e[1]) and f[2:] == e[2:]
            for f, e in zip(found, expected))
        if not same:
            failures += 1
            with open(path, "rb") as file:
                print(f"FAILED: {file.read()!r}\nexpected: {expected}\nfound: {text}")
print(f"{count} arrays, {failures} files fail")
sys.exit(1 if failures or count < 500 else 0)
