"""Joins the snippets of a Markdown page to one program, and checks that it prints what the page shows.

  snippets.py extract PAGE.md PROGRAM.cpp
  snippets.py check PAGE.md PROGRAM

The ```cpp blocks of a page, in order, form the body of one main(), so that each may use declarations of earlier ones; a
block with #include lines stands outside, and may be the whole program. A plain block directly after one is its output.
"""
import re
import subprocess
import sys

BLOCK = re.compile(r"^```([\w+]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
END = "\f\n"  # printed after each snippet


class Snippet:
    def __init__(self, line, code):
        self.line, self.code, self.output = line, code, ""
        self.is_file_scope = "#include" in code


def snippets_of(text):
    snippets, end_of_last = [], None
    for block in BLOCK.finditer(text):
        language, body = block.groups()
        if language == "cpp":
            snippets.append(Snippet(text.count("\n", 0, block.start(2)) + 1, body))
            end_of_last = block.end()
        elif language == "" and end_of_last is not None:
            if not text[end_of_last:block.start()].strip():
                snippets[-1].output = body
            end_of_last = None
    return snippets


def program_of(page, snippets):
    lines = []

    def add(snippet):
        lines.extend([f'#line {snippet.line} "{page}"', snippet.code])

    for snippet in snippets:
        if snippet.is_file_scope:
            add(snippet)
    if not any("int main(" in snippet.code for snippet in snippets):
        lines.insert(0, "#include <cstdio>\n#include <thread>\n\n#include <attn/attn.hpp>\n#include <attn/io.hpp>\n")
        lines.append("int main() {")
        for snippet in snippets:
            if not snippet.is_file_scope:
                add(snippet)
                lines.append('std::printf("\\f\\n");')
        lines.append("}\n")
    return "\n".join(lines)


def check(page, snippets, program):
    printed = subprocess.run([program], stdout=subprocess.PIPE, check=True).stdout.decode()
    inside = [s for s in snippets if not s.is_file_scope]
    if inside:
        pairs = list(zip(inside, printed.split(END)[:-1], strict=True))
    else:
        pairs = [(s, printed) for s in snippets if "int main(" in s.code]
    bad = 0
    for snippet, found in pairs:
        tidy = lambda text: [line.rstrip() for line in text.strip("\n").split("\n")]
        if tidy(found) != tidy(snippet.output):
            bad += 1
            print(f"{page}:{snippet.line}: the snippet prints\n{found}and the page shows\n{snippet.output}")
    print(f"{page}: {len(snippets)} snippets, {bad} of them print something else than the page shows")
    return bad == 0


def main():
    mode, page, other = sys.argv[1:]
    with open(page, encoding="utf-8") as file:
        snippets = snippets_of(file.read())
    if mode == "check":
        sys.exit(0 if check(page, snippets, other) else 1)
    with open(other, "w", encoding="utf-8") as file:
        file.write(program_of(page, snippets))


main()
