# A headless Chromium, driven by its DevTools protocol over a pipe, which needs no library: for tests of pages.
#
# Exits with 77 (skipped) where there is no Chromium. Every console message, exception and request for anything but the
# page itself is kept in Page.complaints.
import base64
import collections
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def skip(why):
    print("skipped: " + why)
    sys.exit(77)


class Browser:
    """`with Browser() as browser: page = browser.open(path)`"""

    def __enter__(self):
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            skip("no Chromium here (Debian: chromium)")
        self._profile = tempfile.mkdtemp()
        (child_in, self._out), (self._in, child_out) = os.pipe(), os.pipe()
        arguments = [program, "--headless=new", "--remote-debugging-pipe", "--user-data-dir=" + self._profile,
                     "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb",
                     "--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
        if os.getuid() == 0:
            arguments.append("--no-sandbox")  # which root may not have

        def at_3_and_4():
            # The fixed numbers that the browser reads from and writes to; first out of one another's way.
            spare = os.dup(child_in), os.dup(child_out)
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        self._process = subprocess.Popen(arguments, close_fds=False, preexec_fn=at_3_and_4,
                                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(child_in)
        os.close(child_out)
        self._bytes = b""
        self._last = 0
        self.events = collections.deque()
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
        except EOFError:
            pass
        self._process.wait(timeout=30)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method, session=None, **params):
        """The answer to one command; events that arrive before it are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method):
        """The first event of that name that is still to come or has not been looked at."""
        while True:
            event = self.events.popleft() if self.events else self._read()
            if event.get("method") == method:
                return event

    def _read(self):
        while b"\0" not in self._bytes:
            more = os.read(self._in, 1 << 20)
            if not more:
                raise EOFError("the browser has gone")
            self._bytes += more
        message, self._bytes = self._bytes.split(b"\0", 1)
        return json.loads(message)

    def open(self, path, address="", width=1280, height=900, dark=False):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, pathlib.Path(path).resolve().as_uri() + address, width, height, dark)


class Page:
    def __init__(self, browser, session, url, width, height, dark):
        self._browser, self._session, self._url = browser, session, url
        self.complaints = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.resize(width, height)
        self.theme(dark)
        self.call("Page.navigate", url=url)
        browser.wait("Page.loadEventFired")
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def call(self, method, **params):
        result = self._browser.call(method, self._session, **params)
        for event in self._browser.events:
            if event.get("sessionId") == self._session:
                self._judge(event["method"], event["params"])
        # What Browser.wait() may be waiting for stays.
        kept = [event for event in self._browser.events if event["method"] == "Page.loadEventFired"]
        self._browser.events = collections.deque(kept)
        return result

    def _judge(self, method, params):
        if method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["exception"]["description"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{params['type']}: {params['args']}")
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and params["request"]["url"].split("#")[0] != self._url.split("#")[0]:
            self.complaints.append("request for " + params["request"]["url"])

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def theme(self, dark):
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def press(self, *keys):
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def hover(self, selector):
        box = self.evaluate(f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
                            f" return [b.x + b.width / 2, b.y + b.height / 2]; }})(document.querySelector({selector!r}))")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def screenshot(self, path):
        """The whole page, as a PNG file."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))
        return Picture(path)


class Picture:
    """A PNG file of 8-bit RGB or RGBA pixels: width, height, and picture[x, y] as (r, g, b)."""

    def __init__(self, path):
        data = pathlib.Path(path).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n", f"{path} is no PNG file"
        at, packed = 8, b""
        while at < len(data):
            size, kind = struct.unpack(">I4s", data[at:at + 8])
            body = data[at + 8:at + 8 + size]
            if kind == b"IHDR":
                self.width, self.height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
                assert (depth, interlace) == (8, 0) and colour in (2, 6), f"{path}: depth {depth}, colour type {colour}"
                self._step = 3 if colour == 2 else 4
            elif kind == b"IDAT":
                packed += body
            at += 12 + size
        self._rows = self._unfilter(zlib.decompress(packed))

    def _unfilter(self, data):
        step, stride = self._step, self.width * self._step
        rows, above = [], bytearray(stride)
        for y in range(self.height):
            kind, row = data[y * (stride + 1)], bytearray(data[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
            for i in range(stride if kind else 0):
                left = row[i - step] if i >= step else 0
                corner = above[i - step] if i >= step else 0
                if kind == 1:
                    guess = left
                elif kind == 2:
                    guess = above[i]
                elif kind == 3:
                    guess = (left + above[i]) // 2
                else:
                    guess = min((left, above[i], corner), key=lambda x: abs(left + above[i] - corner - x))
                row[i] = (row[i] + guess) & 255
            rows.append(row)
            above = row
        return rows

    def __getitem__(self, place):
        x, y = place
        return tuple(self._rows[y][x * self._step:x * self._step + 3])


class Checks:
    """Counts what holds; `finish()` says how much and ends the program."""

    def __init__(self, name):
        self._name, self._passed, self._failed = name, 0, 0
        self._start = time.monotonic()

    def same(self, title, found, expected):
        if found == expected:
            self._passed += 1
        else:
            self._failed += 1
            print(f"FAILED: {title}\n  expected: {expected}\n  found:    {found}")

    def finish(self):
        print(f"{self._name}: {self._passed} passed, {self._failed} failed, {time.monotonic() - self._start:.1f} s")
        sys.exit(1 if self._failed else 0)
