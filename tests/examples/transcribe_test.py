# transcribe as a user runs it: transcribe_test.py PROGRAM.
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
from browser import Checks

program = pathlib.Path(sys.argv[1]).resolve()
whisper = TESTS / "data/pretrained/whisper"
checks = Checks("transcribe")


def wav(path, samples, channels=1, rate=16000, bits=16, kind=1, size=None, extra=b""):
    body = struct.pack(f"<{len(samples)}{'hf'[kind == 3]}", *samples)
    head = struct.pack("<HHIIHH", kind, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits)
    chunks = b"fmt " + struct.pack("<I", len(head)) + head + extra
    chunks += b"data" + struct.pack("<I", len(body) if size is None else size) + body
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
    return path


def run(*arguments):
    ended = subprocess.run([program, *arguments], capture_output=True, timeout=60, check=False)
    checks.holds(f"{arguments}: ends well", ended.returncode == 0 and not ended.stderr,
                 f"status {ended.returncode}, {ended.stderr}")
    return ended.stdout.decode()


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    noise = [random.Random(1).randint(-9000, 9000) for _ in range(8000)]
    text = run(whisper, wav(folder / "a.wav", noise))
    lines = text.splitlines()
    checks.holds("segments with times", lines and all(re.match(r"\[00:0\d\.\d\d - 00:0\d\.\d\d\] ", x) for x in lines), text)
    both = [x for sample in noise for x in (sample, sample)]
    checks.same("two channels", run(whisper, wav(folder / "b.wav", both, channels=2)), text)
    listed = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    checks.same("a stream with other chunks",
                run(whisper, wav(folder / "c.wav", noise, size=0xffffffff, extra=listed)), text)
    checks.holds("another task", run(whisper, folder / "a.wav", "--translate") != text, text)
    checks.same("no sound", run(whisper, wav(folder / "d.wav", [])), "")

    def rejects(title, status, word, *arguments):
        checks.rejects(title, status, word, program, *arguments)

    rejects("no file", 2, "a folder and a sound file are needed", whisper)
    rejects("another rate", 1, "ffmpeg", whisper, wav(folder / "e.wav", noise, rate=44100))
    checks.same("floats", run(whisper, wav(folder / "f.wav", [x / 32768 for x in noise], bits=32, kind=3)), text)
    # The rest of the line is libsndfile's.
    (folder / "g.wav").write_bytes(b"RIFF1234WAVEfmt \x10\0\0\0")
    rejects("a cut file", 1, "g.wav: ", whisper, folder / "g.wav")
    (folder / "h.wav").write_text("text")
    rejects("no sound file", 1, "h.wav: ", whisper, folder / "h.wav")
    rejects("a file that is not there", 1, "none.wav", whisper, folder / "none.wav")
    (folder / "i.wav").mkdir()
    rejects("a folder", 1, "i.wav: ", whisper, folder / "i.wav")
    rejects("a language that it has not", 1, "<|xx|>", whisper, folder / "a.wav", "--language", "xx")
    rejects("another model", 1, "whisper", TESTS / "data/pretrained/bart", folder / "a.wav")
    english = folder / "english"
    shutil.copytree(whisper, english)
    (english / "generation_config.json").write_text('{"is_multilingual": false}')
    checks.holds("a model of English alone", run(english, folder / "a.wav") != text, text)
    rejects("a task that it has not", 2, "English only", english, folder / "a.wav", "--translate")
checks.finish()
