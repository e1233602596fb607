"""When a stream is solved again."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from clip_tca.adapters.schedule import Schedule


def solutions(rows, batch=1, overruled=lambda _rows: 0, judged=True, classes=8):
    """After how many images a stream of ``rows`` is solved, when every batch is predicted."""
    schedule, seen, found = Schedule(classes), 0, []
    about = [(rows[0], torch.tensor(0.0))]
    for part in rows.split(batch):
        seen += len(part)
        schedule.add(len(part), part if judged and found else None)
        if not found or schedule.due(seen, overruled, lambda: about[-1]):
            schedule.solved()
            found.append(seen)
            about.append((rows[:seen].mean(dim=0), rows[:seen].var(dim=0, correction=0).sum()))
    return found


@pytest.fixture
def rows():
    return torch.randn(3000, 64, generator=torch.Generator().manual_seed(0))


def gaps(found, beyond=200):
    return [(b - a) / b for a, b in pairwise(found) if a > beyond]


@pytest.mark.parametrize("batch", [1, 16, 300])
def test_a_steady_stream_waits_for_a_quarter_then_for_half(rows, batch):
    found = solutions(rows, batch)
    early = gaps([n for n in found if n < 512])
    assert all(share >= 0.24 for share in early)
    assert all(share >= 0.49 for share in gaps(found, 512))


@pytest.mark.parametrize("batch", [1, 16])
def test_a_stream_that_changes_is_solved_when_a_tenth_is_new(rows, batch):
    drifting = rows + torch.linspace(0, 30, len(rows))[:, None]
    few = gaps([n for n in solutions(drifting, batch) if n < 2048])
    assert max(few) < 0.15
    assert len(solutions(drifting, batch)) > 1.4 * len(solutions(rows, batch))


def test_many_classes_need_more_images_before_a_stream_may_wait(rows):
    assert max(gaps([n for n in solutions(rows, classes=100) if n < 1600])) < 0.13
    assert min(gaps(solutions(rows, classes=100), 1900)) >= 0.24


def test_nothing_is_known_of_rows_that_are_not_given(rows):
    shares = gaps([n for n in solutions(rows, judged=False) if n < 2048])
    assert max(shares) < 0.11


def test_a_change_in_the_middle_is_noticed_within_a_tenth(rows):
    changed = torch.cat([rows[:1600], rows[1600:2000] + 1])
    found = solutions(changed)
    assert any(1600 < n <= 1800 for n in found)
    assert not any(1600 < n <= 1800 for n in solutions(rows[:2000]))


def test_a_map_that_overrules_g_is_solved_at_once(rows):
    marked = rows.clone()
    marked[:, 0] = 0
    marked[1700:, 0] = 1  # too little to change the mean by much
    found = solutions(marked, overruled=lambda new: int(new[:, 0].sum()))
    assert any(1700 < n <= 1732 for n in found)
    assert not any(1700 < n <= 1732 for n in solutions(marked))


def test_what_overrules_all_the_time_becomes_usual(rows):
    found = solutions(rows, overruled=len)
    assert all(share >= 0.24 for share in gaps(found, 1000))
