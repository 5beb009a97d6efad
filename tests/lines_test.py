"""Fails on a line of more than 100 columns in include/, bench/ and the pages, on a file of more than
250 lines in attention/, and on a folder of sources with more than 20 of them: lines_test.py

Tables, links and outputs of programs, which are in fences without a language, may be longer.
"""
import pathlib
import sys

COLUMNS, LINES, FILES = 100, 250, 20
SOURCES = (".hpp", ".inc", ".cpp", ".cmake", ".txt", ".sh", ".py", ".js", ".html")
ROOT = pathlib.Path(__file__).resolve().parents[1]


def long_lines(page):
    """Yields (number, line) of each long line; `page` is a path."""
    is_page, fence = page.suffix == ".md", None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if is_page and line.lstrip().startswith("```"):
            fence = None if fence is not None else line.strip().strip("`")
        is_free = is_page and (fence == "" or line.startswith("|") or "](" in line)
        if len(line) > COLUMNS and not is_free:
            yield number, line


pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
sources = [path for folder in ("include", "bench") for path in (ROOT / folder).rglob("*")
           if path.suffix in SOURCES]
if len(pages) < 10 or len(sources) < 200:
    sys.exit(f"only {len(pages)} pages and {len(sources)} sources below {ROOT}")
found = [f"{path.relative_to(ROOT)}:{number}: {len(line)} columns: {line}"
         for path in sorted(pages + sources) for number, line in long_lines(path)]
print(*found, sep="\n")
for path in sorted((ROOT / "include/attn/attention").rglob("*.hpp")):
    count = len(path.read_text(encoding="utf-8").splitlines())
    if count > LINES:
        found.append(path)
        print(f"{path.relative_to(ROOT)}: {count} lines, at most {LINES}")
folders = [ROOT / name for name in ("include/attn", "tests", "bench", "examples", "cmake")]
for folder in [path for top in folders for path in (top, *top.rglob("*")) if path.is_dir()]:
    count = sum(path.suffix in SOURCES for path in folder.iterdir())
    if count > FILES and "data" not in folder.relative_to(ROOT).parts:
        found.append(folder)
        print(f"{folder.relative_to(ROOT)}: {count} sources, at most {FILES}")
sys.exit(1 if found else 0)
