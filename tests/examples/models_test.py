# models as a user runs it: models_test.py PROGRAM.
import pathlib
import shutil
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
from browser import Checks

program = pathlib.Path(sys.argv[1]).resolve()
data = TESTS / "data/pretrained"
checks = Checks("models")

for name in ("llama", "mistral", "qwen3", "gemma", "gpt2"):
    ended = subprocess.run([program, data / name], capture_output=True, timeout=60, check=False)
    text = ended.stdout.decode()
    checks.holds(f"{name}: the tokens of transformers", ended.returncode == 0 and "the tokens of transformers" in text and "NOT" not in text, text)
    checks.same(f"{name}: nothing is wrong", ended.stderr, b"")
text = subprocess.run([program, data / "llama", "--ids", "5,6", "--tokens", "1"], capture_output=True, check=True, timeout=60).stdout.decode()
checks.holds("a prompt of one's own", "behind the prompt 5 6\n" in text and "2 tokens held, room for 1 more" in text and "transformers," not in text, text)
one = subprocess.run([program, data / "llama", "--ids", "5", "--tokens", "1"], capture_output=True, check=True, timeout=60).stdout.decode()
checks.holds("counts are grammatical", "1 token held" in one, one)
checks.holds("scaled rotary positions are told", "theta 10000, scaled by 8" in text, text)

checks.rejects("no folder", 2, "a folder is needed", program)
checks.rejects("a folder that is not there", 1, "nowhere", program, "nowhere")
checks.rejects("a model of another kind", 1, "model_type", program, data / "bert")
checks.rejects("a token that the model has not", 1, "ids", program, data / "llama", "--ids", "96")
checks.rejects("a token below 0", 2, "--ids", program, data / "llama", "--ids=-1")
checks.rejects("a token past every number", 2, "--ids", program, data / "llama", "--ids", "99999999999999999999")
behind = subprocess.run([program, "--ids", "5,6", data / "llama", "--tokens", "1"], capture_output=True, check=False, timeout=60)
checks.same("the folder may follow the tokens", behind.stdout.decode(), text)
checks.rejects("no tokens", 2, "at least 1", program, data / "llama", "--tokens", "0")
checks.rejects("more tokens than there are positions", 1, "room for", program, data / "llama", "--ids", "1", "--tokens", "1000")
checks.rejects("a name that acts on a terminal", 1, r"a\x1b[2J\u202eb", program, "a\x1b[2J\u202eb")
with tempfile.TemporaryDirectory() as folder:
    broken = pathlib.Path(folder, "llama")
    shutil.copytree(data / "llama", broken)
    part = broken / "model-00002-of-00003.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    checks.rejects("a file cut short", 1, "00002-of-00003", program, broken)
checks.finish()
