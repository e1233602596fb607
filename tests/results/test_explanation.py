"""``clip-tca explain``: records and states in words, and bad files in one line."""

from __future__ import annotations

import itertools
import json
import re
from math import comb

import pytest

from clip_tca import LinearTCA, evaluate
from clip_tca.cli import main
from clip_tca.results.explanation import closing, explain_record
from clip_tca.results.intervals import accuracy_interval, average_gain, gains, half_width, most_differing
from tests.test_explanation import GOOD


def test_a_careful_interval_needs_six_of_six():
    """As the exact sign test: six changed for the better are beyond chance (p = 1/32), five are not (p = 1/16)."""
    for m in range(1, 60):
        for gained in range(m % 2, m + 1, 2):
            p = 2 * sum(comb(m, i) for i in range((m - gained) // 2 + 1)) / 2**m
            assert p < 0.05 or gained <= half_width(m)
    assert half_width(6) < 6
    assert half_width(5) > 5
    assert half_width(0) == 0


def test_class_counts_bound_what_can_differ():
    """Compared with every pair of answers that has these counts."""
    for images, a, b in [(4, 1, 2), (4, 4, 4), (4, 0, 3), (3, 3, 2)]:
        told = [{"per_class": {"x": {"correct": c, "images": images}}} for c in (a, b)]
        answers = [set(map(frozenset, itertools.combinations(range(images), count))) for count in (a, b)]
        assert most_differing(*told) == max(len(x ^ y) for x in answers[0] for y in answers[1])


def row(method, correct, changed=None, images=20, seed=0):
    told = {"method": method, "domain": "d", "seed": seed, "correct": correct, "images": images, "divisor": images}
    told["per_class"] = {"ant": {"correct": correct, "images": images}}
    return told if changed is None else told | {"diagnosis": GOOD | {"changed": changed}}


def test_gains_by_hand():
    """Over zero-shot, wherever it stands, or over the base method; half widths by changed predictions or by bounds."""
    rows = [row("linear-tca", 13 + seed, 0.25, seed=seed) for seed in (0, 1)]
    rows += [row(name, correct, seed=seed) for name, correct in (("t3a", 11), ("zero-shot", 10)) for seed in (0, 1)]
    found = gains([*rows, *(row("t3a+tca", 10, 0.05, seed=seed) for seed in (0, 1))])["d"]
    assert found == {
        "linear-tca": ("zero-shot", 17.5, pytest.approx(100 * (1.96 * 5**0.5 + 1) / 20), "chance"),
        "t3a": ("zero-shot", 5.0, pytest.approx(100 * (1.96 * 19**0.5 + 1) / 20), "chance"),
        "zero-shot": None,
        "t3a+tca": ("t3a", -5.0, pytest.approx(100 * (1.96 + 1) / 20), "chance"),
    }


def test_runs_that_drew_different_numbers_of_images_each_have_their_own_divisor():
    """Five of ten and five of twenty before; two more are right each time: 20 points and 10 points."""
    rows = [row(name, n, images=10 + 10 * s, seed=s) for name, n in (("zero-shot", 5), ("t3a", 7)) for s in (0, 1)]
    assert gains(rows)["d"]["t3a"].points == 15.0


def test_intervals_by_hand_and_gains_over_zero_shot_when_the_base_method_is_there():
    """Wilson's interval of 8 right of 10 is in his formula's textbook examples: 49.0 to 94.3 %."""
    assert accuracy_interval(8, 10) == pytest.approx((49.0, 94.3), abs=0.05)
    assert accuracy_interval(10, 10)[1] == pytest.approx(100)
    rows = [{**row(name, right), "changed": 4} for name, right in (("zero-shot", 10), ("t3a", 11), ("t3a+tca", 16))]
    rows += [{**each, "domain": "e"} for each in rows]
    half = 100 * (1.96 * 2 + 1) / 20
    found = average_gain(rows, "t3a+tca")
    assert found == ("zero-shot", 30.0, pytest.approx(half / 2**0.5), "gain")
    assert average_gain(rows, "zero-shot") is None


@pytest.fixture(scope="module")
def record():
    return evaluate("synthetic", methods=("zero-shot", "linear-tca", "linear-tca:reference"), seeds=2)


def test_a_record_is_explained_domain_by_domain(record, tmp_path, capsys):
    (tmp_path / "r.json").write_text(json.dumps({"records": [record, record]}))
    assert main(["explain", str(tmp_path / "r.json")]) == 0
    text = capsys.readouterr().out
    assert text == "\n\n".join(["\n".join(explain_record(record))] * 2) + "\n"
    assert "ORACLE: linear-tca:reference counted true labels" in text
    rows = {line.split()[0]: line for line in text.split("shifted: 1440 images")[1].splitlines()[2:6]}
    assert " gain " in rows["linear-tca"]
    assert rows["linear-tca"].endswith("can't tell")
    assert "(oracle: uses true labels)" in rows["linear-tca:reference"]
    assert rows["linear-tca:reference"].endswith("none: an oracle")
    assert "linear-tca: shift 0.44 of the spread; 120 chosen; moved 0.71." in text
    assert re.search(r"Of 100 images, zero-shot gets \d+ right, and linear-tca \d+ \(\+\d", text)


def test_an_evaluation_ends_with_what_changed_the_labels_verdict_and_what_next(record):
    rows = [row for row in record["rows"] if row["method"] == "linear-tca" and row["seed"] == 0]
    images, changed = (sum(row[name] for row in rows) for name in ("images", "changed"))
    lines = closing(record)
    assert lines[0] == f"linear-tca changed {changed} of {images} predictions ({changed / images:.1%})."
    assert "Verdict on shifted: a gain beyond chance, by the labels." in lines
    assert lines[-1].startswith("What next: ")
    assert all(row["changed"] == row["diagnosis"]["changed"] * row["images"] for row in rows)
    assert all(row["changed"] == 0 for row in record["rows"] if row["method"] == "zero-shot")
    alone = evaluate("synthetic", methods=["zero-shot"])
    assert closing(alone) == []


def test_a_stream_and_a_record_without_zero_shot_say_what_is_missing():
    online = evaluate("synthetic", methods=["zero-shot", "linear-tca"], setting="online")
    assert explain_record(online)[-1] == "It has no diagnosis: only adapters have one, in the transductive setting."
    alone = evaluate("synthetic", methods=["linear-tca"])
    assert any("no zero-shot row" in line for line in explain_record(alone))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"[1, 2]", "not a saved clip-tca state"),
        (b'{"rows": [', "not a record of clip-tca eval"),
        ("half a state", "damaged"),
    ],
)
def test_bad_files_are_one_line(content, message, shifted, tmp_path, capsys):
    path = tmp_path / "f"
    if content == "half a state":
        LinearTCA(shifted.g).fit(shifted.z).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif content is not None:
        path.write_bytes(content)
    capsys.readouterr()  # what fitting says
    assert main(["explain", str(path)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
