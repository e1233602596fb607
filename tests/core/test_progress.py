"""Progress is a bar on a terminal, nothing elsewhere, and never in the way of a line that is printed."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from clip_tca.cli import print_warnings
from clip_tca.core import progress
from clip_tca.core.progress import Progress, tracked


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch, delay: float = 0.0) -> Terminal:
    """A terminal where bars are shown at once."""
    monkeypatch.setattr(progress, "DELAY", delay)
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def test_a_terminal_shows_a_bar_with_the_time_left_and_then_nothing(monkeypatch):
    screen = terminal(monkeypatch)
    with Progress(8, "encoding", "image", done=2) as bar:
        assert "encoding:  25%|" in screen.getvalue()
        bar.update(2)
        bar.refresh()
        assert "4 of 8, 00:00 left" in screen.getvalue()
    assert screen.getvalue().endswith("\r"), "the line must be empty at the end"
    with Progress(None, "reading demo", "image"):
        assert "reading demo …" in screen.getvalue()
    assert list(tracked("abc", 3, "adapting", "run")) == ["a", "b", "c"]
    assert "adapting:   0%|" in screen.getvalue()


@pytest.mark.parametrize(("stream", "shown"), [(Terminal, False), (io.StringIO, True)])
def test_hidden_work_and_pipes_show_nothing(monkeypatch, stream, shown):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", stream())
    with Progress(3, "hidden", "image", shown) as bar:
        bar.update(3)
    assert sys.stderr.getvalue() == ""


def test_short_work_shows_nothing(monkeypatch):
    screen = terminal(monkeypatch, progress.DELAY)
    with Progress(3, "quick", "image") as bar:
        bar.update(3)
    assert "quick" not in screen.getvalue()


def test_a_warning_takes_a_line_of_its_own_above_the_bar(monkeypatch):
    screen = terminal(monkeypatch)
    print_warnings()
    with Progress(8, "encoding", "image"):
        logging.getLogger("clip_tca").warning("a warning")
    assert "\rclip-tca: a warning\n" in screen.getvalue()
