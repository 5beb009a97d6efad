"""Rows of attn: runs attn_report, minilm_speed and llm_speed, and returns their times in
seconds."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from common import Llm, MiniLm


class AttnReport:
    def __init__(self, program, threads):
        self._program = program
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.machine = self._run("mha_tutorial", 1)["machine"]  # the fastest row
        if self.machine["threads"] != threads:
            raise SystemExit(
                f"attn_report runs on {self.machine['threads']} threads, not on {threads}."
            )
        shapes = subprocess.run([program, "--shapes"], capture_output=True, check=True)
        self.shapes = json.loads(shapes.stdout)

    @property
    def version(self):
        patch = self.machine["attn_version"]
        return f"{patch // 10000}.{patch // 100 % 100}.{patch % 100}"

    def best(self, name, operation, seconds):
        """{"seconds": s} or {"error": why} by the row's full name: NAME on one thread, NAME@all on
        all of them."""
        if isinstance(operation, MiniLm):
            rows = {name: 1, name + "@all": self.machine["threads"]}
            if not operation.exact().embeddings_file.exists():
                exact = self._minilm(operation.exact(), 1, 0)
                if "error" in exact:
                    return dict.fromkeys(rows, exact)
            return {
                row: self._minilm(operation, threads, seconds / 2) for row, threads in rows.items()
            }
        if isinstance(operation, Llm):
            rows = {name: 1, name + "@all": self.machine["threads"]}
            return {
                row: self._llm(operation, threads, seconds / 2) for row, threads in rows.items()
            }
        return {
            row["name"]: answer(row, operation)
            for row in self._run(name, seconds)["rows"]
            if row["name"] in (name, name + "@all")
        }

    def _llm(self, operation, threads, seconds):
        program = Path(self._program).with_name("llm_speed")
        command = [program, operation.name, "--model", operation.model, "--seconds", str(seconds)]
        environment = self._environment | {"OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            return {"error": done.stderr.strip()}
        result = json.loads(done.stdout)
        operation.next_file.write_text(str(result["next"]))
        return {"seconds": result["seconds"]}

    def _minilm(self, operation, threads, seconds):
        program = Path(self._program).with_name("minilm_speed")
        options = ["--seconds", str(seconds), "--embeddings", operation.embeddings_file]
        options += ["--precision", operation.precision]
        environment = self._environment | {"OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(
            [program, operation.text_file, *options],
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            return {"error": done.stderr.strip()}
        lost = operation.error(operation.embeddings(), operation.expected())
        if not lost < operation.own_tolerance:
            return {"error": f"wrong by {lost:.1e}, {operation.own_tolerance:g} allowed"}
        return {"seconds": json.loads(done.stdout)["seconds"]}

    def _run(self, only, seconds):
        with tempfile.TemporaryDirectory() as folder:
            json_file = Path(folder, "report.json")
            options = ["--only", only, "--seconds", str(max(1, seconds)), "--json", json_file]
            subprocess.run(
                [self._program, *options],
                env=self._environment,
                stdout=subprocess.DEVNULL,
                check=True,
            )
            return json.loads(json_file.read_text())


def answer(row, operation):
    if row["value"] is None:
        return {"error": row["note"]}
    return {"seconds": in_seconds(row["value"], row["unit"], operation)}


def in_seconds(value, unit, operation):
    match unit:
        case "GFLOP/s":
            return operation.flops / value * 1e-9
        case "GB/s":
            return operation.bytes / value * 1e-9
        case "ns/row":
            return operation.rows * value * 1e-9
        case "ms":
            return value * 1e-3
        case "us":
            return value * 1e-6
    raise SystemExit(f"attn_report has a unit that this script does not know: {unit}")
