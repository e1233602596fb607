from __future__ import annotations

import io
import re
import sys
import threading
import time

import pytest

from clip_tca.core import progress
from clip_tca.core.progress import Progress, parts, set_aside, tracked


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def fast(monkeypatch):
    """The same clockwork, a hundred times faster; no line is due yet."""
    for name, seconds in {"DELAY": 0.02, "REDRAW": 0.005, "LINE": 0.05}.items():
        monkeypatch.setattr(progress, name, seconds)
    monkeypatch.setattr(progress._screen, "said", None)


def shown(monkeypatch, stream: io.StringIO) -> io.StringIO:
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "not shown in 20 seconds"
        time.sleep(0.005)


def test_a_terminal_shows_one_bar_with_rate_and_time_left_and_then_nothing(monkeypatch, fast):
    screen = shown(monkeypatch, Terminal())
    with Progress(8, "encoding", "image") as bar:
        bar.update(2)
        until(lambda: "2/8" in screen.getvalue())
    text = screen.getvalue()
    assert re.search(r"\rencoding:  25%\|.*\| 2/8 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+image/s\]", text)
    assert "\n" not in text
    assert re.search(r"\r +\r$", text), "the line must be empty at the end"


def test_a_step_of_minutes_shows_that_time_passes(monkeypatch, fast):
    screen = shown(monkeypatch, Terminal())
    with Progress(8, "tent icon", "image"):
        until(lambda: screen.getvalue().count("tent icon:   0%") > 2)


def test_the_time_left_does_not_grow_while_a_step_is_under_way(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = Progress(10, "tent", "image", shown=False, done=2)
    now[0] = 20.0
    bar.update(4)
    for now[0] in (20.0, 50.0):
        assert "6/10 [00:" in bar.text([], 80)
        assert "<00:20,  5.00s/image]" in bar.text([], 80)


def test_a_batch_of_many_images_moves_with_its_steps(monkeypatch, fast):
    screen = shown(monkeypatch, Terminal())
    with Progress(256, "tent icon", "image") as bar:
        bar.next = 128
        for step in parts(4):
            until(lambda step=step: f"| {32 * step}/256 " in screen.getvalue())
        bar.update(128)
        until(lambda: "| 128/256 " in screen.getvalue())
    assert list(parts(2)) == [0, 1], "where nothing is shown"


def test_inner_work_is_shown_with_the_place_of_what_is_around_it(monkeypatch, fast):
    screen = shown(monkeypatch, Terminal())
    for number, _ in enumerate(tracked("abc", 3, "adapting", "run")):
        if number == 1:
            with Progress(40, "tent icon", "image") as bar:
                bar.update(10)
                until(lambda: "adapting 2/3, tent icon:  25%" in screen.getvalue())
    with Progress(1, "adapting", "run"), Progress(40, "tent photo", "image"):
        until(lambda: "\rtent photo:   0%" in screen.getvalue())
    with Progress(None, "study map", "step"):
        until(lambda: "\rstudy map [00:00]" in screen.getvalue())


def test_elsewhere_there_is_a_line_each_half_minute(monkeypatch, fast):
    assert progress.LINE == 0.05
    log = shown(monkeypatch, io.StringIO())
    with Progress(5_000_000, "downloading", "B", done=1_000_000) as bar:
        bar.update(1_000_000)
        until(lambda: log.getvalue().count("\n") >= 2)
        lines = log.getvalue().splitlines()
    expected = r"clip-tca: downloading: 2.00M of 5.00MB, .*B/s, \d\d:\d\d, \d\d:\d\d left"
    assert all(re.fullmatch(expected, line) for line in lines)
    assert "\r" not in log.getvalue()


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_short_or_hidden_work_shows_nothing(monkeypatch, stream):
    out = shown(monkeypatch, stream())
    with Progress(3, "quick", "image") as bar:
        bar.update(3)
    with Progress(3, "hidden", "image", shown=False) as bar:
        bar.update(3)
    assert (progress.DELAY, progress.LINE) == (2.0, 30.0)
    assert out.getvalue() == ""
    until(lambda: not any(thread.name == "progress" for thread in threading.enumerate()))


def test_a_warning_takes_the_place_of_the_bar(monkeypatch, fast):
    screen = shown(monkeypatch, Terminal())
    with Progress(8, "encoding", "image"):
        until(lambda: "encoding" in screen.getvalue())
        with set_aside():
            print("clip-tca: a warning", file=sys.stderr)
    assert re.search(r"\r +\rclip-tca: a warning\n", screen.getvalue())


def test_work_that_fails_leaves_no_bar_and_no_thread(monkeypatch, fast):
    screen = shown(monkeypatch, Terminal())

    def fail():
        with Progress(8, "encoding", "image"):
            until(lambda: "encoding" in screen.getvalue())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert screen.getvalue().endswith("\r")
    until(lambda: not any(thread.name == "progress" for thread in threading.enumerate()))
