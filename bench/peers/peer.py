"""Another library in a process of its own: Peer asks for times, serve() answers, one JSON line
each."""

import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

import common


class Unsupported(Exception):
    """The library has no such operation."""


class Way(NamedTuple):
    """One of the library's ways to run an operation."""

    call: Callable[[], Any]
    result: Callable[
        [Any], np.ndarray
    ]  # the result of call(), in the layout of Operation.expected()
    keep: Any = None  # memory that the call reads and the library does not own


def need_element(operation, *known):
    """Raises Unsupported unless the operation's element is one of those given."""
    if operation.element not in known:
        raise Unsupported(f"no {operation.element} in {type(operation).__name__}")


def check(way, operation, inputs):
    """Raises ArithmeticError if the result is wrong."""
    expected = operation.expected(**{name: x.astype(np.float64) for name, x in inputs.items()})
    error = operation.error(way.result(way.call()), expected)
    if not error < operation.tolerance:
        raise ArithmeticError(
            f"wrong by {error:.1e}, {operation.tolerance:g} allowed, on {operation}"
        )


def best_way(ways, operation, threads, seconds):
    """The shortest time of all ways whose results are right."""
    best = math.inf
    errors, unsupported = [], []
    for shape in operation.equivalents():
        for make in ways:
            try:
                inputs = shape.small().inputs()
                check(make(shape.small(), inputs, threads), shape.small(), inputs)
                inputs = shape.inputs()
                way = make(shape, inputs, threads)
                best = min(best, common.best_seconds(way.call, seconds))
            except Unsupported as error:
                unsupported.append(str(error))
            except Exception as error:  # of the library's own types
                errors.append(f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:160])
    return {"error": "; ".join(errors or unsupported)} if best == math.inf else {"seconds": best}


def serve(version, *ways, trains=False):
    """Answers requests until the input ends. A way is a function of (operation, inputs, threads)
    that returns a Way."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints of the library are not answers
    print(json.dumps({"version": version}), file=answers, flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        operation = getattr(common, ask["operation"])(**ask["shape"])
        if operation.trains and not trains:
            answer = {"error": "does not train"}
        else:
            answer = best_way(ways, operation, ask["threads"], ask["seconds"])
        print(json.dumps(answer), file=answers, flush=True)


class Peer:
    """Asks the process for times. A process that has died is started again for the next request."""

    def __init__(self, name, script):
        self.name = name
        self.script = Path(__file__).with_name(script)
        self.version = None
        self.absence = ""  # why the library cannot run at all
        self._process = None
        try:
            self._start()
        except ChildProcessError as error:
            self.absence = str(error)

    def best(self, operation, threads, seconds):
        """{"seconds": s} or {"error": why}"""
        try:
            if self._process is None:
                self._start()
            ask = {"operation": type(operation).__name__, "shape": dataclasses.asdict(operation)}
            self._process.stdin.write(
                json.dumps({**ask, "threads": threads, "seconds": seconds}) + "\n"
            )
            self._process.stdin.flush()
            return self._answer()
        except (ChildProcessError, BrokenPipeError) as error:
            self._process = None
            return {"error": str(error)}

    def _start(self):
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, self.script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.version = self._answer()["version"]

    def _answer(self):
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._log.seek(0)
        last = (self._log.read().strip().splitlines() or ["it printed nothing"])[-1]
        raise ChildProcessError(f"ended with code {code}: {last[:160]}")
