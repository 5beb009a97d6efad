# logits as a user runs it, compared with transformers: logits_test.py PROGRAM.
import json
import math
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
from browser import Checks

program = pathlib.Path(sys.argv[1]).resolve()
data = TESTS / "data/pretrained"
checks = Checks("logits")


class Golden:
    """The tensors of a folder's golden.safetensors; golden[name] lists the numbers of one."""

    def __init__(self, folder):
        self._bytes = (data / folder / "golden.safetensors").read_bytes()
        self._begin = 8 + struct.unpack("<Q", self._bytes[:8])[0]
        self._header = json.loads(self._bytes[8:self._begin])

    def shape(self, name):
        return self._header[name]["shape"]

    def __getitem__(self, name):
        begin, end = self._header[name]["data_offsets"]
        kind = {"F32": "f", "I64": "q"}[self._header[name]["dtype"]]
        count = math.prod(self.shape(name))
        part = self._bytes[self._begin + begin:self._begin + end]
        return list(struct.unpack(f"<{count}{kind}", part))

    def row(self, name, *place):
        """The last axis at this index of the other axes; -1 is the last row."""
        at = 0
        for index, extent in zip(place, self.shape(name)):
            at = at * extent + index % extent
        width = self.shape(name)[-1]
        return self[name][at * width:(at + 1) * width]


def write_npy(path, shape, values):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    begin = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode()
    path.write_bytes(begin + struct.pack(f"<{len(values)}f", *values))


def run(*arguments):
    ended = subprocess.run([program, *arguments], capture_output=True, timeout=60, check=False)
    checks.holds(f"{arguments}: ends well", ended.returncode == 0 and not ended.stderr,
                 f"status {ended.returncode}, {ended.stderr}")
    return ended.stdout.decode()


def found(*arguments):
    text = run(*arguments, "--json")
    checks.same("one line of JSON", text.count("\n"), 1)
    return json.loads(text)


def near(title, numbers, expected):
    """Within 1e-5 of the largest number of that position."""
    largest = max(map(abs, expected))
    difference = max(abs(a - b) for a, b in zip(numbers, expected))
    checks.same(f"{title}: size", len(numbers), len(expected))
    checks.holds(title, difference <= 1e-5 * largest, f"differs by {difference} of {largest}")


def rejects(title, status, word, *arguments):
    checks.rejects(title, status, word, program, *arguments)


def listed(ids):
    return ",".join(map(str, ids))


for name in ("llama", "qwen3", "gpt2"):
    golden = Golden(name)
    for key in "ab":
        ids = golden["ids_" + key]
        result = found(data / name, "--ids", listed(ids), "--tokens", "20")
        checks.same(f"{name}: keys", list(result), ["model_type", "ids", "logits", "generated"])
        checks.same(f"{name}: model_type", result["model_type"], name)
        checks.same(f"{name}: ids", result["ids"], ids)
        near(f"{name}: logits", result["logits"], golden.row("logits_" + key, -1))
        greedy = golden["greedy_" + key]
        checks.same(f"{name}: the tokens of transformers", result["generated"], greedy)

for name in ("bert", "xlm_roberta", "modernbert", "embedding_gemma"):
    golden = Golden(name)
    for key in "ab":
        result = found(data / name, "--ids", listed(golden["ids_" + key]))
        checks.same(f"{name}: keys", list(result), ["model_type", "ids", "hidden", "first"])
        near(f"{name}: hidden", result["hidden"], golden.row("hidden_" + key, -1))
        near(f"{name}: first", result["first"], golden.row("hidden_" + key, 0))

for name in ("bart", "t5", "marian", "m2m_100", "mbart", "pegasus"):
    golden = Golden(name)
    for key in "ab":
        ids, target = listed(golden["ids_" + key]), golden["target_" + key]
        result = found(data / name, "--ids", ids, "--decoder-ids", listed(target))
        checks.same(f"{name}: keys", list(result), ["model_type", "ids", "decoder_ids", "logits"])
        checks.same(f"{name}: decoder_ids", result["decoder_ids"], target)
        near(f"{name}: logits", result["logits"], golden.row("logits_" + key, -1))
        greedy = golden["greedy_" + key]
        result = found(data / name, "--ids", ids, "--tokens", "20")
        starts = {"bart": [2], "marian": [1], "m2m_100": [2, 5], "mbart": [2, 7]}
        logits, first = result["logits"], starts.get(name, [0])
        checks.same(f"{name}: begins with the folder's tokens", result["decoder_ids"], first)
        rest = greedy[len(first) - 1:]
        likeliest = logits.index(max(logits))
        checks.same(f"{name}: the first token has the largest logit", likeliest, rest[0])
        checks.same(f"{name}: the tokens of transformers", result["generated"][:len(rest)], rest)
        begun = listed(first + rest[:5])
        result = found(data / name, "--ids", ids, "--decoder-ids", begun, "--tokens", "14")
        checks.same(f"{name}: continues decoder_ids", result["generated"][:len(rest) - 5], rest[5:][:14])

with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    golden = Golden("vit")
    shape, images = golden.shape("images"), golden["images"]
    size = math.prod(shape[1:])
    for image in range(shape[0]):
        for form in (shape[1:], [1, *shape[1:]]):
            path = folder / "image.npy"
            write_npy(path, form, images[image * size:(image + 1) * size])
            result = found(data / "vit", "--pixels", path)
            checks.same("vit: keys", list(result), ["model_type", "hidden", "first", "logits"])
            near("vit: hidden", result["hidden"], golden.row("hidden", image, -1))
            near("vit: first", result["first"], golden.row("hidden", image, 0))
            near("vit: logits", result["logits"], golden.row("logits", image))

    # A folder whose file lacks a classifier.
    bare = folder / "bare"
    shutil.copytree(data / "vit", bare)
    file = (bare / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", file[:8])[0]
    header = file[8:begin].replace(b'"classifier.', b'"vit.pooler.')
    (bare / "model.safetensors").write_bytes(file[:8] + header + file[begin:])
    result = found(bare, "--pixels", path)
    checks.same("vit without a classifier: keys", list(result), ["model_type", "hidden", "first"])

    golden = Golden("dinov2")
    write_npy(folder / "wide.npy", golden.shape("images_b")[1:], golden["images_b"])
    result = found(data / "dinov2", "--pixels", folder / "wide.npy")
    checks.same("dinov2: keys", list(result), ["model_type", "hidden", "first"])
    near("dinov2: hidden", result["hidden"], golden.row("hidden_b", 0, -1))

    for name in ("clip", "siglip"):
        golden = Golden(name)
        for image in range(2):
            count = math.prod(golden.shape("images")[1:])
            pixels = golden["images"][image * count:(image + 1) * count]
            write_npy(folder / "clip.npy", golden.shape("images")[1:], pixels)
            for text in range(3):
                result = found(data / name, "--pixels", folder / "clip.npy", "--ids", listed(golden.row("ids", text)))
                checks.same(f"{name}: keys", list(result), ["model_type", "ids", "image", "text", "logits"])
                near(f"{name}: image", result["image"], golden.row("image_embeds", image))
                near(f"{name}: text", result["text"], golden.row("text_embeds", text))
                expected = golden.row("logits", image)[text]
                checks.holds(f"{name}: similarity", abs(result["logits"][0] - expected) < 1e-5,
                             f"{result['logits']}, {expected}")
    rejects("no picture to compare", 2, "--pixels is needed", data / "clip", "--ids", "5")

    golden = Golden("whisper")
    whisper = data / "whisper"
    for key in "ab":
        shape_of = golden.shape("features_" + key)
        for form in (shape_of, shape_of[1:]):
            write_npy(folder / "mel.npy", form, golden["features_" + key])
            target = listed(golden["target_" + key])
            result = found(whisper, "--features", folder / "mel.npy", "--decoder-ids", target)
            checks.same("whisper: keys", list(result), ["model_type", "decoder_ids", "logits"])
            near("whisper: logits", result["logits"], golden.row("logits_" + key, -1))
        prompt = listed(golden["prompt"])
        result = found(whisper, "--features", folder / "mel.npy", "--decoder-ids", prompt, "--tokens", "20")
        checks.same("whisper: the tokens of transformers", result["generated"], golden["greedy_" + key])
    checks.same("whisper: begins with the config's token", found(whisper, "--features", folder / "mel.npy")["decoder_ids"],
                [257])
    rejects("no spectrogram", 2, "--features is needed", whisper)
    rejects("--features for pictures", 2, "--features is for", data / "vit", "--features", folder / "mel.npy")
    rejects("--ids for speech", 2, "--ids is for", whisper, "--ids", "1")
    rejects("a picture for speech", 1, "spectrogram", whisper, "--features", folder / "image.npy")

    vit = data / "vit"
    write_npy(folder / "two.npy", shape, images)
    rejects("two pictures", 1, "one picture", vit, "--pixels", folder / "two.npy")
    write_npy(folder / "flat.npy", [size], images[:size])
    rejects("no picture", 1, "one picture", vit, "--pixels", folder / "flat.npy")
    write_npy(folder / "turned.npy", [3, 12, 8], images[:size])
    rejects("a picture of another size", 1, "images", vit, "--pixels", folder / "turned.npy")
    (folder / "text.npy").write_text("no picture")
    rejects("no .npy file", 1, "text.npy", vit, "--pixels", folder / "text.npy")
    rejects("a file that is not there", 1, "none.npy", vit, "--pixels", folder / "none.npy")
    rejects("--ids and --pixels", 2, "together", vit, "--pixels", path, "--ids", "1")
    rejects("--pixels for a model of text", 2, "--pixels is for", data / "llama", "--pixels", path)

    other = folder / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "a\\u001b[2J"}')
    rejects("a type that the library has not", 1, r"a\x1b[2J", other)
    (other / "config.json").write_text("{}")
    rejects("no type", 1, "model_type", other)
    (other / "config.json").write_text('{"model_type": "t5"}')
    rejects("no first token of a translation", 1, "decoder_start_token_id", other)

text = run(data / "qwen3", "--ids", "5,7,9", "--tokens", "5")
result = found(data / "qwen3", "--tokens", "5", "--ids", "5,7,9")
largest = max(result["logits"])
lines = [line.split(None, 1) for line in text.splitlines()]
checks.same("a table: its rows", [line[0] for line in lines], list(result))
checks.same("a table: the ids", lines[1][1], "5 7 9")
checks.same("a table: the tokens", lines[3][1], " ".join(map(str, result["generated"])))
row = f"264 numbers, the largest {largest} at {result['logits'].index(largest)}:"
checks.holds("a table: the largest logit", lines[2][1].startswith(row), text)
checks.same("1,2,3 if nothing is given", found(data / "bert")["ids"], [1, 2, 3])
checks.same("the same as if given", run(data / "llama"), run("--ids", "1,2,3", data / "llama"))

rejects("no folder", 2, "a folder is needed")
rejects("a folder that is not there", 1, "nowhere", "nowhere")
rejects("a token that the model has not", 1, "ids", data / "llama", "--ids", "96")
rejects("one that the encoder has not", 1, "ids", data / "bert", "--ids", "96")
rejects("one that the translation has not", 1, "ids", data / "bart", "--decoder-ids", "2,96")
rejects("a token below 0", 2, "--ids", data / "llama", "--ids=-1")
rejects("a token that is no number", 2, "--decoder-ids", data / "t5", "--decoder-ids", "1,x")
rejects("a token past every number", 2, "--ids", data / "llama", "--ids", "99999999999999999999")
rejects("more positions than the encoder has", 1, "20", data / "bert", "--ids", listed([1] * 21))
rejects("more tokens than positions", 1, "room for", data / "llama", "--tokens", "1000")
rejects("more tokens than positions of a translation", 1, "room for", data / "bart", "--tokens", "1000")
rejects("too many tokens", 2, "at most 1048576", data / "llama", "--tokens", "9223372036854775807")
rejects("no tokens", 2, "at least 1", data / "llama", "--tokens", "0")
rejects("--tokens for an encoder", 2, "--tokens is for", data / "bert", "--tokens", "1")
rejects("--decoder-ids for a decoder", 2, "decoder-ids is", data / "gpt2", "--decoder-ids", "1")
rejects("--ids for pictures", 2, "--ids is for", data / "vit", "--ids", "1")
rejects("no picture for a model of pictures", 2, "--pixels is needed", data / "vit")
rejects("a name that acts on a terminal", 1, r"a\x1b[2J\u202eb", "a\x1b[2J\u202eb")
checks.finish()
