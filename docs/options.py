"""docs/options.md lists every struct of options, in the order of declaration: options.py [--check]

Makes the tables below the page's marker from the headers. --check writes nothing, and fails if the page is stale.
"""
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/options.md"
MARKER = "<!-- From here on by docs/options.py. -->\n"
ROOMS = {"core": "Tensors", "exec": "Execution", "kernels": "Kernels", "attention": "Attention", "layers": "Layers", "models": "Models",
         "generation": "Generation", "io": "Files", "text": "Text", "train": "Training"}
NAME = re.compile(r"\w*(?:Options|Call|Scaling|Dropout|Execution|Epilogue)$")
STRUCT = re.compile(r"((?:^ *///[^\n]*\n)*)^(?:template <[^\n]*>\n)?^struct (\w+) \{\n(.*?)^\};", re.DOTALL | re.MULTILINE)
# A comment in front of a field; what may be code; a comment behind one.
TOKEN = re.compile(r"[ \t]*///<[ ]?([^\n]*)|[ \t]*///(?!<)[ ]?([^\n]*)|[ \t]*//(?!/)[^\n]*|([{}();=]|[^/{}();=]+|/)")


def unindented(lines):
    return " ".join(" ".join(lines).split())


class Field:
    def __init__(self, code, comment):
        code = " ".join(code.split())
        declaration, _, default = code.partition(" = ")
        braces = re.match(r"(.*\w)\{(.*)\}$", declaration)
        if braces:
            declaration, default = braces[1], braces[2]
        self.type, self.name = re.match(r"(.*\W)(\w+)$", declaration).groups()
        self.type, self.default, self.comment = self.type.strip(), default, comment

    def shown_default(self):
        if self.default.startswith("["):
            return "a lambda: see its meaning"
        if self.default != "{}":
            return f"`{self.default}`" if self.default else "none: it must be given"
        if re.match(r"std::(vector|string|span|array)|RotaryAngles|\w*Metadata", self.type):
            return "empty"
        if re.match(r"std::(optional|function)|TensorView|OptionView|std::shared_ptr|Draft|LogitProcessor", self.type) or self.type.endswith("*"):
            return "not given"
        return "its own defaults"


def declares_function(code):
    """Whether the code before a default value or body declares a function; a std::function is a field."""
    return "(" in re.sub(r"std::function<.*>", "", code.split("=")[0])


def fields_of(body, where):
    """Fields with their comments; leaves out functions and nested types with their members."""
    fields, before, code, depth, is_function = [], [], "", 0, False
    behind = None  # the field that a trailing comment continues on the next line
    for match in TOKEN.finditer(body):
        after_comment, front_comment, text = match.groups()
        if after_comment is not None or front_comment is not None:
            if depth > 0:
                continue
            if after_comment is not None and fields:
                fields[-1].comment.append(after_comment)
                behind = fields[-1]
            elif front_comment is not None and behind is not None and body[:match.start()].endswith("\n") and not code.strip() and \
                    re.match(r" {20,}", match[0]):
                behind.comment.append(front_comment)
            else:
                before.append(front_comment or "")
            continue
        if text is None:
            continue
        if text == "{":
            is_function = is_function or (depth == 0 and (declares_function(code) or re.match(r"\s*(struct|enum|class)\b", code) is not None))
            depth += 1
        if text == "}":
            depth -= 1
            if depth == 0 and is_function:
                code, before, is_function = "", [], False
                continue
        if text == ";" and depth == 0:
            statement = " ".join(code.split())
            is_data = statement and not re.match(r"(using|static|friend|struct|enum|constexpr|bool operator)\b", statement) and \
                not declares_function(statement)
            if is_data:
                fields.append(Field(statement, before))
            code, before, behind = "", [], None
            continue
        code += text
    for field in fields:
        field.comment = unindented(field.comment)
        if not field.comment:
            sys.exit(f"{where}: {field.name} has no description")
    return fields


def wrapped(text):
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def cell(text):
    return text.replace("|", "\\|")


def tables():
    parts, names = [], []
    for room, title in ROOMS.items():
        sections = []
        for header in sorted((ROOT / "include/attn" / room).rglob("*.hpp")):
            text = re.sub(r"\nnamespace detail \{.*?\n\}  // namespace detail", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
            for comment, name, body in STRUCT.findall(text):
                if not NAME.match(name):
                    continue
                fields = fields_of(body, header)
                if not fields:
                    continue
                words = unindented(re.sub(r"^ *///", "", line) for line in comment.splitlines())
                path = header.relative_to(ROOT / "include")
                lines = [f"### {name}", "", wrapped(f"{words} `{path}`".strip()), "", "| field | type | default | meaning |", "| --- | --- | --- | --- |"]
                for f in fields:
                    lines.append(f"| `{f.name}` | `{cell(f.type)}` | {cell(f.shown_default())} | {cell(f.comment)} |")
                names.append(name)
                sections.append("\n".join(lines) + "\n")
        if sections:
            parts.append(f"## Options of {title.lower()}\n\n" + "\n".join(sections))
    return "\n".join(parts), names


page = PAGE.read_text(encoding="utf-8")
head = page[:page.index(MARKER) + len(MARKER)]
made, names = tables()
reference = wrapped("Reference: " + ", ".join(f"attn::{name}" for name in names) + ".")
expected = head + "\n" + made + "\n" + reference + "\n"
if len(names) < 40:
    sys.exit(f"only {names} found: the headers are written otherwise than this script believes")
if "--check" not in sys.argv:
    PAGE.write_text(expected, encoding="utf-8")
elif page != expected:
    sys.exit("docs/options.md is stale: python3 docs/options.py makes it from the headers")
print(f"{len(names)} structs")
