"""docs/install.md has every option of CMakeLists.txt: install_options_test.py SOURCE_DIRECTORY"""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
cmake = (source / "CMakeLists.txt").read_text(encoding="utf-8")
guide = (source / "docs/install.md").read_text(encoding="utf-8")


def shown(value):
    """A default value as written in the guide."""
    return {"${PROJECT_IS_TOP_LEVEL}": "top", "": "empty"}.get(value, f"`{value}`")


expected = {name: shown(value) for name, value in re.findall(r'^\s*option\((\w+)\s+"[^"]*"\s+([^\s)]+)\)', cmake, re.MULTILINE)}
expected |= {name: shown(value) for name, value in re.findall(r'^\s*set\((\w+)\s+"([^"]*)"\s+CACHE\s', cmake, re.MULTILINE)}
table = guide[guide.index("## CMake options"):].split("\n## ")[0]
found = dict(re.findall(r"^\| `(\w+)` \| (\S+|`[^`]*`) \| \S", table, re.MULTILINE))
bad = 0
for name in sorted(expected.keys() | found.keys()):
    if expected.get(name) != found.get(name):
        bad += 1
        print(f"{name}: CMakeLists.txt says {expected.get(name, 'nothing of it')}, docs/install.md {found.get(name, 'nothing of it')}; "
              f"the row begins with | `{name}` | {expected.get(name)} |")
if len(expected) < 10:
    bad += 1
    print(f"only {sorted(expected)} found in CMakeLists.txt: this test does not know its form")
print(f"{len(expected)} options, {bad} differ")
sys.exit(1 if bad else 0)
