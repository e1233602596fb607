"""The local page in a real browser: a folder labelled, a label corrected, a CSV that has it; nobody else is asked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pandas as pd
import pytest

import clip_tca
from clip_tca.cli import main
from clip_tca.cli.app import labelling, show
from tests.conftest import ROOT
from tests.demo_files import write_demo
from tests.report.test_browser import PROGRAM, Browser

needs_gradio = pytest.mark.skipif(find_spec("gradio") is None, reason="no Gradio here: pip install '.[app]'")
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium")
CLASSES = "airplane, bird, car"
BOX = "document.querySelector('#{} textarea, #{} input')"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def address():
    """The page, served by a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "clip_tca", "app", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        url = f"http://127.0.0.1:{port}/"
        for _ in range(240):
            assert process.poll() is None, process.stderr.read().decode()
            try:
                urlopen(url, timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        yield url
        process.send_signal(signal.SIGKILL)


class Visitor(Browser):
    """A browser on the page of the app."""

    def visit(self, url: str, width: int) -> None:
        self.events.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=1600, deviceScaleFactor=1, mobile=False)
        self.send("Page.navigate", url=url)
        self.until("document.querySelector('#start') !== null")

    def until(self, condition: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, self.run("document.body.innerText")[:2000]
            time.sleep(0.3)

    def type(self, box: str, text: str) -> None:
        element = BOX.format(box, box)
        self.click(element)
        self.run(f"{element}.select()")
        self.send("Input.insertText", text=text)
        if not text:
            self.press("Backspace", 8)

    def hosts(self) -> set[str]:
        """Who was asked for something."""
        asked = [event["params"]["request"]["url"] for event in self.events if "request" in event.get("params", {})]
        return {urlsplit(url).hostname for url in asked if url.startswith("http")}


@needs_gradio
@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_a_folder_is_labelled_a_label_corrected_and_the_csv_has_both(width, address, tmp_path):
    folder = write_demo(tmp_path / "in", ["icon", "sketch"], 3, 20)
    expected = clip_tca.label(folder, CLASSES, model="demo")
    changed = expected[expected["changed"]]
    assert len(changed) > 1
    visitor = Visitor()
    try:
        visitor.visit(address, width)
        visitor.type("folder", str(folder))
        visitor.type("classes", CLASSES)
        visitor.click("document.querySelector('#start')")
        words = f"conditional-tca changed {len(changed)} of 120 labels"
        visitor.until(f"document.querySelector('#said').innerText.includes('{words}')")
        visitor.until(f"document.querySelectorAll('#gallery img').length >= {len(changed)}")
        assert visitor.run("document.documentElement.scrollWidth") <= width
        visitor.click("document.querySelectorAll('#gallery img')[0].closest('button')")
        file = changed["file"].iloc[0]
        visitor.until(f"{BOX.format('selected', 'selected')}.value === {file!r}")
        wrong = changed["label"].iloc[0]
        right = next(name for name in CLASSES.split(", ") if name != wrong)
        visitor.click(BOX.format("right", "right"))
        visitor.until("document.querySelectorAll('[role=option]').length >= 3")
        option = f"[...document.querySelectorAll('[role=option]')].find(one => one.innerText.includes('{right}'))"
        visitor.click(option)
        visitor.click("document.querySelector('#correct')")
        visitor.until("document.querySelector('#gallery').innerText.includes('(yours)')")
        visitor.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        visitor.click("document.querySelector('#download')")
        for _ in range(100):
            if (tmp_path / "labels.csv").exists():
                break
            time.sleep(0.2)
        table = pd.read_csv(tmp_path / "labels.csv")
        assert table["corrected"].sum() == 1
        row = table[table["corrected"]].iloc[0]
        assert (row["file"], row["label"], row["zero_shot"]) == (file, right, changed["zero_shot"].iloc[0])
        others = ~table["corrected"]
        assert table.loc[others, "label"].tolist() == expected.loc[others, "label"].tolist()
        assert visitor.hosts() == {"127.0.0.1"}
    finally:
        visitor.close()


def test_dropped_pictures_are_named_by_their_files_and_show_what_was_before_and_after(tmp_path):
    folder = write_demo(tmp_path / "in", ["icon"], 3, 20)
    files = sorted(map(str, folder.rglob("*.png")))
    found = labelling(files, "", CLASSES, "demo")
    assert found.table["file"].tolist() == [Path(file).name for file in files]
    rows, pictures = show(found, "changed")
    captions = [f"{row.zero_shot} → {row.label}" for row in found.table.loc[rows].itertuples()]
    assert [caption for _, caption in pictures] == captions
    assert len(show(found, "all")[0]) == 60
    with pytest.raises(ValueError, match="nowhere is not a file or folder"):
        labelling(None, f"{tmp_path}/nowhere", CLASSES, "demo")


@needs_gradio
def test_a_port_in_use_is_one_line(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["app", "--port", str(port)]) == 1
    assert f"port: {port} is in use; give another" in capsys.readouterr().err


def test_without_gradio_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)  # which makes its import fail
    assert main(["app", "--port", str(free_port())]) == 1
    assert 'run pip install ".[app]" in a checkout of clip-tca' in capsys.readouterr().err


@needs_gradio
def test_the_file_alone_is_a_space_where_no_folder_can_be_named(tmp_path):
    (tmp_path / "app.py").write_bytes((ROOT / "clip_tca" / "cli" / "app.py").read_bytes())
    port = free_port()
    environment = {"GRADIO_SERVER_PORT": str(port), "SPACE_ID": "me/labels", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "app.py"], cwd=tmp_path, env={**os.environ, **environment}) as process:
        try:
            for _ in range(240):
                assert process.poll() is None
                try:
                    with urlopen(f"http://127.0.0.1:{port}/config", timeout=5) as answer:
                        config = answer.read().decode()
                    break
                except OSError:
                    time.sleep(0.5)
            assert '"elem_id":"classes"' in config.replace(" ", "")
            assert "or name a folder" not in config
        finally:
            process.kill()
