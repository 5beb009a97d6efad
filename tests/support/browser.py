# Helpers for tests of programs and the pages that they write: a headless Chromium, controlled by its DevTools protocol
# over a pipe without a library; a reader of PNG files; a counter of checks.
import base64
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Browser:
    """`with Browser() as browser: page = browser.open(path)`"""

    @staticmethod
    def program():
        """The path of Chromium, or None."""
        return next(filter(None, map(shutil.which, PROGRAMS)), None)

    def __enter__(self):
        self._profile = tempfile.mkdtemp()
        (child_in, self._out), (self._in, child_out) = os.pipe(), os.pipe()
        arguments = [self.program(), "--headless=new", "--remote-debugging-pipe", "--user-data-dir=" + self._profile,
                     "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb",
                     "--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
        if os.getuid() == 0:
            arguments.append("--no-sandbox")  # Chromium's sandbox does not run as root

        def at_3_and_4():
            # Chromium uses fixed file descriptors; the pipes may occupy each other's, so they are moved away first.
            spare = os.dup(child_in), os.dup(child_out)
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        self._process = subprocess.Popen(arguments, close_fds=False, preexec_fn=at_3_and_4,
                                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(child_in)
        os.close(child_out)
        self._bytes = b""
        self._last = 0
        self.pages = {}  # by session
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
        except EOFError:
            pass
        self._process.wait(timeout=30)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method, session=None, **params):
        """Returns the answer to a command."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self.listen()).get("id") != self._last:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def listen(self):
        """Returns the next message; passes events to their pages."""
        message = self._read()
        if message.get("sessionId") in self.pages and "method" in message:
            self.pages[message["sessionId"]].hear(message["method"], message["params"])
        return message

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
    """`complaints` collects console messages, exceptions, and requests for anything except the page itself."""

    def __init__(self, browser, session, url, width, height, dark):
        self._browser, self._session, self._url = browser, session, url
        self.complaints = []
        browser.pages[session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.resize(width, height)
        self.theme(dark)
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            browser.listen()
        self.settle()

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def hear(self, method, params):
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["exception"]["description"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{params['type']}: {params['args']}")
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and params["request"]["url"].split("#")[0] != self._url.split("#")[0]:
            self.complaints.append("request for " + params["request"]["url"])

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.settle()

    def settle(self):
        """Waits until the page has processed all events: events of a frame run before its callbacks."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

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
            code = {"windowsVirtualKeyCode": 9} if key == "Tab" else {}  # moves the focus only with this code
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **code)

    def hover(self, selector):
        box = self.evaluate(f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
                            f" return [b.x + b.width / 2, b.y + b.height / 2]; }})(document.querySelector({selector!r}))")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def screenshot(self, path):
        """Saves the whole page as a PNG file."""
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
        self._data, self._rows = zlib.decompress(packed), []

    def _row(self, y):
        """Decodes rows up to y: each row is stored as a difference from the one above."""
        step, stride = self._step, self.width * self._step
        while len(self._rows) <= y:
            begin = len(self._rows) * (stride + 1)
            kind, row = self._data[begin], bytearray(self._data[begin + 1:begin + 1 + stride])
            above = self._rows[-1] if self._rows else bytes(stride)
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
            self._rows.append(row)
        return self._rows[y]

    def __getitem__(self, place):
        x, y = place
        return tuple(self._row(y)[x * self._step:x * self._step + 3])


class Checks:
    """Counts passed and failed checks; `finish()` prints the numbers and ends the program."""

    def __init__(self, name):
        self._name, self._passed, self._failed = name, 0, 0

    def holds(self, title, fact, found=""):
        if fact:
            self._passed += 1
        else:
            self._failed += 1
            print(f"FAILED: {title}: {found}")

    def same(self, title, found, expected):
        self.holds(title, found == expected, f"expected {expected!r}, found {found!r}")

    def rejects(self, title, status, word, *command, **options):
        """The program must end with this status and one line on standard error that contains the word."""
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
        good = run.returncode == status and not run.stdout and run.stderr.count("\n") == 1 and word in run.stderr
        self.holds(title, good, f"status {run.returncode}, output {run.stdout!r}, {run.stderr!r}")

    def finish(self, skipped=""):
        print(f"{self._name}: {self._passed} passed, {self._failed} failed" + (f"; the rest needs {skipped}" if skipped else ""))
        sys.exit(1 if self._failed else 77 if skipped else 0)
