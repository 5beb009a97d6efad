"""Writes tests/data/core/printed.json: arrays and the text that numpy 2.4 makes of them.

  make_printed.py > tests/data/core/printed.json
"""
import json

import numpy as np

rng = np.random.default_rng(29)
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]


def values(kind, shape, dtype):
    if kind == "integers":
        return rng.integers(-9, 10, shape).astype(dtype)
    if kind == "eighths":
        return (rng.integers(-40, 41, shape) / 8).astype(dtype)
    x = rng.standard_normal(shape)
    if kind == "wide":
        x = x * 10.0 ** rng.integers(-6, 7, shape)
    elif kind == "large":
        x = x * 3e9
    elif kind == "small":
        x = x * 1e-5
    elif kind == "special":
        x = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), x)
    elif kind == "none":
        x = rng.choice(SPECIAL, shape)
    return x.astype(dtype)


SHAPES = [(1,), (4,), (7,), (23,), (2, 3), (3, 30), (2, 2, 3), (2, 1, 2, 3), (1, 5, 1), (0,), (3, 0), (9, 9), (40,), (7, 8, 9)]
OPTIONS = [
    dict(precision=4, edge=3, threshold=1000, line_width=75),
    dict(precision=8, edge=3, threshold=1000, line_width=75),
    dict(precision=2, edge=2, threshold=30, line_width=40),
    dict(precision=0, edge=1, threshold=5, line_width=20),
    dict(precision=4, edge=3, threshold=20, line_width=10),
]
KINDS = {
    "float32": ["normal", "eighths", "wide", "large", "small", "special", "none"],
    "float64": ["normal", "eighths", "wide", "large", "small", "special", "none"],
    "float16": ["normal", "eighths", "special", "wide"],
    "int64": ["integers"],
    "int32": ["integers"],
    "bool": ["integers"],
}

cases = []
for dtype, kinds in KINDS.items():
    for kind in kinds:
        for n in range(4):
            shape = SHAPES[rng.integers(len(SHAPES))]
            options = OPTIONS[rng.integers(len(OPTIONS))]
            with np.errstate(over="ignore", invalid="ignore"):
                x = values(kind, shape, dtype)
            with np.printoptions(precision=options["precision"], edgeitems=options["edge"],
                                 threshold=options["threshold"], linewidth=options["line_width"]):
                text = str(x)
            # As text, since JSON has no NaN.
            flat = [repr(float(v)) if x.dtype.kind == "f" else repr(int(v)) for v in x.ravel()]
            cases.append(dict(dtype=dtype, shape=shape, options=options, values=" ".join(flat), text=text))
print(json.dumps(cases, indent=0))
