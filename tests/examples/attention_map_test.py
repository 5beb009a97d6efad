# attention_map as a user runs it, and its page in a browser: attention_map_test.py PROGRAM DIRECTORY. Screenshots go to
# DIRECTORY. Exits with 77 (skipped) without the model or a browser.
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
from browser import Browser, Checks, Picture

LAYERS, HEADS = 6, 12
# 67 tokens, some of them long.
LONG = ("When the committee finally published its long-awaited report on the internationalization of telecommunications, "
        "nobody in the overcrowded auditorium believed that the electroencephalographers would agree with its conclusions, "
        "because the evidence they had gathered during the previous summer in Reykjavik pointed in exactly the opposite "
        "direction and was not at all dismissed.")
PAPER = {False: (253, 253, 254), True: (19, 20, 23)}  # by dark

program, pictures = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
pictures.mkdir(parents=True, exist_ok=True)
checks = Checks("attention_map")
scratch = tempfile.TemporaryDirectory()
folder = pathlib.Path(scratch.name)


def run(*arguments):
    """The program's standard output and standard error."""
    ended = subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True, timeout=300)
    return ended.stdout, ended.stderr.decode()


def check_arguments():
    model = os.environ.get("ATTN_MODEL_DIR") or (os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME", "") + "/.cache") + "/attn/all-MiniLM-L6-v2"
    checks.rejects("no text", 2, "text", program, cwd=folder)
    checks.rejects("an empty text", 2, "text", program, "", cwd=folder)
    checks.rejects("no model", 2, "fetch_model.sh", program, "x", cwd=folder, env={**os.environ, "ATTN_MODEL_DIR": str(folder)})
    if not all(pathlib.Path(model, file).is_file() for file in ("modules.json", "model.safetensors")):
        checks.finish("the model: sh examples/fetch_model.sh")
    checks.rejects("a folder that is not there", 1, "none/page.html", program, "--out", "none/page.html", "x", cwd=folder)
    checks.rejects("one file for two", 2, "different files", program, "--out", "x.html", "--json", "x.html", "x", cwd=folder)
    checks.rejects("one file for two, spelled otherwise", 2, "different files", program, "--out", "x.html", "--json", "./none/../x.html", "x", cwd=folder)
    checks.rejects("standard output for two", 2, "different files", program, "--out", "-", "--json", "-", "x", cwd=folder)
    checks.rejects("a folder whose name acts on a terminal", 1, r"\xc2\x9bc\u202e", program, "--out", "\u009bc\u202e/x.html", "x", cwd=folder)
    checks.rejects("a file without a name", 1, "replaceable", program, "--out", "", "x", cwd=folder)
    run("x")
    checks.same("a name is given where none is", os.listdir(folder), ["attention_map.html"])
    (folder / "attention_map.html").unlink()


def check_outputs():
    """A dash means standard output, which then holds nothing else; a message reports a text that is truncated at the
    model's length."""
    for option in ("--out", "--png", "--json"):
        printed, said = run(option, "-", "A dash.")
        checks.same(f"{option} - writes no file", os.listdir(folder), [])
        checks.same(f"{option} - says nothing", said, "")
        _, said = run(option, "file", "A dash.")
        written = (folder / "file").read_bytes()
        checks.same(f"{option} - writes the file's bytes", printed, written)
        checks.same(f"{option} file says how many", said, f"file: {len(written)} bytes\n")
        (folder / "file").unlink()
        for title, status, target in (("a full disk", 1, "/dev/full"), ("a closed pipe", 1, None)):
            reader, writer = os.pipe() if target is None else (None, os.open(target, os.O_WRONLY))
            if reader is not None:
                os.close(reader)
            ended = subprocess.run([program, option, "-", "x"], stdout=writer, stderr=subprocess.PIPE, cwd=folder, timeout=60, check=False)
            os.close(writer)
            checks.same(f"{option} - on {title}", (ended.returncode, ended.stderr.count(b"\n")), (status, 1))
        checks.rejects(f"{option} on a full disk", 1, "/dev/full", program, option, "/dev/full", "x", cwd=folder)
    fits = "a " * 254
    for text, words in ((fits, ""), (fits + "b", "the text is cut: of its 257 tokens the model reads 256\n"), ("[MASK] " * 300, "the text is cut: of its 302 tokens the model reads 256\n")):
        printed, said = run("--json", "-", text)
        checks.same("what is cut is said", said, words)
        checks.same("256 tokens", len(json.loads(printed)["tokens"]), 256)
    checks.holds("JSON shows what turns text around as escapes", b"\xc2\x9b" not in run("--json", "-", "a\u009bb")[0])


def check_numbers():
    """The weights are those of PyTorch, made by tests/data/minilm/make_attention.py."""
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


def first_layer(model, ids):
    """The weights [head][query][key] of a tiny Qwen2's first layer, by the formulas: RMS norm, projections, rotary
    embedding, softmax."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    stored = (model / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", stored[:8])[0]
    header = json.loads(stored[8:begin])

    def tensor(name):
        at, end = header[name]["data_offsets"]
        values = struct.unpack(f"<{(end - at) // 4}f", stored[begin + at:begin + end])
        width = header[name]["shape"][-1]
        return [values[i:i + width] for i in range(0, len(values), width)] if len(header[name]["shape"]) == 2 else values

    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config["hidden_size"] // heads
    table, scale = tensor("model.embed_tokens.weight"), tensor("model.layers.0.input_layernorm.weight")

    def projected(name, row, position):
        """The projection of one token, by head, rotated by its position."""
        mean = sum(x * x for x in row) / len(row) + config["rms_norm_eps"]
        normed = [x * w / math.sqrt(mean) for x, w in zip(row, scale, strict=True)]
        weight, bias = (tensor(f"model.layers.0.self_attn.{name}_proj.{part}") for part in ("weight", "bias"))
        flat = [sum(x * w for x, w in zip(normed, out, strict=True)) + b for out, b in zip(weight, bias, strict=True)]
        for at in range(0, len(flat), size):
            for j in range(size // 2):
                angle = position * config["rope_parameters"]["rope_theta"] ** (-2 * j / size)
                a, b = flat[at + j], flat[at + j + size // 2]
                flat[at + j], flat[at + j + size // 2] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
        return [flat[at:at + size] for at in range(0, len(flat), size)]

    queries, keys = ([projected(name, table[i], at) for at, i in enumerate(ids)] for name in "qk")
    result = []
    for head in range(heads):
        kv, rows = head // (heads // kv_heads), []
        for at, query in enumerate(queries):
            powers = [math.exp(sum(a * b for a, b in zip(query[head], key[kv], strict=True)) / math.sqrt(size)) for key in keys[:at + 1]]
            rows.append([p / sum(powers) for p in powers] + [0.0] * (len(ids) - at - 1))
        result.append(rows)
    return result


def check_decoder():
    """Heads of a language model: tokens are the text's bytes, attention is causal, and the first layer agrees with its
    formulas."""
    model = TESTS / "data/pretrained/qwen2"
    case = json.loads((TESTS / "data/pretrained/tokens.json").read_text(encoding="utf-8"))["qwen2"]
    run("--model", model, "--json", "map.json", "--out", "page.html", "--png", "map.png", case["text"])
    found = json.loads((folder / "map.json").read_text(encoding="utf-8"))
    checks.same("layers and heads of a decoder", (len(found["weights"]), len(found["weights"][0])), (2, 4))
    checks.same("tokens of a decoder", "".join(found["tokens"]), case["text"])
    checks.same("no token sees what is to come", {x for layer in found["weights"] for head in layer for q, row in enumerate(head) for x in row[q + 1:]}, {0})
    worst = max(abs(a - b) for head, rows in zip(found["weights"][0], first_layer(model, case["ids"]), strict=True)
                for row, expected in zip(head, rows, strict=True) for a, b in zip(row, expected, strict=True))
    checks.holds("weights of the first layer", worst <= 1e-5, worst)
    run("--model", model, "--json", "map.json", "\U0001f600")
    printed, _ = run("--mask", "--model", model, case["text"])
    lines, tokens = printed.decode().splitlines(), len(found["tokens"])
    checks.same("a mask writes no file of its own", (folder / "attention_map.html").exists(), False)
    checks.same("a mask's first line", lines[0], "blocks of 1 x 1 tokens: . masked out, + kept in part, # kept")
    checks.same("a token sees those before it", lines[1:tokens + 2], ["layer 0:"] + ["#" * (i + 1) + "." * (tokens - i - 1) for i in range(tokens)])
    checks.same("in a window", lines[tokens + 2:], ["layer 1:"] + ["." * (i - 3) + "#" * min(i + 1, 4) + "." * (tokens - i - 1) for i in range(tokens)])
    checks.rejects("a mask and a file on standard output", 2, "standard output", program, "--mask", "--json", "-", "x", cwd=folder)
    tokens = json.loads((folder / "map.json").read_text(encoding="utf-8"))["tokens"]
    checks.same("tokens that are parts of a character", set(tokens), {"\ufffd"})
    checks.rejects("a model that is not there", 1, "none.gguf", program, "--model", "none.gguf", "x", cwd=folder)
    for name in ("map.json", "page.html", "map.png"):
        (folder / name).unlink()


def check_decoder_page(browser):
    text = "hello w\u00e9rld,\nhello"
    model = TESTS / "data/pretrained/qwen2"
    run("--model", model, "--out", "page.html", "--json", "map.json", text)
    n = len(json.loads((folder / "map.json").read_text(encoding="utf-8"))["tokens"])
    page = browser.open(folder / "page.html")
    checks.same("the model's name", page.evaluate("document.querySelector('h1').textContent"), "What qwen2 attends to")
    checks.same("cells of the large map", page.evaluate(CELLS), [n, n])
    checks.same("a line end is seen", page.evaluate("[...document.querySelectorAll('#words span')].filter(e => e.textContent === '\u21b5').length"), 1)
    page.evaluate("document.getElementById('hide-ends').click()")
    page.settle()
    checks.same("the first token is left out", page.evaluate(CELLS), [n - 1, n - 1])
    checks.same("kinds of keys", page.evaluate("[...document.querySelectorAll('#profile > :nth-child(3n + 1)')].map(e => e.textContent)"),
                ["the first token", "itself", "the token before", "elsewhere"])
    total = page.evaluate("profileOf({layer: 1, head: 2}).reduce((a, b) => a + b)")
    checks.holds("their shares add up to 1", abs(total - 1) < 1e-3, total)
    page.screenshot(pictures / "attention_map_decoder.png")
    checks.same("no complaint", page.complaints, [])


CHOSEN = "(e => [+e.dataset.layer, +e.dataset.head])(document.querySelector('[aria-checked=true]'))"
CELLS = "(canvas => [canvas.width, canvas.height])(document.querySelector('#map canvas'))"


def structured(weights, n):
    """The head that concentrates most on few other words: the share of other words, minus that share times their
    entropy relative to the largest possible."""
    def structure(head):
        total = 0
        for q in range(1, n - 1):
            others = [head[q][k] for k in range(1, n - 1) if k != q and head[q][k] > 0]
            share = sum(others)
            if share > 0:
                entropy = -sum(w / share * math.log(w / share) for w in others)
                total += share * (1 - entropy / math.log(n - 3))
        return total

    return max(([layer, head] for layer in range(LAYERS) for head in range(HEADS)), key=lambda at: structure(weights[at[0]][at[1]]))


def hover_cell(page, n, query, key):
    x, y = page.evaluate(f"""(canvas => {{
      canvas.scrollIntoView({{block: 'center'}});
      const box = canvas.getBoundingClientRect();
      return [box.left + ({key} + .5) * box.width / {n}, box.top + ({query} + .5) * box.height / {n}];
    }})(document.querySelector('#map canvas'))""")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.settle()


def colours_of(page):
    """The cells of the large map, row by row."""
    flat = page.evaluate("(canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data])(document.querySelector('#map canvas'))")
    return [flat[i:i + 3] for i in range(0, len(flat), 4)]


def check_labels(page, n):
    """Visible labels do not overlap, are beside their rows and columns, and are as many as fit."""
    rows, columns = ([box for box in page.evaluate(f"""map.{labels}.filter(e => e.getAttribute('visibility') !== 'hidden').map(e => {{
      const box = e.getBoundingClientRect(), canvas = map.canvas.getBoundingClientRect();
      return ['{labels}' === 'rows' ? box.top - canvas.top : box.left - canvas.left, '{labels}' === 'rows' ? box.height : box.width];
    }})""")] for labels in ("rows", "columns"))
    cell = page.evaluate("map.cell")
    for name, boxes in (("rows", rows), ("columns", columns)):
        # A line box is a fifth taller than its letters.
        near = min((b[0] - a[0] - 0.85 * a[1] for a, b in zip(boxes, boxes[1:])), default=1)
        checks.holds(f"labels of {name} do not overlap", near > 0, near)
        checks.holds(f"labels of {name} are where their cells are",
                     all(abs(at + size / 2 - (i * page.evaluate("map.every") + 0.5) * cell) < 3 for i, (at, size) in enumerate(boxes)), boxes[:4])
        checks.holds(f"labels of {name}", len(boxes) >= min(n, n * cell / 24), len(boxes))


def check_choices(page, n, weights, tokens):
    """Without [CLS] and [SEP], the colour scale ends at each head's own largest weight."""
    page.evaluate("document.getElementById('hide-ends').click()")
    page.settle()
    checks.same("two rows and columns less", page.evaluate(CELLS), [n - 2, n - 2])
    checks.same("in the grid too", page.evaluate("document.querySelector('#grid canvas').width"), n - 2)
    checks.same("and in the text", page.evaluate("[...document.querySelectorAll('#words span')].filter(e => e.offsetParent).length"), n - 2)
    hover_cell(page, n - 2, 2, 1)
    told = page.evaluate("document.getElementById('tip').textContent")
    checks.holds("a cell is that of its tokens", told.startswith(f"{tokens[3]} looks at {tokens[2]}: "), told)
    page.evaluate("document.getElementById('own-scale').click()")
    page.settle()
    chosen = page.evaluate(CHOSEN)
    inner = [row[1:-1] for row in weights[chosen[0]][chosen[1]][1:-1]]
    most = max(max(row) for row in inner)
    place = next((q, row.index(most)) for q, row in enumerate(inner) if most in row)
    colour = colours_of(page)[place[0] * (n - 2) + place[1]]
    checks.same("the largest weight has the last colour", colour, page.evaluate("colours.at(-1)"))
    checks.holds("and the legend says which", page.evaluate("document.querySelector('#legend text:nth-last-of-type(2)').textContent") == f"{float(f'{most:.2g}'):g}")
    page.evaluate("document.getElementById('hide-ends').click(); document.getElementById('own-scale').click()")
    page.settle()


def check_picture(picture, n, fills, text):
    """The picture has the colours of the page's light theme, the text above and the tokens below. Margin 32, gaps 8."""
    cell = max(1, 128 // n)
    pitch = cell * n + 8
    checks.same("width of the picture", picture.width, 32 + HEADS * pitch)
    ink = (27, 34, 48)  # of words
    inked = [y for y in range(picture.height) if any(picture[x, y] == ink for x in range(8, picture.width, 1))]
    gap = max(range(len(inked) - 1), key=lambda i: inked[i + 1] - inked[i])
    head, foot = inked[gap], inked[gap + 1]
    checks.holds("words above", inked[0] < 24 and head > inked[0], inked[:2])
    checks.holds("maps between them", foot - head > LAYERS * pitch, (head, foot))
    # Lines of words are 2 dots apart; a line has 10 dots of 2 or 4 pixels.
    lines = lambda rows: sum(b - a > 1 for a, b in zip(rows, rows[1:])) + 1
    checks.holds("all of the tokens", lines(inked[gap + 1:]) >= len(" ".join(text.split())) * 12 // picture.width, lines(inked[gap + 1:]))
    # The maps begin 32 pixels after the last line, which has a row for descenders.
    top = next(y for y in range(head, foot) if picture[32, y] != (255, 255, 255) and picture[32 + cell * n - 1, y] != (255, 255, 255))
    places = [(q, k) for q in range(0, n, max(1, n // 20)) for k in range(0, n, max(1, n // 30))]
    off = max(abs(a - b) for q, k in places for a, b in zip(
        picture[32 + pitch + k * cell + cell // 2, top + 2 * pitch + q * cell + cell // 2], fills[q * n + k]))
    checks.holds("colours of the picture are the page's", off <= 2, off)


def check_page(browser, name, text, dark):
    run("--out", "page.html", "--png", "map.png", "--json", "map.json", text)
    numbers = json.loads((folder / "map.json").read_text(encoding="utf-8"))
    tokens, weights = numbers["tokens"], numbers["weights"]
    n = len(tokens)
    checks.holds("the page is small", (folder / "page.html").stat().st_size < 50_000 + 2.1 * LAYERS * HEADS * n * n)
    page = browser.open(folder / "page.html", dark=dark)

    first = page.evaluate(CHOSEN)
    checks.same("it opens on the head with most structure", first, structured(weights, n))
    checks.same("the text as typed", page.evaluate("document.getElementById('typed').textContent"), text)
    checks.holds("the text in the title", page.evaluate("document.title").startswith(text[:59]), page.evaluate("document.title"))
    cut = "The text is cut: of its" in page.evaluate("document.getElementById('facts').textContent")
    checks.same("a text that is cut is said to be", cut, n == 256)
    checks.holds("few elements, however long the text", page.evaluate("document.querySelectorAll('*').length") < 330 + 3 * n)

    heads = page.evaluate("[...document.querySelectorAll('[data-layer][data-head]')].map(e => [+e.dataset.layer, +e.dataset.head])")
    checks.same("an element for each head", heads, [[layer, head] for layer in range(LAYERS) for head in range(HEADS)])
    checks.same("cells of the large map", page.evaluate(CELLS), [n, n])
    checks.same("tokens of the text", page.evaluate("document.querySelectorAll('#words span').length"), n)
    checks.same("nothing wider than the window", page.evaluate("document.documentElement.scrollWidth"), 1280)

    check_labels(page, n)

    # With keys: on the map, then on the grid.
    page.evaluate(f"document.querySelector('[data-layer=\"{first[0]}\"][data-head=\"{first[1]}\"]').focus()")
    page.press("Home", "PageUp", "ArrowRight", "ArrowDown", "ArrowDown")
    checks.same("arrows choose a head", page.evaluate(CHOSEN), [2, 1])
    checks.same("the focus goes with it", page.evaluate("document.activeElement.getAttribute('aria-checked')"), "true")
    checks.same("the large map's title", page.evaluate("document.getElementById('map-title').textContent"), "Layer 2, head 1")
    page.evaluate("document.getElementById('map').focus()")
    page.press("ArrowDown", "ArrowDown", "ArrowRight")

    def told():
        return page.evaluate("document.getElementById('tip').textContent")

    def expected(layer, head, query, key):
        weight = weights[layer][head][query][key]
        return f"{tokens[query]} looks at {tokens[key]}: " + ("< 0.0001" if weight < 0.00005 else f"{weight:.4f}")

    def near(title, found, layer, head, query, key):
        """Equal except for rounding of the last of the page's five decimals."""
        want = expected(layer, head, query, key)
        same = found == want or (found.rpartition(" ")[0] == want.rpartition(" ")[0]
                                 and abs(float(found.split()[-1]) - float(want.split()[-1])) < 0.00015)
        checks.holds(title, same, f"expected {want!r}, found {found!r}")

    near("arrows move in the map", told(), 2, 1, 1, 1)
    page.press("Escape")
    checks.same("Escape leaves", told(), "")
    hover_cell(page, n, 3, 2)
    near("hovering tells the weight", told(), 2, 1, 3, 2)
    checks.same("the text shows where the query looks", page.evaluate("document.getElementById('words-title').textContent"), f"Where “{tokens[3]}” looks")

    # Larger weights are darker on light paper and lighter on dark paper.
    fills = colours_of(page)
    flat = [round(weight, 5) for row in weights[2][1] for weight in row]  # as rounded in the page
    light = [sum(fills[i]) for i in sorted(range(n * n), key=flat.__getitem__)]
    checks.holds("colours follow the weights", all((b - a if dark else a - b) >= -4 for a, b in zip(light, light[1:])))
    if not dark:
        check_picture(Picture(folder / "map.png"), n, fills, text)
    check_choices(page, n, weights, tokens)

    shot = page.screenshot(pictures / f"attention_map_{name}_{'dark' if dark else 'light'}.png")
    checks.same("colour of the paper", shot[2, 2], PAPER[dark])
    # WCAG 2 requires 4.5; the better of black and white reaches 4.3 on the worst blue.
    contrast = page.evaluate("""Math.min(...colours.map((colour) => {
      const ink = inkOn(colour).match(/[0-9a-f]{2}/g).map((x) => parseInt(x, 16));
      const [a, b] = [luminanceOf(colour), luminanceOf(ink)];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }))""")
    checks.holds("ink stands out", contrast > 4.2, contrast)
    width = "document.querySelector('#map canvas').getBoundingClientRect().width"
    wide = page.evaluate(width)
    page.resize(390, 800)
    narrow = page.evaluate(width)
    page.resize(1280, 800)
    checks.same("the large map follows the window", page.evaluate(width), wide)
    checks.holds("and was smaller", narrow < wide, (narrow, wide))
    page.resize(390, 800)
    page.screenshot(pictures / f"attention_map_{name}_phone_{'dark' if dark else 'light'}.png")
    check_labels(page, n)
    tops = page.evaluate("['map-panel', 'heads-panel', 'text-panel'].map(id => document.getElementById(id).getBoundingClientRect().top)")
    checks.same("on a telephone the chosen head comes first", tops, sorted(tops))
    checks.same("nothing wider than a telephone", page.evaluate("document.documentElement.scrollWidth"), 390)
    page.theme(not dark)
    checks.same("the theme may change", page.screenshot(folder / "other.png")[2, 2], PAPER[not dark])
    checks.same("no complaint, no request", page.complaints, [])


def check_awkward_text(browser):
    text = '</script><b>&amp; "quoted" \\ \u2028 caf\u00e9 \U0001f600 \u202eleft\u009b\x1b[2J'
    run("--out", "page.html", text)
    page = browser.open(folder / "page.html", address="#layer=5&head=11")
    checks.same("the text is text", page.evaluate("data.text"), text)
    shown = text.replace("\u202e", "\\u202e").replace("\u009b", "\\u009b").replace("\x1b", "\\u001b")
    checks.same("control characters are shown", page.evaluate("document.getElementById('typed').textContent"), shown)
    checks.holds("in the title too", page.evaluate("document.title").startswith(" ".join(shown.split())[:59]), page.evaluate("document.title"))
    checks.same("the address chooses a head", page.evaluate("document.getElementById('map-title').textContent"), "Layer 5, head 11")
    run("--out", "page.html", "\u200b")
    page = browser.open(folder / "page.html")
    checks.same("[CLS] and [SEP] alone", page.evaluate(CELLS), [2, 2])
    checks.same("no complaint", page.complaints, [])
    # Complaints are noticed: a broken page must cause one.
    broken = (folder / "page.html").read_text(encoding="utf-8").replace('"use strict";', 'console.error("x"); fetch("http://x.invalid/");', 1)
    (folder / "page.html").write_text(broken, encoding="utf-8")
    heard = " ".join(browser.open(folder / "page.html").complaints)
    checks.holds("complaints are heard", "console.error" in heard and "http://x.invalid/" in heard, heard)


check_decoder()
check_arguments()
check_outputs()
check_numbers()
if Browser.program() is None:
    checks.finish("a browser (Debian: chromium)")
with Browser() as chromium:
    for is_dark in (False, True):
        check_page(chromium, "10_tokens", "The cat sat because it was tired.", is_dark)
        check_page(chromium, "67_tokens", LONG, is_dark)
    check_page(chromium, "256_tokens", 4 * LONG, False)
    check_awkward_text(chromium)
    check_decoder_page(chromium)
checks.finish()
