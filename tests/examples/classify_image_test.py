# classify_image as a user runs it: classify_image_test.py PROGRAM.
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
from browser import Checks

program = pathlib.Path(sys.argv[1]).resolve()
vit = TESTS / "data/pretrained/vit"
checks = Checks("classify_image")


def png(width, height, pixel, size=None):
    """A PNG with eight bits of red, green and blue; `size` is the size in its header, which may be wrong."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    rows = b"".join(b"\0" + b"".join(bytes(pixel(x, y)) for x in range(width)) for y in range(height))
    head = struct.pack(">IIBBBBB", *(size or (width, height)), 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def shares(text):
    return [float(x) for x in re.findall(r"^ +([\d.]+) % ", text, re.MULTILINE)]


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)

    def run(*arguments):
        ended = subprocess.run([program, *arguments], cwd=folder, capture_output=True, timeout=60, check=True)
        checks.same("nothing is wrong", ended.stderr, b"")
        return ended.stdout.decode()

    (folder / "red.png").write_bytes(png(24, 16, lambda x, y: (255, 0, 0)))
    (folder / "wide.png").write_bytes(png(90, 16, lambda x, y: (255, 0, 0)))
    (folder / "noise.png").write_bytes(png(33, 7, lambda x, y: (x * 83 % 256, y * 91 % 256, x * y * 7 % 256)))
    text = run("red.png", "noise.png", "--top", "3")
    checks.holds("random weights are said to be such", "the weights are random" in text.split("\n")[0], text)
    checks.holds("sizes are told", "red.png  24 x 16\n" in text and "noise.png  33 x 7\n" in text, text)
    checks.same("so many classes", len(shares(text)), 6)
    checks.same("the same again", run("red.png", "noise.png", "--top", "3"), text)

    text = run("--model", vit, "--top", "99", "red.png")
    checks.holds("a model's weights are not", "random" not in text, text)
    checks.same("all classes", len(shares(text)), 5)
    checks.holds("shares of 100 %, the largest first", abs(sum(shares(text)) - 100) < 0.5 and shares(text) == sorted(shares(text), reverse=True), text)
    checks.holds("labels of the config", "LABEL_3" in text, text)
    checks.holds("a map of the patches", "2 x 3 patches:\n" in text and len(text.split("patches:\n")[1].split("\n")) == 3, text)
    # An image of one colour gives the same result at any size.
    checks.same("an image is resized", shares(run("--model", vit, "wide.png")), shares(run("--model", vit, "red.png")))

    own = folder / "own"
    shutil.copytree(vit, own)
    config = json.loads((own / "config.json").read_text())
    config["id2label"] = {str(n): f"a\x1b[2J\u202eb{n}" for n in range(5)}
    (own / "config.json").write_text(json.dumps(config))
    text = run("--model", own, "red.png")
    checks.holds("labels do not act on a terminal", r"a\u001b[2J\u202eb0" in text and "\x1b" not in text, text)
    (own / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0, 0, 0], "image_std": 1}))
    checks.holds("the preprocessor's numbers count", shares(run("--model", own, "red.png")) != shares(text))
    (own / "preprocessor_config.json").write_text(json.dumps({"image_mean": ["x"]}))
    checks.rejects("a preprocessor without numbers", 1, "image_mean", program, "--model", own, "red.png", cwd=folder)

    checks.rejects("no image", 2, "an image is needed", program, cwd=folder)
    checks.rejects("an image that is not there", 1, "none.png", program, "none.png", cwd=folder)
    (folder / "text.png").write_text("no picture")
    checks.rejects("no PNG", 1, "text.png", program, "text.png", cwd=folder)
    (folder / "cut.png").write_bytes((folder / "noise.png").read_bytes()[:60])
    checks.rejects("a PNG cut short", 1, "cut.png", program, "cut.png", cwd=folder)
    (folder / "huge.png").write_bytes(png(2, 2, lambda x, y: (0, 0, 0), (60000, 60000)))
    checks.rejects("a PNG that says it is huge", 1, "huge.png", program, "huge.png", cwd=folder)
    checks.rejects("a name that acts on a terminal", 1, r"a\u001b[2J\u202eb", program, "a\x1b[2J\u202eb.png", cwd=folder)
    checks.rejects("a folder of another model", 1, "model_type", program, "--model", TESTS / "data/pretrained/bert", "red.png", cwd=folder)
    checks.rejects("a folder that is not there", 1, "nowhere", program, "--model", "nowhere", "red.png", cwd=folder)
    checks.rejects("no class", 2, "at least 1", program, "--top", "0", "red.png", cwd=folder)
checks.finish()
