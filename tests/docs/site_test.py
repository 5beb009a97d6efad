"""Tests the documentation site: site_test.py HTML_DIRECTORY BUILD_COMMAND...

Members of option structs have descriptions, the search finds the guides by their titles and sections, and the
guides' links lead to existing pages.
"""
import html
import pathlib
import re
import subprocess
import sys

subprocess.run(sys.argv[2:], check=True)
site = pathlib.Path(sys.argv[1])
guides = pathlib.Path(__file__).resolve().parents[2] / "docs"
bad = 0


def fail(words):
    global bad
    bad += 1
    print(words)


structs = [page for page in site.glob("structattn_1_1*.html") if re.search(r"(Options|Call|Dropout|Execution)\.html$", page.name)]
members = 0
for page in sorted(structs):
    text = page.read_text(encoding="utf-8")
    described = set(re.findall(r'class="memdesc:(\w+)"', text))
    # Rows of members; rows of functions have parentheses.
    for anchor, row in re.findall(r'<tr class="memitem:(\w+)"[^>]*>(.*?)</tr>', text, re.DOTALL):
        words = " ".join(html.unescape(re.sub(r"<[^>]*>", "", row)).split())
        if re.search(r"\w \(", words.split("=")[0]):
            continue
        members += 1
        if anchor not in described:
            fail(f"{page.name}: no description of {words}")
if len(structs) < 20 or members < 100:
    fail(f"{len(structs)} structs of {members} members: this test does not know the layout of the site")

# The search takes the list of a query's first letter and shows the entries that begin with the query.
letters = re.search(r'0: "([^"]*)"', (site / "search/searchdata.js").read_text(encoding="utf-8"))[1]


def found(query):
    lists = site / f"search/all_{letters.find(query[0]):x}.js"
    if not lists.with_suffix(".html").exists():
        return set()
    entries = re.findall(r"\['([^']*)',\['([^']*)',\['\.\./([^'#]*)", lists.read_text(encoding="utf-8"))
    return {(html.unescape(name), page) for word, name, page in entries if word.startswith(query)}


for guide in sorted(guides.rglob("*.md")):
    if guide.name == "index.md":
        continue
    page = "md_docs_" + "_".join(guide.relative_to(guides).with_suffix("").parts) + ".html"
    text = re.sub(r"^```.*?^```$", "", guide.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for title in re.findall(r"^##? (.+)$", text, re.MULTILINE):
        title = title.replace("`", "")
        query = sorted(re.findall(r"[a-z0-9_]+", title.lower()), key=len)[-1]
        if (title, page) not in found(query):
            fail(f"{guide.name}: the search for {query!r} does not find {title!r}")
for query, page in (("pytorch", "from_pytorch"), ("beam", "decoding"), ("safetensors", "io"), ("cmake", "install"), ("sigbus", "io")):
    if f"md_docs_{page}.html" not in {at for _, at in found(query)}:
        fail(f"the search for {query!r} does not find {page}.md")
# Links of guides lead to existing pages and sections; pages outside of docs/ are not on the site.
anchors = {}
for page in [site / "index.html", *sorted(site.glob("md_docs_*.html"))]:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r'href="([^"]+)"', text[text.index('<div class="contents">'):]):
        name, _, anchor = html.unescape(link).partition("#")
        target = site / (name or page.name)
        if re.match(r"[a-z]+:", link):
            continue
        if not target.is_file():
            fail(f"{page.name}: the link to {link} leads nowhere")
        elif anchor and target.suffix == ".html":
            if target not in anchors:
                anchors[target] = set(re.findall(r'(?:id|name)="([^"]+)"', target.read_text(encoding="utf-8")))
            if html.unescape(anchor) not in anchors[target]:
                fail(f"{page.name}: {link} has no such section")
print(f"{len(structs)} structs of {members} members; {bad} complaints")
sys.exit(1 if bad else 0)
