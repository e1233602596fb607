"""The board: a row for each method of each record, compared only where it can be, and every name is text."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from urllib.parse import unquote

import pytest

from clip_tca.cli import main
from clip_tca.report.board import board
from clip_tca.report.board_rows import read_entries
from tests import browser as chromium
from tests.records import HOSTILE, ORACLE, honest, hostile
from tests.report.test_page import Document

PROGRAM = chromium.find()


@pytest.fixture(scope="module")
def record() -> dict:
    return json.loads(json.dumps(honest()))


def scored(record: dict, correct: dict[str, int], **changes) -> dict:
    """The record with so many right answers of 1000 in each domain, by method; other methods have 100."""
    other = {**copy.deepcopy(record), **changes}
    for row in other["rows"]:
        right = correct.get(row["method"], 100)
        row.update(correct=right, images=1000, divisor=1000, accuracy=right / 10)
        first, *rest = row["per_class"].values()
        first.update(correct=right, images=1000, accuracy=right / 10)
        for score in rest:
            score.update(correct=0, images=0, accuracy=None)
    return other


def written(folder: Path, **records: dict) -> list[Path]:
    paths = [folder / f"{name}.json" for name in records]
    for path, content in zip(paths, records.values(), strict=True):
        path.write_text(json.dumps(content))
    return paths


def table(html: str, number: int) -> str:
    """The HTML of the matrix (0) or of the long table (1)."""
    return html.split('<table class="sortable">')[number + 1].split("</table>")[0]


# -- rows --------------------------------------------------------------------------------------------------------------


def test_a_row_has_average_gain_runs_and_domains_by_hand(record, tmp_path):
    """Two domains with 70.0 and 72.0 against 68.0 and 69.0: 71.0 is a gain of 2.5."""
    content = scored(record, {})
    right = {("zero-shot", "clean"): 680, ("zero-shot", "skewed"): 690}
    right |= {("linear-tca", "clean"): 700, ("linear-tca", "skewed"): 720}
    for row in content["rows"]:
        number = right.get((row["method"], row["domain"]), 100)
        row.update(correct=number, accuracy=number / 10)
        next(iter(row["per_class"].values())).update(correct=number, accuracy=number / 10)
    entries, left_out = read_entries(written(tmp_path, one=content))
    assert left_out == []
    by_method = {entry.traits["method"]: entry for entry in entries}
    assert list(by_method) == ["zero-shot", "linear-tca", "conditional-tca", f"{ORACLE} (oracle)"]
    linear = by_method["linear-tca"]
    assert (linear.average, linear.gain, linear.runs) == (pytest.approx(71.0), pytest.approx(2.5), 1)
    assert linear.domains == {"clean": (70.0, 0.0), "skewed": (72.0, 0.0)}
    assert [entry.oracle for entry in entries] == [False, False, False, True]


def test_runs_deviate_by_their_averages_by_hand(record, tmp_path):
    """Averages of 70 and 72 over the domains deviate by 1, although those of the domains do by 11 and 13."""
    content = scored(record, {}, seeds=[0, 1])
    content["rows"] += [{**copy.deepcopy(row), "seed": 1} for row in content["rows"]]
    right = {("clean", 0): 800, ("skewed", 0): 600, ("clean", 1): 580, ("skewed", 1): 860}
    for row in content["rows"]:
        number = right[row["domain"], row["seed"]]
        row.update(correct=number, accuracy=number / 10)
        next(iter(row["per_class"].values())).update(correct=number, accuracy=number / 10)
    entry = read_entries(written(tmp_path, two=content))[0][0]
    assert (entry.average, entry.deviation, entry.runs) == (pytest.approx(71.0), pytest.approx(1.0), 2)


def test_further_measures_streams_and_natures_are_shown_where_a_record_has_them(record, tmp_path):
    more = copy.deepcopy(record)
    more["stream"] = {
        "kind": "dirichlet",
        "gamma": 0.1,
        "classes_present": [2, 5],
        "long_tail": None,
        "mix_domains": True,
    }
    more["methods"][1] |= {"nature": "transductive", "tuned_on_test": "the learning rate"}
    for i, row in enumerate(more["rows"]):
        row["metrics"] = {"macro_f1": 60.0 + i, "ece": 0.125, "unknown_auroc": None if i else 0.5}
    entries, _ = read_entries(written(tmp_path, more=more))
    rows = [i for i, row in enumerate(more["rows"]) if row["method"] == "linear-tca"]
    assert entries[1].measures == {"macro_f1": pytest.approx(60 + sum(rows) / 2), "ece": 0.125}
    assert entries[1].traits["stream"] == "Dirichlet stream γ = 0.1, 2–5 classes, domains mixed"
    assert [entry.traits["nature"] for entry in entries[:2]] == ["", "transductive"]
    shown = Document(board(entries, tmp_path / "b.html")).text()
    assert "macro f1" in shown
    assert "0.1250" in shown
    assert "the learning rate" in shown
    assert f"{entries[1].average:.2f}†" in shown
    shuffled = copy.deepcopy(record)
    for row in shuffled["rows"]:
        del row["metrics"]
    older = {name: value for name, value in shuffled.items() if name != "stream"}
    without, _ = read_entries(written(tmp_path, shuffled=shuffled, older=older))
    assert {entry.traits["stream"] for entry in without} == {""}
    plain = Document(board(without, tmp_path / "b.html")).text()
    assert "macro" not in plain
    assert "†" not in plain


def test_what_differs_between_rows_of_one_name_is_in_their_names(record, tmp_path):
    seed = copy.deepcopy(record)
    seed["data"]["origin"]["seed"] = 7
    k = copy.deepcopy(record)
    k["methods"][1]["parameters"]["k"] = 5
    entries, _ = read_entries(written(tmp_path, one=record, seed=seed, k=k))
    assert {entry.traits["data set"] for entry in entries} == {"synthetic (seed 0)", "synthetic (seed 7)"}
    options = {(entry.label, entry.traits["method"]): entry.traits["options"] for entry in entries}
    assert options["k.json", "linear-tca"] == "k = 5"
    assert options["one.json", "linear-tca"].startswith("k = ")
    assert options["k.json", "conditional-tca"] == options["k.json", "zero-shot"] == ""


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_best_is_bold_among_comparable_rows_without_labels(record, tmp_path):
    whole = scored(record, {"zero-shot": 700, "linear-tca": 720, ORACLE: 990})
    online = scored(record, {"zero-shot": 700, "linear-tca": 650}, setting="online")
    entries, _ = read_entries(written(tmp_path, whole=whole, online=online))
    html = board(entries, tmp_path / "b.html")
    parts = table(html, 0).split("<tbody>")[1:]
    assert [part.split("<span>")[1].split("<")[0] for part in parts] == ["online", "transductive"]
    assert [part.count("<strong>") for part in parts] == [1, 1]
    assert ">70.00</a></strong>" in parts[0]
    assert ">72.00</a></strong>" in parts[1]
    assert ">99.00</a></td>" in parts[1]
    assert 'class="oracle"' in parts[1]


def test_the_same_run_twice_is_two_rows_with_their_file_names(record, tmp_path):
    again = {**record, "cost": {**record["cost"], "encoding_seconds": 12.5}}
    html = board(read_entries(written(tmp_path, one=record, again=again))[0], tmp_path / "b.html")
    rows = table(html, 1)
    assert rows.count("data-row=") == 2 * len(record["methods"])
    assert ">one.json</a></td>" in rows
    assert ">again.json</a></td>" in rows


def test_links_lead_from_the_board_to_its_records(record, tmp_path, capsys):
    names = ("plain.json", "javascript:alert(1).json", "größe #1 %41?.json")
    for i, name in enumerate(names):
        folder = tmp_path / "some results"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps({**record, "commit": str(i)}))
    place = tmp_path / "pages" / "b.html"
    place.parent.mkdir()
    assert main(["report", str(tmp_path / "some results"), "--board", "-o", str(place)]) == 0
    links = {a["href"] for a in Document(place.read_text(encoding="utf-8")).all("a")}
    targets = {link for link in links if not link.startswith("#")}
    assert all(link.startswith("../some%20results/") for link in targets)
    assert {(place.parent / unquote(link)).resolve().name for link in targets} == set(names)
    beside = board(read_entries([tmp_path / "some results"])[0], tmp_path / "some results" / "b.html")
    assert 'href="javascript%3Aalert%281%29.json"' in beside


def test_names_are_text_wherever_they_stand(record, tmp_path):
    entries, _ = read_entries(written(tmp_path, odd=hostile(record), plain=record))
    found = Document(board(entries, tmp_path / "b.html"))
    known = {
        tag for tag, _ in Document(board(read_entries([tmp_path / "plain.json"])[0], tmp_path / "b.html")).elements
    }
    assert {tag for tag, _ in found.elements} <= known
    assert len(found.all("script")) == len(found.all("style")) == len(found.all("title")) == 1
    for _, attributes in found.elements:
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "#").startswith(("#", "odd.json", "plain.json"))
    assert HOSTILE[0] in found.text()
    (meta,) = [one for one in found.all("meta") if "http-equiv" in one]
    assert meta["content"].startswith("default-src 'none'; ")


# -- what is no record -------------------------------------------------------------------------------------------------


def test_what_can_not_be_on_a_board_is_one_line_that_says_what_it_is(record, tmp_path, capsys):
    written(tmp_path, one=record, two=record, study={"study": "k"}, job={"command": "adapt", "schema_version": 1})
    (tmp_path / "e.safetensors").write_bytes(b"\0" * 16)
    (tmp_path / "empty").mkdir()
    for names, reason in {
        ("study.json",): "study.json: a record of clip-tca study; a board takes records of clip-tca eval only",
        ("job.json",): "job.json: a record of clip-tca adapt; a board takes records of clip-tca eval only",
        ("e.safetensors",): "e.safetensors: an embedding file; a board is made of records",
        ("one.json", "two.json"): f"two.json: the same content as {tmp_path / 'one.json'}; leave one of them out",
        ("empty",): "empty: no .json file in this folder",
        ("none.json",): "none.json: no such file",
    }.items():
        files = [str(tmp_path / name) for name in names]
        assert main(["report", *files, "--board", "-o", str(tmp_path / "b.html")]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line
        assert not (tmp_path / "b.html").exists()
    with pytest.raises(SystemExit) as stop:
        main(["report", "--board", "-o", str(tmp_path / "b.html")])
    assert stop.value.code == 2


def test_of_a_folder_the_records_of_other_commands_are_left_out_by_name(record, tmp_path, capsys):
    written(tmp_path, one=record, study={"study": "k"})
    assert main(["report", str(tmp_path), "--board", "-o", str(tmp_path / "b.html")]) == 0
    assert capsys.readouterr().err == f"left out, not records of clip-tca eval: {tmp_path / 'study.json'}\n"
    (tmp_path / "one.json").unlink()
    assert main(["report", str(tmp_path), "--board", "-o", str(tmp_path / "c.html")]) == 1
    assert "no record of clip-tca eval in this folder" in capsys.readouterr().err


# -- in the browser ----------------------------------------------------------------------------------------------------

ROWS = "[...document.querySelectorAll('#rows tbody tr')].filter(row => !row.hidden)"
HEADS = "[...document.querySelectorAll('#rows thead th')]"
GAIN = f"{HEADS}.findIndex(head => head.textContent === 'gain')"


@pytest.fixture(scope="module")
def many(record, tmp_path_factory) -> Path:
    """A board of 300 rows."""
    folder = tmp_path_factory.mktemp("board")
    bare = copy.deepcopy(record)
    for row in bare["rows"]:
        row.pop("confusion")
    records = {}
    for i in range(75):
        correct = {"zero-shot": 700, "linear-tca": 700 + 7 * (i % 40) - 90, "conditional-tca": 705, ORACLE: 900}
        settings = {"setting": ("transductive", "online")[i % 2], "dataset": f"set {i % 5}", "commit": str(i)}
        records[f"r{i}"] = scored(bare, correct, **settings)
    entries, _ = read_entries(written(folder, **records))
    path = folder / "board.html"
    path.write_text(board(entries, path), encoding="utf-8")
    return path


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium")
def test_three_hundred_rows_sort_filter_open_and_lead_to_their_records(many):
    browser = chromium.Browser(PROGRAM)
    try:
        for width in (390, 1280):
            browser.open(many, width)
            assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(f"{ROWS}.length") == 300
        gains = f"{ROWS}.map(row => parseFloat(row.cells[{GAIN}].textContent.replace('−', '-')))"
        browser.click(f"{HEADS}[{GAIN}].firstElementChild")
        found = browser.run(gains)
        assert found == sorted(found, reverse=True)
        assert (found[0], found[-1]) == (20.0, -9.0)
        assert browser.run(f"{HEADS}[{GAIN}].ariaSort") == "descending"

        choose = "(s => { s.value = VALUE; s.dispatchEvent(new Event('input', {bubbles: true})) })"
        select = "(document.querySelector('select[name=\"NAME\"]'))"
        browser.run(choose.replace("VALUE", "'linear-tca'") + select.replace("NAME", "method"))
        browser.run(choose.replace("VALUE", "'online'") + select.replace("NAME", "setting"))
        assert browser.run(f"[...new Set({ROWS}.map(row => row.cells[0].textContent))]") == ["linear-tca"]
        assert browser.run("document.querySelector('output').textContent") == "37 of 300 rows"
        left = browser.run("[...document.querySelectorAll('#matrix a')].filter(a => a.offsetParent).length")
        assert left == 37
        browser.run("document.querySelector('input').focus()")
        browser.send("Input.insertText", text="set 3 r13.json")
        assert browser.run(f"{ROWS}.map(row => row.querySelector('td a').textContent)") == ["r13.json"]
        columns = "[...document.querySelectorAll('#matrix thead th')].filter(h => !h.hidden).map(h => h.textContent)"
        assert browser.run(columns) == ["method", "set 3"]

        browser.click(f"{ROWS}[0].querySelector('button')")
        assert browser.run("document.querySelector('#drawer').open")
        assert "skewed" in browser.run("document.querySelector('#drawer').textContent")
        browser.press("Escape", 27)
        assert not browser.run("document.querySelector('#drawer').open")
        browser.click("document.querySelector('#filters button')")
        assert browser.run(f"{ROWS}.length") == 300
        assert browser.complaints() == []
        assert all(address.startswith("file:") for address in browser.requests())
        browser.events.clear()
        browser.click("[...document.querySelectorAll('#matrix a')].find(a => a.offsetParent)")
        browser.wait("Page.loadEventFired")
        assert browser.run("location.pathname.endsWith('.json')")
        assert json.loads(browser.run("document.querySelector('pre').textContent"))["schema_version"] == 1
    finally:
        browser.close()
