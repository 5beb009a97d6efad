# Common behaviour of every example's command line: command_line_test.py PROGRAM.
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from browser import Checks

program = pathlib.Path(sys.argv[1]).resolve()
checks = Checks(f"command line of {program.name}")
TAKES_NOTHING = {"quickstart", "tutorials", "generate"}  # run without arguments
WRITES = {"train_gpt": "--out", "train_gpt_mpi": "--out", "finetune_chat": "--save"}  # write after minutes
ODD = "a\x1b[2J\u202eb\u0085"  # clears the screen, reverses the line


def run(*arguments, **streams):
    return subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60,
                          check=False, **streams)


def fails_to_write(title, output, *arguments):
    found = run(*arguments, stdout=output)
    error = found.stderr.decode()
    checks.holds(title, found.returncode == 1 and error.count("\n") == 1 and "cannot write to standard output" in error,
                 f"status {found.returncode}, {error!r}")


helped = run("--help", stdout=subprocess.PIPE)
checks.same("--help ends well", helped.returncode, 0)
checks.same("--help writes to standard output alone", helped.stderr, b"")
text = helped.stdout.decode()
checks.holds("--help says how to call it", "Usage" in text and program.name in text and "--help" in text, text)
checks.holds("no line of it is wider than 120 columns", max(map(len, text.split("\n"))) <= 120, text)
checks.rejects("an unknown option", 2, "--nonsense", program, "--nonsense")
checks.rejects("an unknown option of one letter", 2, "-x", program, "-x")
checks.rejects("control characters are shown, not done", 2, r"a\u001b[2J\u202eb\u0085", program, "--" + ODD)
if program.name in TAKES_NOTHING:
    checks.rejects("an argument too many", 2, "surplus", program, "surplus")

# Numbers out of range, and words that are not numbers: reported in a readable line before the program starts its work.
for name, kind in re.findall(r"(--[a-z-]+) (NUMBER|FLOAT|INT|UINT)", text):
    checks.holds(f"{name} takes whole numbers by add_number()", kind in ("NUMBER", "FLOAT"), kind)
    for number in ["99999999999999999999", "-1", "1.5", "x", ""] if kind == "NUMBER" else ["nan", "inf", "-1", "x"]:
        checks.rejects(f"{name} {number!r}", 2, name, program, f"{name}={number}")
        error = run(f"{name}={number}", stdout=subprocess.PIPE).stderr
        checks.holds(f"{name} {number!r} is told in short", len(error) < 200, error)
if program.name in WRITES:
    checks.rejects("a folder that is missing, before the work", 1, "No such file", program, WRITES[program.name],
                   "/nonexistent/file")
    checks.rejects("a folder in its place, before the work", 1, "a folder", program, WRITES[program.name], "/tmp")
    if os.access("/dev/full", os.W_OK):
        checks.rejects("a full disk, before the work", 1, "No space", program, WRITES[program.name], "/dev/full")

if program.name == "quickstart":
    readme = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    checks.holds("it prints what the README shows", f"```\n{run(stdout=subprocess.PIPE).stdout.decode()}```\n" in readme)

every = [["--help"]] + ([[]] if program.name in TAKES_NOTHING else [])
for arguments in every:
    name = " ".join([program.name, *arguments])
    if os.access("/dev/full", os.W_OK):
        with open("/dev/full", "wb") as full:
            fails_to_write(f"{name} on a full disk", full, *arguments)
    reader, writer = os.pipe()
    os.close(reader)
    fails_to_write(f"{name} into a closed pipe", writer, *arguments)
    os.close(writer)
checks.finish()
