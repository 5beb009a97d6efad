# bench/peers' table with attn's own column: peers_table_test.py TABLE ATTN_REPORT. One short round with a row of each
# unit. Other libraries are measured if this python3 has them, and otherwise named as missing.
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from browser import Checks

table, report = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
rows = ["gemm_1024", "softmax", "mha_tutorial", "sdpa_decode_gqa"]
checks = Checks("peers_table")
with tempfile.TemporaryDirectory() as folder:
    environment = dict(os.environ)
    if importlib.util.find_spec("numpy") is None:  # attn's column only uses its types by name
        pathlib.Path(folder, "numpy.py").write_text("ndarray = object\n", encoding="utf-8")
        environment["PYTHONPATH"] = folder
    json_file = pathlib.Path(folder, "table.json")
    command = [sys.executable, "-B", table, "--report", report, "--threads", "1", "--quick", "--json", json_file]
    done = subprocess.run(
        command + [word for row in rows for word in ("--row", row)], env=environment, capture_output=True, text=True, timeout=300
    )
    checks.same("exit", (done.returncode, done.stderr), (0, ""))
    if done.returncode != 0:
        checks.finish()
    result = json.loads(json_file.read_text(encoding="utf-8"))
    checks.rejects("a row that is not there", 1, "found no_row", *command, "--row", "no_row", env=environment)
checks.same("rows", [row["name"] for row in result["rows"]], rows)
checks.holds("attn's times", all(row["seconds"] and 0 < row["seconds"] < 60 for row in result["rows"]))
checks.holds("a line for each row", all(f"| {row} | 1 | " in done.stdout for row in rows))
missing = {"attn in Python", "PyTorch", "ONNX Runtime", "OpenVINO", "llama.cpp"} - set(result["peers"])
checks.holds("libraries that are missing", all(f"{name} does not run here" in done.stdout for name in missing))
checks.finish()
