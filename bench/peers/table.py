"""Measures attn and other libraries in turn and prints attn's speedup over each."""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import common
from attn_rows import AttnReport
from peer import Peer

ABSENT = "—"
PACKAGE = "attn in Python"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", required=True, metavar="PROGRAM", help="attn_report")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument(
        "--quick", action="store_true", help="one short round: whether it works, not how fast"
    )
    parser.add_argument(
        "--row", metavar="NAME", action="append", help="this row; may be given again (default: all)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the same as JSON")
    options = parser.parse_args()
    if options.threads < 1:
        parser.error("--threads must be at least 1")
    return options


def progress(text):
    """Overwrites one line of a terminal; prints nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


class Comparison:
    """The best time of every row so far, for attn and for each library."""

    def __init__(self, report, peers, threads, minilm, names):
        self.report = report
        self.peers = peers
        self.threads = {"": 1} if threads == 1 else {"": 1, "@all": threads}
        known = common.operations(report.shapes, minilm)
        unknown = [name for name in names or [] if name not in known]
        if unknown:
            raise SystemExit(f"--row must be one of {', '.join(known)}; found {unknown[0]}.")
        self.operations = {name: known[name] for name in names or known}
        self.best = {}  # by row and by name, attn's or the library's
        self.errors = {}  # by row and name: the last error

    def measure(self, name, seconds):
        """Measures a row of attn, then at once the same row of every library: a disturbance then
        affects all of them."""
        operation = self.operations[name]
        for row, answer in self.report.best(name, operation, 2 * seconds).items():
            self._keep(row, "attn", answer)
        for end, threads in self.threads.items():
            # Skips libraries in rows that attn does not have.
            for peer in self.peers if (name + end, "attn") in self.best else []:
                self._keep(name + end, peer.name, peer.best(operation, threads, seconds))

    def _keep(self, row, who, answer):
        if "seconds" in answer:
            self.best[row, who] = min(self.best.get((row, who), math.inf), answer["seconds"])
        else:
            self.errors[row, who] = answer["error"]

    def rows(self):
        """[{"name", "threads", "seconds", "peers": {name: {"seconds", "ratio"}}}], null where
        there is no number; "sentences" or "tokens" where they are what is done in those seconds."""
        return [
            self._row(name + end, threads) | work_of(operation)
            for name, operation in self.operations.items()
            for end, threads in self.threads.items()
        ]

    def _row(self, name, threads):
        ours = self.best.get((name, "attn"))
        peers = {}
        for peer in self.peers:
            theirs = self.best.get((name, peer.name))
            peers[peer.name] = {"seconds": theirs, "ratio": theirs and ours and theirs / ours}
        return {"name": name, "threads": threads, "seconds": ours, "peers": peers}


def work_of(operation):
    if isinstance(operation, common.Llm) and operation.kind != "first":
        return {"tokens": operation.tokens}
    return {"sentences": operation.sentences} if isinstance(operation, common.MiniLm) else {}


def speed_text(row):
    seconds = row["seconds"]
    if seconds is None:
        return ABSENT
    if "sentences" in row:
        return f"{row['sentences'] / seconds:.4g} sentences/s"
    if "tokens" in row:
        return f"{row['tokens'] / seconds:.4g} tokens/s"
    return f"{seconds * 1e3:.4g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} µs"


def ratio_text(ratio):
    return ABSENT if ratio is None else f"{ratio:.2f}"


def print_table(result):
    machine, versions = result["machine"], result["versions"]
    rounds = (
        f"best of {result['rounds']} rounds"
        if result["rounds"] > 1
        else "one quick round, not to be trusted"
    )
    print(f"{machine['name']}, {machine['isa']}, threads: {machine['threads']}; {rounds}.  ")
    print("; ".join(f"{name} {version}" for name, version in versions.items()) + ".  ")
    print("Speedup over each library: its time / attn's; above 1, attn is faster.\n")
    print("| row | threads | attn | " + " | ".join(result["peers"]) + " |")
    print("| --- | ---: | ---: |" + " ---: |" * len(result["peers"]))
    for row in result["rows"]:
        ratios = [ratio_text(peer["ratio"]) for peer in row["peers"].values()]
        print(
            "| " + " | ".join([row["name"], str(row["threads"]), speed_text(row), *ratios]) + " |"
        )
    print(
        "\nThe other libraries and attn's package are called from Python, which costs some"
        " microseconds per call: a large part of softmax and mha_tutorial. Fast decoding in"
        " OpenVINO needs a model whose state is the cache; sdpa_decode is its operator alone."
        " minilm is all-MiniLM-L6-v2 on lines of 5 to 60 words, tokenizer included, in batches of"
        " 32 lines of similar length: PyTorch by sentence-transformers; ONNX Runtime by the"
        " exported or the optimized graph, whichever is faster. Rows _bf16 and _int8 may round"
        " to these types: weights are known in advance, activations are rounded in the call;"
        " PyTorch by tensors of bfloat16 and quantize_dynamic, ONNX Runtime by"
        " quantize_dynamic, OpenVINO by its inference precision and, in int8, by weights with"
        " a scale per row and dynamic quantization. llm is SmolLM2-135M-Instruct in Q4_1 with"
        " activations in 8 bits, except for llm_prefill_exact and llm_prefill_bf16; the latter"
        " also converts weights to bfloat16. Its rows are a prefill of 512 tokens, 128 tokens"
        " decoded after 16, as many of each of 8 conversations at once, 16 tokens after 4,096"
        " with a cache in 8 bits, and the first token after 16, including loading; PyTorch by"
        " transformers, which dequantises the file's weights, then by quantize_dynamic or in"
        " bfloat16."
    )
    print_package(result)
    for complaint in result["complaints"]:
        print(f"\n{complaint}")


def print_package(result):
    """What remains of the speedup over PyTorch if attn is called from Python too."""
    rows = []
    for row in result["rows"]:
        ours, torch = (row["peers"].get(name, {}).get("seconds") for name in (PACKAGE, "PyTorch"))
        if ours and torch:
            rows.append((row, torch / ours, (ours - row["seconds"]) * 1e6))
    if not rows:
        return
    print("\nSpeedup over PyTorch of attn's Python package, of attn in C++, and the time that a")
    print("call of the package takes longer.\n")
    print("| row | threads | attn in Python | attn in C++ | longer by |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row, ratio, microseconds in rows:
        cells = [row["name"], str(row["threads"]), ratio_text(ratio)]
        cells += [ratio_text(row["peers"]["PyTorch"]["ratio"]), f"{microseconds:.1f} µs"]
        print("| " + " | ".join(cells) + " |")


def write_minilm_files(minilm):
    """Returns an error message if the other libraries lack something."""
    progress("minilm: the model in the other libraries' formats")
    command = [
        sys.executable,
        Path(__file__).with_name("minilm_files.py"),
        minilm.folder,
        str(minilm.sentences),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return []
    return [f"minilm in the other libraries' formats: {done.stderr.strip().splitlines()[-1]}"]


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        compare(options, common.MiniLm(folder, sentences=64 if options.quick else 512))


def compare(options, minilm):
    rounds, seconds = (1, 0.1) if options.quick else (5, 0.45)
    # Opened before the measurements, so that a wrong path fails at once.
    json_file = open(options.json, "w") if options.json else None
    report = AttnReport(options.report, options.threads)
    peers = [
        Peer(PACKAGE, "package_rows.py"),
        Peer("PyTorch", "torch_rows.py"),
        Peer("ONNX Runtime", "onnxruntime_rows.py"),
        Peer("OpenVINO", "openvino_rows.py"),
        Peer("llama.cpp", "llama_rows.py"),
    ]
    present = [peer for peer in peers if not peer.absence]
    comparison = Comparison(report, present, options.threads, minilm, options.row)
    has_minilm = any(
        isinstance(operation, common.MiniLm) for operation in comparison.operations.values()
    )
    minilm_complaints = write_minilm_files(minilm) if has_minilm else []
    for i in range(rounds):
        for name in comparison.operations:
            progress(f"round {i + 1} of {rounds}: {name}")
            comparison.measure(name, seconds)
    progress("")
    versions = {"attn": f"{report.version} (compiler {report.machine['compiler']})"}
    complaints = [
        f"{peer.name} does not run here: {peer.absence}" for peer in peers if peer.absence
    ]
    complaints += minilm_complaints + [
        f"{who}, {row}: {error}" for (row, who), error in comparison.errors.items()
    ]
    result = {
        "machine": report.machine,
        "versions": versions | {peer.name: peer.version for peer in present},
        "rounds": rounds,
        "peers": [peer.name for peer in present],
        "rows": comparison.rows(),
        "complaints": complaints,
    }
    print_table(result)
    if json_file:
        with json_file:
            json.dump(result, json_file, indent=2)
            json_file.write("\n")


main()
