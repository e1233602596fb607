"""A few answers estimate the change in accuracy without bias, and say how sure they are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import clip_tca
from clip_tca.cli import main
from clip_tca.labelling.change import interval, read_answers
from clip_tca.labelling.label import run_labelling
from clip_tca.labelling.page import ask_page
from tests.demo_files import write_demo
from tests.labelling.test_page import OUTSIDE, browser  # noqa: F401 (a fixture)
from tests.tiny_clip import MODEL


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """400 pictures; 60 labels changed: 33 to the right one, 15 from it, 12 from one wrong one to another."""
    true = np.array(["a", "b", "c"])[np.arange(400) % 3]
    other, third = (np.array(["a", "b", "c"])[(np.arange(400) + step) % 3] for step in (1, 2))
    before, after = true.copy(), true.copy()
    before[:33], after[33:48] = other[:33], third[33:48]
    before[48:60], after[48:60] = other[48:60], third[48:60]
    columns = {"file": [f"{i}.jpg" for i in range(400)], "label": after, "zero_shot": before, "true": true}
    return pd.DataFrame(columns).assign(changed=before != after)


def test_the_estimate_is_unbiased_and_its_interval_holds_the_truth(table):
    truth = 100 * ((table["label"] == table["true"]).mean() - (table["zero_shot"] == table["true"]).mean())
    assert truth == pytest.approx(100 * (33 - 15) / 400)
    found = []
    for seed in range(1500):
        drawn = clip_tca.sample_changed(table, 20, seed)
        found.append(clip_tca.estimate_change(table, dict(zip(drawn["file"], drawn["true"], strict=True))))
    points = np.array([change.points for change in found])
    assert abs(points.mean() - truth) < 4 * points.std() / len(points) ** 0.5
    assert np.mean([change.low <= truth <= change.high for change in found]) > 0.93
    assert points.std() > 1  # it does vary, so that the two lines above say something


def test_answers_for_all_changed_pictures_leave_no_doubt(table):
    everyone = clip_tca.sample_changed(table, 1000)
    assert len(everyone) == 60
    change = clip_tca.estimate_change(table, everyone[["file", "true"]].rename(columns={"true": "answer"}))
    assert (change.low, change.points, change.high) == pytest.approx((4.5, 4.5, 4.5))


def test_the_interval_is_that_of_bonett_and_price():
    # 9 of 20 gained and 3 lost: (10 − 4)/22 ± 1.96 √((14/22 − (6/22)²) / 22), by hand; hardly any of the m are known
    mean, low, high = interval(9, 3, 20, 10**9)
    assert (mean, low, high) == pytest.approx((0.3, 0.27273 - 0.31328, 0.27273 + 0.31328), abs=1e-4)
    assert interval(40, 0, 40, 10**9)[1] < 1  # all agree, and still it is not certain


def test_before_after_another_and_names_of_classes_are_understood(table):
    files = table[table["changed"]]["file"].tolist()
    words = ["after", "before", "another", "can't tell", "", table["label"][5], "After"]
    change = clip_tca.estimate_change(table, dict(zip(files, words, strict=False)))
    assert (change.answered, change.unknown, change.changed, change.pictures) == (5, 1, 60, 400)
    assert change.points == pytest.approx(15.0 * (1 - 1 + 0 + 1 + 1) / 5)  # 15 % changed


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"399.jpg": "after"}, "1 of 1 are about pictures whose label did not change here, such as 399.jpg"),
        ({"0.jpg": "can't tell"}, "none of 1 says what a picture shows"),
        (pd.DataFrame({"file": ["0.jpg"]}), "no column 'answer'; there are file"),
    ],
)
def test_answers_that_say_nothing_of_these_pictures_are_one_line(answers, reason, table):
    with pytest.raises(ValueError, match=reason):
        clip_tca.estimate_change(table, answers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_demo(tmp_path_factory.mktemp("demo"), ["icon", "sketch"], 3, 20)


def test_the_command_asks_and_counts_the_answers(folder, tmp_path, capsys):
    words = ["label", str(folder), "--classes", "airplane, bird, car", "--model", MODEL]
    assert main([*words, "-o", str(tmp_path / "labels.csv"), "--ask", "4"]) == 0
    table = pd.read_csv(tmp_path / "labels.csv")
    count = min(4, int(table["changed"].sum()))
    assert count > 0
    told = capsys.readouterr().out
    assert f"labels.ask.html asks about {count} of the changed pictures" in told
    assert told.splitlines()[-1].startswith(f"What next: open {tmp_path / 'labels.ask.html'} in a browser")
    changed = table[table["changed"]]
    changed[["file"]].assign(answer="before").to_csv(tmp_path / "answers.csv", index=False)
    answered = ["--answers", str(tmp_path / "answers.csv"), "--overwrite"]
    assert main([*words, "-o", str(tmp_path / "labels.csv"), *answered]) == 0
    lost = -100 * len(changed) / len(table)
    out = capsys.readouterr().out
    assert out.startswith(f"By {len(changed)} answers, accuracy changed by {lost:+.1f} points")
    assert "Verdict: a loss beyond chance, by your answers." in out
    (tmp_path / "answers.csv").write_text("file,answer\nelsewhere.jpg,after\n")
    assert main([*words, "--answers", str(tmp_path / "answers.csv"), "-o", str(tmp_path / "new.csv")]) == 1
    assert "such as elsewhere.jpg" in capsys.readouterr().err
    assert not (tmp_path / "new.csv").exists()


@pytest.mark.parametrize("width", [390, 1200])
def test_clicks_on_the_page_become_the_answers(width, folder, tmp_path, browser):  # noqa: F811
    found = run_labelling(folder, "airplane, bird, car", model=MODEL)
    text, count = ask_page(found, 4, "answers.csv")
    (tmp_path / "ask.html").write_text(text, encoding="utf-8")
    browser.open(tmp_path / "ask.html", width)
    assert browser.run(OUTSIDE) == []
    buttons = "document.querySelectorAll('.question')[{}].querySelector('[data-answer=\"{}\"]')"
    browser.click(buttons.format(0, "before"))
    browser.click(buttons.format(0, "after"))  # a second thought
    browser.click(buttons.format(1, "another"))
    assert browser.run("document.getElementById('count').textContent") == f"2 of {count} answered"
    saved = browser.run("decodeURIComponent(document.getElementById('save').href.split(',').slice(1).join(','))")
    (tmp_path / "answers.csv").write_text(saved, encoding="utf-8")
    answers = read_answers(tmp_path / "answers.csv")
    drawn = clip_tca.sample_changed(found.table, 4)
    assert answers["file"].tolist() == drawn["file"].tolist()
    assert answers["answer"].tolist()[:2] == ["after", "another"]
    change = clip_tca.estimate_change(found.table, answers)
    assert (change.answered, change.points) == (2, pytest.approx(50 * found.table["changed"].mean()))
    assert browser.complaints() == []
