"""Fails unless NEON's inner loops multiply by lanes and load little: lane_loads.py OBJDUMP LIBRARY.

A loop is the code from the target of a backward branch to the branch, without another such loop in it. Remainders of k
and of columns have their own loops with fewer multiply-adds, which are not checked. A load of a pair of registers counts
as one. A compiler that broadcasts instead of multiplying by a lane, or that spills sums, changes no result: no other test
notices it.
"""

import re
import subprocess
import sys

LIMITS = {"s": 1.0, "d": 1.2}  # loads per 4 multiply-adds, for float and double
NAMES = {"s": "float", "d": "double"}
# Functions of GEMM tiles and of attention, and the minimum number of multiply-adds of a loop to check.
TILES = [
    (re.compile(r"neon::(multiply_block|tile_panel|tile<\w+, \d, \d, \S+ALayout\)0)"), 8),
    (re.compile(r"neon::(score_panel|tile_columns|tile<\w+, 8, 2, \S+ALayout\)1)"), 64),
]
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+[0-9a-f]{8}\s+(\S+)\s*(.*)$")


def functions(text):
    """Name and instructions (address, mnemonic, operands) of each function."""
    name, body = None, []
    for line in text.splitlines():
        if line.endswith(">:"):
            if name:
                yield name, body
            name, body = line[line.index("<") + 1 : -2], []
        elif (found := INSTRUCTION.match(line)) is not None:
            body.append((int(found[1], 16), found[2], found[3]))
    if name:
        yield name, body


def inner_loops(body):
    """Instructions of every loop that contains no other loop."""
    spans = []
    for address, mnemonic, operands in body:
        if mnemonic.startswith(("b.", "cbz", "cbnz", "tbz", "tbnz")) or mnemonic == "b":
            target = re.search(r"([0-9a-f]+) <", operands)
            if target is not None and body[0][0] <= int(target[1], 16) < address:
                spans.append((int(target[1], 16), address))
    for begin, end in spans:
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in spans):
            yield [x for x in body if begin <= x[0] <= end]


def main():
    objdump, library = sys.argv[1:]
    text = subprocess.run(
        [objdump, "--disassemble", "--demangle", library], capture_output=True, text=True, check=True
    ).stdout
    found = {(tile, element): 0 for tile in range(len(TILES)) for element in LIMITS}
    failures = 0
    for name, body in functions(text):
        tile = next((i for i, (pattern, _) in enumerate(TILES) if pattern.search(name)), None)
        if tile is None:
            continue
        for loop in inner_loops(body):
            lanes = [re.search(r"\.([sd])\[\d\]", x[2]) for x in loop if x[1] == "fmla"]
            lanes = [x[1] for x in lanes if x is not None]
            if len(lanes) < TILES[tile][1]:
                continue
            element = lanes[0]
            loads = [x for x in loop if x[1].startswith("ld") and x[2][0] in "qdvs{"]
            stores = [x for x in loop if x[1].startswith("st") and x[2][0] in "qdvs{"]
            ratio = 4 * len(loads) / len(lanes)
            verdict = "" if ratio <= LIMITS[element] and not stores else "  FAILED"
            failures += verdict != ""
            found[tile, element] += 1
            print(
                f"{NAMES[element]}: {len(lanes)} multiply-adds, {len(loads)} loads, "
                f"{len(stores)} stores, {ratio:.2f}: {name[:110]}{verdict}"
            )
    for (tile, element), count in found.items():
        if count == 0:
            print(f"no loop of {TILES[tile][0].pattern} multiplies by lanes of {NAMES[element]}")
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
