# attention_map as its user meets it, and its page in a browser: attention_map_test.py PROGRAM DIRECTORY, where the
# directory gets the screenshots. Exits with 77 (skipped) without the model or a browser.
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
from browser import Browser, Checks, Picture

LAYERS, HEADS = 6, 12
# 64 tokens, some of them long.
LONG = ("When the committee finally published its long-awaited report on the internationalization of telecommunications, "
        "nobody in the overcrowded auditorium believed that the electroencephalographers would agree with its conclusions, "
        "because the evidence they had gathered during the previous summer in Reykjavik pointed in exactly the opposite "
        "direction and was not dismissed.")
PAPER = {False: (253, 253, 254), True: (19, 20, 23)}  # by dark

program, pictures = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
pictures.mkdir(parents=True, exist_ok=True)
checks = Checks("attention_map")
scratch = tempfile.TemporaryDirectory()
folder = pathlib.Path(scratch.name)


def run(*arguments):
    subprocess.run([program, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=300)


def check_arguments():
    model = os.environ.get("ATTN_MODEL_DIR") or (os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME", "") + "/.cache") + "/attn/all-MiniLM-L6-v2"
    checks.rejects("no text", 2, "text", program, cwd=folder)
    checks.rejects("an empty text", 2, "text", program, "", cwd=folder)
    checks.rejects("an unknown option", 2, "nonsense", program, "--nonsense", "x", cwd=folder)
    checks.rejects("no model", 2, "fetch_model.sh", program, "x", cwd=folder, env={**os.environ, "ATTN_MODEL_DIR": str(folder)})
    if not pathlib.Path(model, "model.safetensors").is_file():
        checks.finish("the model: sh examples/fetch_model.sh")
    checks.rejects("a folder that is not there", 1, "none/page.html", program, "--out", "none/page.html", "x", cwd=folder)
    checks.rejects("one file for two", 2, "different files", program, "--out", "x.html", "--json", "x.html", "x", cwd=folder)
    checks.rejects("a file without a name", 1, "replaceable", program, "--out", "", "x", cwd=folder)
    run("x")
    checks.same("a name is given where none is", os.listdir(folder), ["attention_map.html"])


def check_numbers():
    """The weights are PyTorch's: tests/data/minilm/make_attention.py made them."""
    for case in json.loads((TESTS / "data/minilm/attention.json").read_text(encoding="utf-8")):
        run("--json", "map.json", case["text"])
        written = (folder / "map.json").read_text(encoding="utf-8")
        found = json.loads(written)
        checks.same("no number of more digits", re.findall(r"\d\.\d{8,}(?!\d*e)", written), [])
        checks.same("keys of the JSON", list(found), ["tokens", "weights"])
        checks.same("tokens", found["tokens"], case["tokens"])
        worst = digits = total = 0
        for layer, layer_expected in zip(found["weights"], case["weights"], strict=True):
            for head, head_expected in zip(layer, layer_expected, strict=True):
                for row, row_expected in zip(head, head_expected, strict=True):
                    worst = max(worst, *(abs(a - b) for a, b in zip(row, row_expected, strict=True)))
                    digits = max(digits, *(abs(x - round(x, 7)) for x in row))
                    total = max(total, abs(1 - sum(row)))
        checks.holds(f"weights of {case['text']!r} are PyTorch's", worst <= 1e-5, worst)
        checks.same("seven decimals", digits, 0)
        checks.holds("rows add up to 1", total <= 1e-5, total)


def check_page(browser, name, text, dark):
    run("--out", "page.html", "--png", "map.png", "--json", "map.json", text)
    checks.holds("the page is small", (folder / "page.html").stat().st_size < 2_000_000)
    numbers = json.loads((folder / "map.json").read_text(encoding="utf-8"))
    tokens, weights = numbers["tokens"], numbers["weights"]
    n = len(tokens)
    page = browser.open(folder / "page.html", dark=dark)

    heads = page.evaluate("[...document.querySelectorAll('[data-layer][data-head]')].map(e => [+e.dataset.layer, +e.dataset.head])")
    checks.same("an element for each head", heads, [[layer, head] for layer in range(LAYERS) for head in range(HEADS)])
    checks.same("cells of the large map", page.evaluate("document.querySelectorAll('#map .cell').length"), n * n)
    checks.same("tokens of the text", page.evaluate("document.querySelectorAll('#words span').length"), n)
    checks.same("nothing wider than the window", page.evaluate("document.documentElement.scrollWidth"), 1280)

    # By keys: the first stop is the grid, the second the map.
    chosen = "(e => [+e.dataset.layer, +e.dataset.head])(document.querySelector('[aria-checked=true]'))"
    page.press("Tab", "ArrowRight", "ArrowDown", "ArrowDown")
    checks.same("arrows choose a head", page.evaluate(chosen), [2, 1])
    checks.same("the focus goes with it", page.evaluate("document.activeElement.getAttribute('aria-checked')"), "true")
    checks.same("the large map's title", page.evaluate("document.getElementById('map-title').textContent"), "Layer 2, head 1")
    page.press("Tab", "ArrowDown", "ArrowDown", "ArrowRight")

    def told():
        return page.evaluate("document.getElementById('tip').textContent")

    def expected(layer, head, query, key):
        weight = weights[layer][head][query][key]
        return f"{tokens[query]} looks at {tokens[key]}: " + ("< 0.0001" if weight < 0.00005 else f"{weight:.4f}")

    def near(title, found, layer, head, query, key):
        """The same, but for the page's 18 bits, which may round the last digit otherwise."""
        want = expected(layer, head, query, key)
        same = found == want or (found.rpartition(" ")[0] == want.rpartition(" ")[0]
                                 and abs(float(found.split()[-1]) - float(want.split()[-1])) < 0.00015)
        checks.holds(title, same, f"expected {want!r}, found {found!r}")

    near("arrows move in the map", told(), 2, 1, 1, 1)
    page.press("Escape")
    checks.same("Escape leaves", told(), "")
    page.hover(f"[data-cell='{3 * n + 2}']")
    near("hovering tells the weight", told(), 2, 1, 3, 2)
    checks.same("the text shows where the query looks", page.evaluate("document.getElementById('words-title').textContent"), f"Where “{tokens[3]}” looks")

    # The heavier, the darker on light paper and the lighter on dark paper.
    fills = page.evaluate("[...document.querySelectorAll('#map .cell')].map(e => e.getAttribute('fill').match(/\\d+/g).map(Number))")
    flat = [weight for row in weights[2][1] for weight in row]
    light = [sum(fills[i]) for i in sorted(range(n * n), key=flat.__getitem__)]
    checks.holds("colours follow the weights", all((b - a if dark else a - b) >= -1 for a, b in zip(light, light[1:])))
    if not dark:
        # The picture has the colours of the page's light theme. Its margin is 32 pixels, its gaps are 8.
        picture, cell = Picture(folder / "map.png"), 128 // n
        pitch = cell * n + 8
        checks.same("size of the picture", (picture.width, picture.height), (32 + HEADS * pitch, 32 + LAYERS * pitch))
        places = [(q, k) for q in range(0, n, 3) for k in range(0, n, 2)]
        off = max(abs(a - b) for q, k in places for a, b in zip(
            picture[32 + pitch + k * cell + cell // 2, 32 + 2 * pitch + q * cell + cell // 2], fills[q * n + k]))
        checks.holds("colours of the picture are the page's", off <= 2, off)

    shot = page.screenshot(pictures / f"attention_map_{name}_{'dark' if dark else 'light'}.png")
    checks.same("colour of the paper", shot[2, 2], PAPER[dark])
    # WCAG 2 asks for 4.5; of black and white the better one reaches 4.3 on the worst of blues.
    contrast = page.evaluate("""Math.min(...colours.map((colour) => {
      const ink = inkOn(colour).match(/[0-9a-f]{2}/g).map((x) => parseInt(x, 16));
      const [a, b] = [luminanceOf(colour), luminanceOf(ink)];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }))""")
    checks.holds("ink stands out", contrast > 4.2, contrast)
    width = "document.getElementById('map').getBoundingClientRect().width"
    wide = page.evaluate(width)
    page.resize(390, 800)
    narrow = page.evaluate(width)
    page.resize(1280, 800)
    checks.same("the large map follows the window", page.evaluate(width), wide)
    checks.holds("and was smaller", narrow < wide, (narrow, wide))
    page.resize(390, 800)
    checks.same("nothing wider than a telephone", page.evaluate("document.documentElement.scrollWidth"), 390)
    page.theme(not dark)
    checks.same("the theme may change", page.screenshot(folder / "other.png")[2, 2], PAPER[not dark])
    checks.same("no complaint, no request", page.complaints, [])


def check_awkward_text(browser):
    text = '</script><b>&amp; "quoted" \\ \u2028 caf\u00e9 \U0001f600'
    run("--out", "page.html", text)
    page = browser.open(folder / "page.html", address="#layer=5&head=11")
    checks.same("the text is text", page.evaluate("data.text"), text)
    checks.same("the address chooses a head", page.evaluate("document.getElementById('map-title').textContent"), "Layer 5, head 11")
    run("--out", "page.html", "\u200b")
    page = browser.open(folder / "page.html")
    checks.same("[CLS] and [SEP] alone", page.evaluate("document.querySelectorAll('#map .cell').length"), 4)
    checks.same("no complaint", page.complaints, [])
    # That complaints would be heard.
    broken = (folder / "page.html").read_text(encoding="utf-8").replace('"use strict";', 'console.error("x"); fetch("http://x.invalid/");', 1)
    (folder / "page.html").write_text(broken, encoding="utf-8")
    heard = " ".join(browser.open(folder / "page.html").complaints)
    checks.holds("complaints are heard", "console.error" in heard and "http://x.invalid/" in heard, heard)


check_arguments()
check_numbers()
if Browser.program() is None:
    checks.finish("a browser (Debian: chromium)")
with Browser() as chromium:
    for is_dark in (False, True):
        check_page(chromium, "10_tokens", "The cat sat because it was tired.", is_dark)
        check_page(chromium, "64_tokens", LONG, is_dark)
    check_awkward_text(chromium)
checks.finish()
