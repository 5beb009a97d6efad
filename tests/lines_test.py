"""Fails on a line of more than 100 columns in include/, bench/ and the pages, and on a file of more
than 250 lines in attention/: lines_test.py

Tables, links and outputs of programs, which are in fences without a language, may be longer.
"""
import pathlib
import sys

COLUMNS, LINES = 100, 250
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
           if path.suffix in (".hpp", ".inc", ".cpp", ".cmake", ".txt", ".sh", ".py", ".js", ".html")]
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
sys.exit(1 if found else 0)
