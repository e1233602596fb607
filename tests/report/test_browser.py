"""The report in a real browser: it sorts, fits a phone, complains of nothing; names stay text.

It is a headless Chromium, driven over its debugging pipe: real keys and clicks, and no further package.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from clip_tca.report.page import Run, Sources, Study, page
from tests.records import hostile

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium")

FIRST = "document.querySelector('table.sortable')"
COLUMN = f"[...{FIRST}.tBodies[0].rows].map(row => row.cells[2].textContent)"
BUTTON = f"{FIRST}.tHead.rows[0].cells[2].firstElementChild"
SORTED = f"{FIRST}.tHead.rows[0].cells[2].ariaSort"
ROWS = "[...document.querySelectorAll('#rows tbody tr')].filter(row => !row.hidden)"


class Browser:
    """One page of a browser with a profile of its own. ``events`` holds what the page did."""

    def __init__(self) -> None:
        """Start it: it reads commands from file descriptor 3 and writes answers to 4."""
        theirs, self.out = os.pipe()
        self.into, ours = os.pipe()

        def connect() -> None:
            for end, copy in enumerate([fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs, ours)], 3):
                os.dup2(copy, end)

        self.profile = tempfile.mkdtemp()
        self.process = subprocess.Popen(
            [PROGRAM, *OPTIONS.split(), f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=connect,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs)
        os.close(ours)
        self.events: list[dict[str, Any]] = []
        self.buffer, self.number, self.session = b"", 0, {}
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters, **self.session}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self.number:
            self.events.append(answer)
        return answer["result"]

    def wait(self, event: str) -> dict[str, Any]:
        """The next event of that name, those that came already included."""
        while not (found := [one for one in self.events if one.get("method") == event]):
            self.events.append(self._receive())
        self.events.remove(found[0])
        return found[0]["params"]

    def open(self, path: Path, width: int) -> None:
        """Load a file at a width."""
        self.events.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=False)
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
        for kind in ({"type": "keyDown", "text": text}, {"type": "keyUp"}):
            self.send("Input.dispatchKeyEvent", key=key, code=key, windowsVirtualKeyCode=code, **kind)

    def complaints(self) -> list[Any]:
        """What the console said since the page was opened, and what went wrong."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [event for event in self.events if event.get("method") in kinds]

    def close(self) -> None:
        """End it, and what it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.out)
        os.close(self.into)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            assert select.select([self.into], [], [], 20)[0], "the browser says nothing"
            self.buffer += os.read(self.into, 1 << 20)
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)


@pytest.fixture(scope="module")
def browser():
    started = Browser()
    yield started
    started.close()


@pytest.fixture(scope="module")
def pages(record, tmp_path_factory) -> dict[str, Path]:
    """A report, and a report with hostile names."""
    folder = tmp_path_factory.mktemp("pages")
    drawing = b"<svg xmlns='http://www.w3.org/2000/svg' width='900' height='300'><rect width='900' height='9'/></svg>"
    study = Study("k", {"study": "k"}, ("image/svg+xml", drawing))
    texts = {
        "plain": page(Sources([Run("one", record)], [study])),
        "hostile": page(Sources([Run("<b>one", hostile(record))])),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


def test_a_click_and_the_enter_key_sort_numbers_with_signs_and_gaps_last(browser, pages):
    browser.open(pages["plain"], 1280)
    for i, text in enumerate(["", "−0.50", "+1,200.00", "−3.00 ± 0.10"]):
        browser.run(f"{FIRST}.tBodies[0].rows[{i}].cells[2].textContent = {json.dumps(text)}")
    browser.click(BUTTON)
    assert browser.run(COLUMN) == ["+1,200.00", "−0.50", "−3.00 ± 0.10", ""]
    assert browser.run(SORTED) == "descending"
    browser.press("Enter", 13, "\r")
    assert browser.run(COLUMN) == ["−3.00 ± 0.10", "−0.50", "+1,200.00", ""]
    assert browser.run(SORTED) == "ascending"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("which", ["plain", "hostile"])
def test_nothing_overflows_loads_or_complains(which, width, browser, pages):
    browser.open(pages[which], width)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert browser.run("document.documentElement.scrollWidth") <= browser.run("innerWidth") == width
    outside = (
        "[...document.querySelectorAll('main *, header *')]"
        ".filter(one => one.getBoundingClientRect().right > innerWidth && !one.closest('.scroll, svg'))"
        ".map(one => one.outerHTML.slice(0, 80))"
    )
    assert browser.run(outside) == []
    assert browser.complaints() == []
    assert browser.run("window.hacked === undefined")
