"""Writes attn_single.hpp, attn/attn.hpp with all that it includes in one file, and its checksum.

usage: single_header.py INCLUDE_DIR OUTPUT VERSION [FORWARDS]

Headers come in the order of their first inclusion. The table of targets and kernel text, which are included once
per use and target, are repeated, from the second time on without comments: a compiler would read a file
that includes itself instead anew for each of them.

FORWARDS, if given, becomes a folder with a header for each name, which includes the one file: programs and tests
that include attn's headers by name can be compiled with it.
"""
import hashlib
import pathlib
import re
import sys

INCLUDE = re.compile(r'\s*#include "(attn/[^"]+)"')
INCLUDE_MACRO = re.compile(r"\s*#include ([A-Z]\w*)")
DEFINE = re.compile(r'\s*#define (ATTN_KERNEL_TEXT\w*|ATTN_TARGET_[A-Z0-9]+)\b *(?:"(attn/[^"]+)")?')
UNDEF = re.compile(r"\s*#undef (\w+)")
COMMENT = re.compile(r"\s*//")

INTRODUCTION = """\
// attn {version} in one file: tensors, attention, Transformer layers and models on CPUs.
// SPDX-License-Identifier: Apache-2.0
//
// Conversions from and to Eigen are there if Eigen is found. The macros ATTN_COMPILED, ATTN_IMPLEMENTATION,
// ATTN_PIN_ISA mean what they mean for the tree of headers, which alone has training, files and text.
#pragma once
"""


class SingleHeader:
    def __init__(self, include_dir):
        self.include_dir = pathlib.Path(include_dir)
        self.headers = []  # each once, in the order of inclusion
        self.repeated = set()  # texts that have been written once
        self.macros = {}  # those that name files or say which targets have a text, as the preprocessor has them

    def lines(self, name):
        """The lines of a file, with attn's includes replaced by the lines of the included files."""
        path = self.include_dir / name
        if not path.is_file():
            sys.exit(f"single_header.py: {path}: there is no such header")
        again = name in self.repeated
        self.repeated.add(name)
        for line in path.read_text(encoding="utf-8").splitlines():
            if line == "#pragma once" or "SPDX-License-Identifier" in line:
                continue
            if again and (not line or COMMENT.match(line)):
                continue
            if included := INCLUDE.match(line):
                yield from self.included(included[1])
                continue
            if named := INCLUDE_MACRO.match(line):
                if text := self.text_of(named[1]):
                    yield from self.lines(text)
                continue
            if (defined := DEFINE.match(line)) and not name.endswith("/target_row.inc"):  # fills in defaults of rows
                self.macros[defined[1]] = defined[2]
                if defined[2]:  # the name of a file that the program does not have
                    line = line.replace(f'"{defined[2]}"', "1").rstrip()
            elif undefined := UNDEF.match(line):
                self.macros.pop(undefined[1], None)
            yield line

    def text_of(self, macro):
        """The file that `#include macro` includes here; None if the row of targets.inc has no such text."""
        extends = "ATTN_TARGET_BASE" in self.macros
        if macro == "ATTN_KERNEL_TEXT" and extends and "ATTN_KERNEL_TEXT_EXTENDED" not in self.macros:
            return None
        return self.macros.get(macro)

    def included(self, name):
        if name.endswith(".inc") or name.endswith(".inc.hpp") or name.endswith("/foreach_isa.hpp"):
            yield from self.lines(name)
        elif name not in self.headers:
            self.headers.append(name)
            yield ""
            yield f"// {'-' * 20} {name}"
            has_eigen = name == "attn/core/eigen.hpp"
            if has_eigen:
                yield "#if __has_include(<Eigen/Core>)"
            yield from self.lines(name)
            if has_eigen:
                yield "#endif"

    def text(self, version):
        return "\n".join([INTRODUCTION.format(version=version), *self.included("attn/attn.hpp")]) + "\n"


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    single = SingleHeader(sys.argv[1])
    output = pathlib.Path(sys.argv[2])
    text = single.text(sys.argv[3]).encode()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(text)
    checksum = hashlib.sha256(text).hexdigest()
    output.with_name(output.name + ".sha256").write_text(f"{checksum}  {output.name}\n")
    for name in single.headers if len(sys.argv) == 5 else []:
        forward = pathlib.Path(sys.argv[4]) / name
        forward.parent.mkdir(parents=True, exist_ok=True)
        forward.write_text('#include "attn_single.hpp"\n')
    print(f"{output}: {len(single.headers)} headers, {len(text) / 1e6:.2f} MB")


main()
