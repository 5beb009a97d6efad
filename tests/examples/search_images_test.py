# search_images as a user runs it: search_images_test.py PROGRAM LOGITS. The program `logits`, which another test compares
# with transformers, gives the vectors of pixels and ids that are made here.
import json
import math
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
from browser import Checks

program, logits = (pathlib.Path(x).resolve() for x in sys.argv[1:3])
data = TESTS / "data/pretrained"
checks = Checks("search_images")
draw = random.Random(5)
MEAN, DEVIATION = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]


def write_png(path, rows):
    """Rows of (red, green, blue)."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    body = b"".join(b"\0" + b"".join(map(bytes, row)) for row in rows)
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b""))


def noise(width, height):
    return [[tuple(draw.randrange(256) for _ in range(3)) for _ in range(width)] for _ in range(height)]


def kernel(x, cubic):
    x = abs(x)
    if not cubic:
        return max(1 - x, 0)
    return 1.5 * x**3 - 2.5 * x**2 + 1 if x < 1 else -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0


def resize(line, size, cubic):
    """A list of numbers resampled to `size` numbers, as Pillow does."""
    scale = len(line) / size
    width = max(scale, 1)
    result = []
    for i in range(size):
        middle = (i + 0.5) * scale
        weights = [(kernel((j + 0.5 - middle) / width, cubic), x) for j, x in enumerate(line)]
        result.append(sum(w * x for w, x in weights) / sum(w for w, _ in weights))
    return result


def prepared(rows, size, edge=None, cubic=False):
    """Channels of rows, normalised; `edge`: the shorter side, of which the centre is cut out."""
    height, width = len(rows), len(rows[0])
    to = (edge * height // min(height, width), edge * width // min(height, width)) if edge else (size, size)
    top, left = (to[0] - size) // 2, (to[1] - size) // 2
    channels = []
    for c in range(3):
        wide = [resize([pixel[c] for pixel in row], to[1], cubic) for row in rows]
        columns = [resize([row[x] for row in wide], to[0], cubic) for x in range(to[1])]
        channels.append([[(columns[left + x][top + y] / 255 - MEAN[c]) / DEVIATION[c] for x in range(size)] for y in range(size)])
    return channels


def write_npy(path, channels):
    values = [x for rows in channels for row in rows for x in row]
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (3, {len(channels[0])}, {len(channels[0][0])}), }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(values)}f", *values))


def with_words(source, folder, tokenizer, count, **config):
    """A model's folder with a tokenizer, and random embeddings of its tokens."""
    shutil.copytree(data / source, folder)
    shutil.copy(data / "tokenizers" / tokenizer / "tokenizer.json", folder)
    settings = json.loads((folder / "config.json").read_text())
    settings["text_config"].update(config, vocab_size=count)
    (folder / "config.json").write_text(json.dumps(settings))
    file = (folder / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", file[:8])[0]
    header = json.loads(file[8:begin])
    words = header["text_model.embeddings.token_embedding.weight"]
    body = file[begin:] + struct.pack(f"<{count * words['shape'][1]}f", *(draw.gauss(0, 0.6) for _ in range(count * words["shape"][1])))
    # The old table stays as a tensor that every file may have.
    header["text_model.embeddings.position_ids"] = dict(words)
    words["shape"] = [count, words["shape"][1]]
    words["data_offsets"] = [len(file) - begin, len(body)]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    return folder


def run(*arguments):
    ended = subprocess.run(arguments, capture_output=True, timeout=60, check=False)
    checks.holds(f"{arguments}: ends well", ended.returncode == 0 and not ended.stderr, f"{ended.returncode}, {ended.stderr}")
    return ended.stdout.decode()


def vectors(folder, channels, ids):
    write_npy(folder / "pixels.npy", channels)
    return json.loads(run(logits, folder, "--pixels", folder / "pixels.npy", "--ids", ",".join(map(str, ids)), "--json"))


def finds(title, folder, query, ids, images, size, **preparation):
    """The order and the numbers of all images."""
    expected = []
    for path, rows in images:
        one = vectors(folder, prepared(rows, size, **preparation), ids)
        expected.append((sum(a * b for a, b in zip(one["image"], one["text"])), one["logits"][0], str(path)))
    expected.sort(reverse=True)
    paths = [path for path, _ in images]
    found = json.loads(run(program, folder, *paths, "--query", query, "--json", "--top", "9"))
    checks.same(f"{title}: the query", found["query"], query)
    checks.same(f"{title}: the order", [x["file"] for x in found["images"]], [path for _, _, path in expected])
    for one, (cosine, logit, _) in zip(found["images"], expected):
        checks.holds(f"{title}: similarity", abs(one["similarity"] - cosine) < 1e-5, f"{one}, {cosine}")
        if "probability" in one:
            checks.holds(f"{title}: probability", abs(one["probability"] - 1 / (1 + math.exp(-logit))) < 1e-5, f"{one}, {logit}")
    return found["images"]


with tempfile.TemporaryDirectory() as name:
    top = pathlib.Path(name)
    images = []
    for n, (width, height) in enumerate([(12, 12), (30, 17), (7, 9), (5, 40)]):
        rows = noise(width, height)
        write_png(top / f"{n}.png", rows)
        images.append((top / f"{n}.png", rows))
    paths = [path for path, _ in images]

    # The ids are those of the package tokenizers (tests/data/pretrained/tokenizers/cases.json).
    clip = with_words("clip", top / "clip", "clip", 520, eos_token_id=518)
    preprocessor = {"image_mean": MEAN, "image_std": DEVIATION, "resample": 3, "size": {"shortest_edge": 13}, "do_center_crop": True}
    (clip / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    hello = [517, 513, 86, 78, 81, 75, 322, 518]
    found = finds("clip", clip, "hello world", hello, images, 12, edge=13, cubic=True)
    checks.holds("clip: no probability", all("probability" not in x for x in found))
    finds("clip: in capitals", clip, " Hello\tWORLD", hello, images, 12, edge=13, cubic=True)
    (clip / "preprocessor_config.json").write_text(json.dumps(preprocessor | {"size": 12}))
    finds("clip: an older file", clip, "hello world", hello, images, 12, edge=12, cubic=True)
    text = run(program, clip, *paths, "--query", "hello world", "--top", "2")
    checks.holds("the best two", len(text.splitlines()) == 2 and all(x.split()[1].endswith(".png") for x in text.splitlines()), text)
    # A text of more tokens than positions: the end stays.
    finds("clip: a long text", clip, "hello " * 50, [517] + [513] * 18 + [518], images[:2], 12, edge=12, cubic=True)

    siglip = with_words("siglip", top / "siglip", "siglip", 19)
    (siglip / "preprocessor_config.json").write_text(json.dumps(
        {"image_mean": MEAN, "image_std": DEVIATION, "resample": 2, "size": {"height": 12, "width": 12}}))
    (siglip / "tokenizer_config.json").write_text(json.dumps({"pad_token": "</s>"}))
    two = [2, 5, 6, 0]
    found = finds("siglip", siglip, "Hello, two spaces!", two + [0] * 6, images, 12)
    checks.holds("siglip: probabilities", all("probability" in x for x in found))
    text = run(program, siglip, *paths, "--query", "hello")
    checks.same("siglip: probabilities in the table", text.count(" %  "), 4)
    (siglip / "tokenizer_config.json").write_text(json.dumps({"pad_token": {"content": "<unk>"}, "padding_side": "left"}))
    finds("siglip: padding on the left", siglip, "hello two spaces", [1] * 6 + two, images, 12)

    def rejects(title, status, word, *arguments):
        checks.rejects(title, status, word, program, *arguments)

    rejects("no image", 2, "a folder and images are needed", clip, "--query", "a")
    rejects("no query", 2, "--query is needed", clip, paths[0])
    rejects("an image that is not there", 1, "none.png", clip, "none.png", "--query", "a")
    rejects("a folder of another model", 1, "model_type", data / "bert", paths[0], "--query", "a")
    (siglip / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    rejects("a padding that is no token", 1, "pad_token", siglip, paths[0], "--query", "a")
    (clip / "preprocessor_config.json").write_text(json.dumps(preprocessor | {"resample": 1}))
    rejects("another interpolation", 1, "resample", clip, paths[0], "--query", "a")
    (clip / "preprocessor_config.json").write_text(json.dumps(preprocessor | {"size": {"shortest_edge": 11}}))
    rejects("an edge below the model's size", 1, "shortest_edge", clip, paths[0], "--query", "a")
    (clip / "preprocessor_config.json").unlink()
    rejects("no preprocessor", 1, "no preprocessor_config.json", clip, paths[0], "--query", "a")
checks.finish()
