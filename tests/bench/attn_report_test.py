# attn_report's page in a browser, drawn from a saved report without measuring: attn_report_test.py PROGRAM DIRECTORY.
# Screenshots go to DIRECTORY. Exits with 77 (skipped) without a browser.
import json
import pathlib
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
from browser import Browser, Checks

PAPER = {False: (253, 253, 254), True: (19, 20, 23)}  # by dark

program, pictures = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
pictures.mkdir(parents=True, exist_ok=True)
checks = Checks("attn_report")
scratch = tempfile.TemporaryDirectory()
folder = pathlib.Path(scratch.name)
report = json.loads((TESTS / "data/report.json").read_text(encoding="utf-8"))


def draw(document):
    (folder / "report.json").write_text(json.dumps(document), encoding="utf-8")
    subprocess.run([program, "--from", "report.json", "--html", "page.html"], cwd=folder, check=True, timeout=60)


def misses(row):
    target = row["target"]
    if not target or row["ratio"] is None:
        return False
    shown = row[target["of"]]
    return shown < target["at"] if target["is"] == "at least" else shown > target["at"]


def count(page, selector):
    return page.evaluate(f"document.querySelectorAll('{selector}').length")


(folder / "nonsense.json").write_text("[1, 2", encoding="utf-8")
checks.rejects("a report that is not there", 1, "none.json", program, "--from", "none.json", "--html", "x.html", cwd=folder)
checks.rejects("a file that is no report", 1, "nonsense.json", program, "--from", "nonsense.json", "--html", "x.html", cwd=folder)
checks.rejects("a folder that is not there", 1, "none/x.html", program, "--from", TESTS / "data/report.json", "--html", "none/x.html", cwd=folder)
if Browser.program() is None:
    checks.finish("a browser (Debian: chromium)")

with Browser() as browser:
    draw(report)
    for dark in (False, True):
        page = browser.open(folder / "page.html", dark=dark)
        names = page.evaluate("[...document.querySelectorAll('[data-row]')].map(e => e.dataset.row)")
        checks.same("an element for each row", sorted(names), sorted(row["name"] for row in report["rows"]))
        places = {(row["name"].endswith("@all"), row["gflops"], row["flops_per_byte"]) for row in report["rows"] if row["gflops"]}
        checks.same("a dot for each place", count(page, ".dot"), len(places))
        checks.same("what misses its target", count(page, ".missed"), sum(map(misses, report["rows"])))
        checks.same("a tick for each target", count(page, ".track b"), sum(bool(row["target"] and row["value"]) for row in report["rows"]))
        page.press("Tab")
        checks.holds("a dot tells its row by the keyboard", "FLOP/byte" in page.evaluate("document.getElementById('tip').textContent"))
        shot = page.screenshot(pictures / f"attn_report_{'dark' if dark else 'light'}.png")
        checks.same("colour of the paper", shot[2, 2], PAPER[dark])
        page.resize(390, 800)
        checks.same("nothing wider than a telephone", page.evaluate("document.documentElement.scrollWidth"), 390)
        checks.same("no complaint, no request", page.complaints, [])

    # Rows disturbed by another program, and one whose second measurement was right.
    marked = json.loads(json.dumps(report))
    names = [row["name"] for row in marked["rows"] if row["value"] is not None][:3]
    for row in marked["rows"]:
        row["disturbed"] = "the limit varied by 23 %" if row["name"] in names[:2] else ""
        row["times_measured"] = 3 if row["name"] in names[:2] else 2 if row["name"] == names[2] else 1
    draw(marked)
    page = browser.open(folder / "page.html")
    hatched = page.evaluate("[...document.querySelectorAll('.row.disturbed')].map(e => e.dataset.row)")
    checks.same("hatched rows", sorted(hatched), sorted(names[:2]))
    tips = [page.evaluate(f"""(() => {{
      document.querySelector('.row[data-row="{name}"]').dispatchEvent(new Event('pointerenter'));
      return document.getElementById('tip').textContent;
    }})()""") for name in names]
    said = ["measured 3 times; disturbed: the limit varied by 23 %"] * 2 + ["measured 2 times"]
    checks.holds("what a disturbed row tells", all(tip.endswith(text) for tip, text in zip(tips, said)))

    # Reports of other versions, and reports of few rows.
    old = [{key: row[key] for key in ("name", "value", "limit", "ratio", "unit", "limit_is", "note")} for row in report["rows"]]
    draw({"machine": {"name": "Old", "isa": "avx2", "threads": 1}, "rows": old})
    page = browser.open(folder / "page.html")
    checks.same("an old report: bars", count(page, "[data-row]"), len(old))
    checks.same("an old report: no dots", count(page, ".dot"), 0)
    draw({"machine": report["machine"], "rows": []})
    checks.same("no rows", count(browser.open(folder / "page.html"), "[data-row]"), 0)
    checks.same("no complaint", page.complaints, [])
checks.finish()
