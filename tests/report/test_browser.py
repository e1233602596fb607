"""The report in a real browser: it sorts, it fits a phone, it complains of nothing, and hostile names stay text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clip_tca.report.page import page
from clip_tca.report.run import Run
from clip_tca.report.sources import Sources
from clip_tca.report.studies_panel import StudyRecord
from tests import browser as chromium
from tests.records import honest, hostile

PROGRAM = chromium.find()

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium")

FIRST = "document.querySelector('table.sortable')"
COLUMN = f"[...{FIRST}.tBodies[0].rows].map(row => row.cells[2].textContent)"
BUTTON = f"{FIRST}.tHead.rows[0].cells[2].firstElementChild"
HEADS = f"[...{FIRST}.tHead.rows[0].cells].map(head => head.ariaSort)"


@pytest.fixture(scope="module")
def browser():
    started = chromium.Browser(PROGRAM)
    yield started
    started.close()


@pytest.fixture(scope="module")
def record() -> dict:
    return honest()


@pytest.fixture(scope="module")
def plain(record, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "plain.html"
    drawing = b"<svg xmlns='http://www.w3.org/2000/svg' width='900' height='300'><rect width='900' height='9'/></svg>"
    study = StudyRecord("k", {"study": "k", "finding": ["nothing"]}, ("image/svg+xml", drawing))
    files = [("one.json", json.dumps(record).encode())]
    path.write_text(page(Sources([Run("one", record)], [study], files)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def odd(record, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "odd.html"
    path.write_text(page(Sources([Run("<b>one", hostile(record))])), encoding="utf-8")
    return path


def test_a_click_and_the_enter_key_sort(browser, plain):
    browser.open(plain, 1280)
    before = browser.run(COLUMN)
    numbers = sorted(before, key=float)
    assert before != numbers
    browser.click(BUTTON)
    assert browser.run(COLUMN) == numbers[::-1]
    assert browser.run(HEADS)[:4] == ["none", "none", "descending", "none"]
    assert browser.run(f"document.activeElement === {BUTTON}")
    browser.press("Enter", 13, "\r")
    assert browser.run(COLUMN) == numbers
    assert browser.run(HEADS)[:4] == ["none", "none", "ascending", "none"]
    browser.run(f"{FIRST}.tHead.rows[0].cells[0].firstElementChild.focus()")
    browser.press("Enter", 13, "\r")
    names = browser.run(f"[...{FIRST}.tBodies[0].rows].map(row => row.cells[0].textContent)")
    assert names == sorted(names)
    assert browser.run(HEADS)[:3] == ["ascending", "none", "none"]


def test_signs_sort_as_numbers_and_gaps_come_last(browser, plain):
    browser.open(plain, 1280)
    browser.run(f"{FIRST}.tBodies[0].rows[0].cells[2].textContent = ''")
    for i, text in enumerate(["−0.50", "+1,200.00", "−3.00 ± 0.10"], 1):
        browser.run(f"{FIRST}.tBodies[0].rows[{i}].cells[2].textContent = {json.dumps(text)}")
    browser.click(BUTTON)
    assert browser.run(COLUMN) == ["+1,200.00", "−0.50", "−3.00 ± 0.10", ""]
    browser.press("Enter", 13, "\r")
    assert browser.run(COLUMN) == ["−3.00 ± 0.10", "−0.50", "+1,200.00", ""]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("which", ["plain", "odd"])
def test_nothing_overflows_and_nothing_complains(which, width, browser, request):
    browser.open(request.getfixturevalue(which), width)
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
    assert all(address.startswith(("file:", "data:image/")) for address in browser.requests())


def test_it_is_dark_where_dark_is_wanted(browser, plain):
    browser.open(plain, 390)
    colours = {}
    for scheme in ("light", "dark"):
        browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        code = "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
        colours[scheme] = [sum(map(int, c[4:-1].split(","))) / 3 for c in browser.run(code)]
    assert colours["light"][0] > 240 > 60 > colours["light"][1]
    assert colours["dark"][0] < 40 < 200 < colours["dark"][1]


def test_the_record_can_be_saved(browser, plain, record, tmp_path):
    browser.open(plain, 1280)
    browser.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.click("document.querySelector('a[download]')")
    while browser.wait("Page.downloadProgress")["state"] == "inProgress":
        browser.events = [e for e in browser.events if e.get("method") != "Page.downloadProgress"]
    assert json.loads((tmp_path / "one.json").read_text(encoding="utf-8")) == json.loads(json.dumps(record))
