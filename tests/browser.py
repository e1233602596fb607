"""A headless Chromium for tests, driven over its debugging pipe: real keys and clicks, and no further package."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

_START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The browser of this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser with a profile of its own. ``events`` holds what the page did."""

    def __init__(self, program: str) -> None:
        """Start it."""
        self.profile = tempfile.mkdtemp()
        theirs, self.out = (_high(end) for end in os.pipe())
        self.into, ours = (_high(end) for end in os.pipe())
        command = [sys.executable, "-c", _START, str(theirs), str(ours), program, *_QUIET]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=(theirs, ours),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs)
        os.close(ours)
        self.events: list[dict[str, Any]] = []
        self.buffer, self.number, self.session = b"", 0, None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(20)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def wait(self, event: str, seconds: float = 20) -> dict[str, Any]:
        """The next event of that name, those that came already included."""
        seen = 0
        while True:
            for found in self.events[seen:]:
                if found.get("method") == event:
                    return found["params"]
            seen = len(self.events)
            self.events.append(self._receive(seconds))

    def open(self, path: Path, width: int, height: int = 844) -> None:
        """Load a file at a width."""
        self.events.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait("Page.loadEventFired")

    def run(self, code: str) -> Any:
        """The value of an expression."""
        found = self.send("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, element: str) -> None:
        """A click of the mouse on the middle of an element (an expression)."""
        self.run(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y = self.run(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({element}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, where the focus is."""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def complaints(self) -> list[Any]:
        """Errors and warnings on the console since the page was opened."""
        found: list[Any] = []
        for event in self.events:
            told = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(told["exceptionDetails"])
            elif event.get("method") == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(told["entry"])
            elif event.get("method") == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                found.append(told["args"])
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def close(self) -> None:
        """End it, and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.out)
        os.close(self.into)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _receive(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.into], [], [], max(0, deadline - time.monotonic()))
            part = os.read(self.into, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser says nothing")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)


def _high(end: int) -> int:
    """The same end of a pipe under a number that is not 3 or 4, which the browser takes."""
    found = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(end)
    return found
