"""The page of a run without labels: everything is in it, names stay text, and it fits a phone."""

from __future__ import annotations

import re

import pytest
from PIL import Image

from clip_tca.cli import main
from clip_tca.labelling.label import run_labelling
from clip_tca.labelling.page import page
from tests.demo_files import write_demo
from tests.report.test_browser import PROGRAM, Browser
from tests.tiny_clip import MODEL

HOSTILE = "<script>window.hacked=1</script>"
OUTSIDE = (
    "[...document.querySelectorAll('main *, header *')]"
    ".filter(one => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll'))"
    ".map(one => one.outerHTML.slice(0, 80))"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = write_demo(tmp_path_factory.mktemp("demo"), ["icon"], 4, 20)
    Image.new("RGB", (30, 30)).save(root / "<img src=x onerror=alert(1)>.png")
    return root


@pytest.fixture(scope="module")
def found(folder):
    return run_labelling(folder, ["airplane", "bird", HOSTILE], model=MODEL, review_below=0.2)


@pytest.fixture(scope="module")
def text(found):
    return page(found)


@pytest.fixture(scope="module")
def browser():
    if PROGRAM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    started = Browser()
    yield started
    started.close()


def test_the_page_needs_nothing_but_itself_and_names_stay_text(text):
    assert re.findall(r"(?:src|href)=\"(?!data:|#)", text) == []
    assert HOSTILE not in text
    assert "<img src=x" not in text


def test_every_change_is_counted_and_every_class_has_a_sheet(found, text):
    changed = found.table[found.table["changed"]]
    kinds = changed.assign(label=found.proposed[changed.index]).groupby(["zero_shot", "label"]).size()
    counts = sorted((int(number) for number in re.findall(r"<h5>.*?→.*?: (\d+)</h5>", text)), reverse=True)
    assert counts == sorted(kinds.tolist(), reverse=True)
    assert len(re.findall("<summary>", text)) == 3
    assert f"<dd>{len(changed)}</dd>" in text


def test_the_command_writes_the_page_and_keeps_one_that_exists(folder, tmp_path, capsys):
    words = ["label", str(folder), "--classes", "a, b", "--model", MODEL, "--html", str(tmp_path / "page.html")]
    assert main(words) == 0
    assert f"written: {tmp_path / 'page.html'}" in capsys.readouterr().out
    assert main(words) == 1
    assert "page.html exists; name another file, or add --overwrite" in capsys.readouterr().err


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_a_phone_and_a_desk_and_complains_of_nothing(width, text, tmp_path, browser):
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    browser.open(tmp_path / "page.html", width)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert browser.run("document.documentElement.scrollWidth") <= browser.run("innerWidth") == width
    assert browser.run(OUTSIDE) == []
    assert browser.complaints() == []
    assert browser.run("window.hacked === undefined")
    assert browser.run("[...document.images].every(one => one.src.startsWith('data:image/jpeg'))")
