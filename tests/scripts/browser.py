"""A headless Chromium, driven through a pipe by the DevTools protocol (messages of JSON, each ended by a zero byte)."""
import contextlib
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60  # seconds for any answer
# Nothing of the browser's own should ask the network for anything.
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
           "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--mute-audio",
           "--hide-scrollbars", "--remote-debugging-pipe")


def program() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Page:
    """One tab. events: what the browser told of it, in order: {"method", "params"}."""

    def __init__(self, to_browser: int, from_browser: int):
        self.to_browser, self.from_browser = to_browser, from_browser
        self.buffer, self.sent, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def message(self, deadline: float) -> dict:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.from_browser], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(self.from_browser, 1 << 20) if ready else b""
            assert chunk, "the browser does not answer"
            self.buffer += chunk
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method: str, **params) -> dict:
        self.sent += 1
        request = {"id": self.sent, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.message(deadline)
            if answer.get("id") == self.sent:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def told(self, method: str) -> list[dict]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def open(self, path: pathlib.Path, width: int, height: int) -> None:
        """Shows the file as on a screen of that size, a phone's where it is narrow."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + PATIENCE
        while not self.told("Page.loadEventFired"):
            self.events.append(self.message(deadline))

    def value(self, expression: str) -> object:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def middle_of(self, element: str) -> dict:
        """{"x", "y"} of what the expression gives, once it is in view."""
        return self.value(f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'center', inline: 'center'}}); "
                          "const r = e.getBoundingClientRect(); return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()")

    def hover(self, element: str) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **self.middle_of(element))

    def touch(self, element: str) -> None:
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[self.middle_of(element)])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


@contextlib.contextmanager
def opened(name: str):
    """A Page of a browser of its own; nothing is left of either."""
    ends = [*os.pipe(), *os.pipe()]
    # From 10 on, so that giving the browser its 3 and 4 overwrites none of them.
    read_3, write_3, read_4, write_4 = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)

    def wire() -> None:
        os.dup2(read_3, 3)
        os.dup2(write_4, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen([name, *OPTIONS, f"--user-data-dir={profile}"], preexec_fn=wire, close_fds=False,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env={**os.environ, "HOME": profile})
        try:
            yield Page(write_3, read_4)
        finally:
            browser.terminate()
            browser.wait(PATIENCE)
            for end in (read_3, write_3, read_4, write_4):
                os.close(end)
