"""The report: every number is the record's, every name is text, and the page needs nothing but itself."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from clip_tca.cli import main
from clip_tca.core.checks import visible
from clip_tca.report.page import Run, Sources, Study, limits, page, pooled, read
from clip_tca.report.templating import signed
from clip_tca.results.table import accuracy_table
from tests.records import HOSTILE, ORACLE, honest, hostile, scored


class Document(HTMLParser):
    """What a browser would see: elements with their attributes, and text by the element that holds it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, {name: " ".join((value or "").split()) for name, value in attrs}))
        if tag not in ("img", "input", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def text(self) -> str:
        return " ".join(" ".join(data for where, data in self.texts if where not in ("script", "style")).split())

    def all(self, name: str, **wanted: str) -> list[dict[str, str | None]]:
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in wanted.items()}
        return [found for tag, found in self.elements if tag == name and wanted.items() <= found.items()]


def shown(record: dict) -> Document:
    return Document(page(Sources([Run("one", record)])))


@pytest.fixture(scope="module")
def document(record) -> Document:
    return shown(record)


def test_a_screen_reader_finds_sections_headings_and_tables(document):
    for title in ("Accuracy", "Gains by domain", "Classes that gained", "Confusion before", "Examples of", "Cost"):
        assert title in document.text()
    assert "Left out" not in document.text()
    assert [len(document.all(name)) for name in ("main", "header", "nav", "h1")] == [1, 1, 1, 1]
    levels = [int(tag[1]) for tag, _ in document.elements if re.fullmatch(r"h\d", tag)]
    assert all(now - before <= 1 for before, now in zip([0, *levels], levels, strict=False))
    anchors = {found["href"] for found in document.all("a") if found["href"].startswith("#")}
    ids = [found["id"] for _, found in document.elements if "id" in found]
    assert anchors <= {f"#{name}" for name in ids}
    assert len(ids) == len(set(ids))
    assert document.all("html", lang="en")
    boxes = document.all("div", class_="scroll", role="region", tabindex="0")
    assert len(document.all("table")) == len(document.all("caption")) == len(boxes)
    assert all(box["aria-label"] for box in boxes)
    assert all(found.get("scope") in ("col", "row", "rowgroup") for found in document.all("th"))
    assert len(document.all("button", type="button")) == len(document.all("th", aria_sort="none")) > 20


def test_the_table_is_that_of_eval(record, document):
    texts = {text for _, text in document.texts}
    for line in accuracy_table(record).sections[0][1]:
        assert {cell.replace("-", "−", 1) if i else cell for i, cell in enumerate(line)} <= texts


def test_gains_are_the_difference_of_accuracies_and_bars_stay_in_their_panel(record, document):
    accuracy = {(row["method"], row["domain"]): row["accuracy"] for row in record["rows"]}
    labels = [found["aria-label"] for found in document.all("svg", role="img")]
    assert len(labels) == 1 + len(record["data"]["domains"])
    for domain in record["data"]["domains"]:
        gain = accuracy["linear-tca", domain] - accuracy["zero-shot", domain]
        assert any(f"on {domain}," in label and f"linear-tca {signed(gain)}" in label for label in labels)
    bars = [found for found in document.all("rect") if "bar" in found["class"]]
    assert all(float(bar["x"][:-1]) >= 0 and float(bar["x"][:-1]) + float(bar["width"][:-1]) <= 100.01 for bar in bars)
    assert sum("oracle" in bar["class"] for bar in bars) == len(labels)


@pytest.mark.parametrize(
    ("values", "scale"),
    [([0.2, -0.1], (-0.5, 0.5)), ([11.1, 0.0], (0.0, 15.0)), ([-3.0, 1.4], (-3.0, 1.5)), ([], (0, 0.5))],
)
def test_the_scale_holds_all_values_and_zero(values, scale):
    assert limits(values) == scale


def test_class_changes_by_hand(record):
    """One class's change in one domain, from the counts."""
    rows = {(row["method"], row["domain"]): row["per_class"] for row in record["rows"]}
    name = record["data"]["classes"][0]
    before, after = (rows[method, "skewed"][name] for method in ("zero-shot", "linear-tca"))
    change = 100 * (after["correct"] - before["correct"]) / before["images"]
    note = f"{before['accuracy']:.1f} % before, {after['accuracy']:.1f} % after, {before['images']} images"
    assert f'title="{note}">{signed(change, 1)}</td>' in page(Sources([Run("one", record)]))


def test_every_mention_of_an_oracle_says_so(document):
    places = [text for _, text in document.texts if ORACLE in text]
    places += [value for _, found in document.elements for value in found.values() if value and ORACLE in value]
    assert len(places) >= 8
    for text in places:
        assert text.count(ORACLE) == len(re.findall(rf"{ORACLE} \(oracle", text)), text


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (7, "linear-tca has the highest average: +0.70 points over zero-shot; it gained in 2 and lost in 0 of 2"),
        (0, "none has a higher average than zero-shot; linear-tca has the same, and it gained in 0 and lost in 0"),
        (-7, "none has a higher average than zero-shot; linear-tca comes closest at −0.70 points; it gained in 0"),
    ],
)
def test_the_finding_never_praises_an_oracle_and_says_when_nothing_helped(change, finding, record):
    assert finding in shown(scored(record, {"zero-shot": 700, "linear-tca": 700 + change, ORACLE: 990})).text()


def test_the_interval_of_the_gain_stands_under_the_headline(record):
    told = scored(record, {"zero-shot": 700, "linear-tca": 800, ORACLE: 990})
    for row in told["rows"]:
        row["changed"] = 400
    half = 100 * (1.96 * 20 + 1) / 1000 / 2**0.5  # the mean of two domains, of 400 changed images of 1000
    text = shown(told).text()
    assert f"95 % interval of the change: {10 - half:+.1f} to {10 + half:+.1f} points." in text
    assert "Verdict: a gain beyond chance, by the labels." in text
    assert text.startswith("synthetic: 70.00 % → 80.00 % – clip-tca")


def test_what_a_record_has_not_is_left_out_by_name(record):
    bare = {key: value for key, value in record.items() if key != "examples"}
    bare["rows"] = [row for row in record["rows"] if row["method"] != "zero-shot"]
    text = shown(bare).text()
    assert text.count("no zero-shot rows to compare with") == 3
    assert "Examples of changed predictions: the record has no pictures; run eval with --examples 6." in text


def test_seeds_are_averaged_and_counted_together():
    run = Run("two", honest(seeds=2, examples=0))
    rows = [row for row in run.record["rows"] if (row["method"], row["domain"]) == ("linear-tca", "skewed")]
    assert run.accuracy("linear-tca", "skewed") == pytest.approx(sum(row["accuracy"] for row in rows) / 2)
    matrix = run.confusion("linear-tca", "skewed")
    assert matrix.tolist() == (np.array(rows[0]["confusion"]) + rows[1]["confusion"]).tolist()
    assert "mean of 2 runs" in shown(run.record).text()


def test_of_a_thousand_classes_the_largest_changes_and_confusions_are_listed(record):
    """Class 7 is called 9 and class 700 gains: of 50 images, 20 are right before, 21 after, and 30 of class 700."""
    many = copy.deepcopy(record)
    names = many["data"]["classes"] = [f"class {i}" for i in range(1000)]
    for row in many["rows"]:
        right = [20 if row["method"] == "zero-shot" else 21 + (i == 700) * 9 for i in range(1000)]
        matrix = np.diag(right)
        matrix[np.arange(1000), np.arange(1000) - 1] = 50 - np.array(right)
        matrix[7] = 50 * (np.arange(1000) == 9)
        row["confusion"] = matrix.tolist()
        row["per_class"] = {
            n: {"correct": c, "images": 50, "accuracy": 2.0 * c} for n, c in zip(names, right, strict=True)
        }
    html = page(Sources([Run("many", many)]))
    assert len(html) < 1_000_000
    classes, confusions = html.split("Classes that gained and lost</h3>")[1].split("Confusion before and after</h3>")
    assert "the 100 of 1,000 classes that changed most" in classes
    assert 'scope="row">class 700</th>' in classes
    assert 'scope="row">class 750</th>' not in classes
    first = r'scope="row">class 7</th>\s*<td class="short">class 9</td>\s*<td class="number">100.0</td>'
    assert re.search(first, confusions)


def test_a_large_record_is_only_named(record):
    found = Document(page(Sources([Run("one", record)], [], [("small.json", b"{}"), ("big.json", b" " * 1_500_000)])))
    assert [link["download"] for link in found.all("a") if "download" in link] == ["small.json"]
    assert "big.json (too large for this page) 1,500 kB" in found.text()


def test_a_reliability_diagram_pools_domains_and_runs_by_hand():
    """One image with confidence 60 that is right, three with 64 of which none is: 63 and 25 together."""
    one = {"count": [0, 1], "confidence": [None, 60.0], "accuracy": [None, 100.0]}
    three = {"count": [0, 3], "confidence": [None, 64.0], "accuracy": [None, 0.0]}
    assert pooled([one, three]) == [None, (4, 63.0, 25.0)]


def test_names_are_text_wherever_they_stand(record, document, tmp_path, capsys):
    file = tmp_path / f"{HOSTILE[0].replace('/', '')} 'é\".json"
    file.write_text(json.dumps(hostile(record)))
    assert main(["report", str(file), "-o", str(tmp_path / "r.html")]) == 0
    found = Document((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert len(found.all("script")) == len(found.all("style")) == len(found.all("title")) == 1
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in document.elements}
    for _, attributes in found.elements:
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "#").startswith(("#", "data:application/json;base64,"))
        assert "src" not in attributes
    for name in HOSTILE:
        assert found.text().count(visible(name)) > 10
    assert r"skewed \udcff\n" in found.text()
    assert r"clean \u202e" in found.text()  # a mark that turns what follows right to left
    (link,) = [a for a in found.all("a") if a.get("download")]
    assert link["download"] == file.name
    assert base64.b64decode(link["href"].split(",")[1]) == file.read_bytes()


@pytest.mark.parametrize("bad", ["", "not base64!", base64.b64encode(b"<svg onload=x>").decode(), 7, ["a"]])
def test_a_thumbnail_is_a_jpeg_or_nothing(bad, record):
    odd = copy.deepcopy(record)
    for group in odd["examples"]["groups"]:
        for image in (*group["fixed"], *group["broken"], *group["still_wrong"]):
            image["thumbnail"] = bad
    assert not shown(odd).all("img")


def test_the_page_loads_nothing_and_runs_only_its_own_script(document):
    ((_, script),) = [found for found in document.texts if found[0] == "script"]
    ((_, style),) = [found for found in document.texts if found[0] == "style"]
    assert not re.search(r"url\(|@import|http", style + script)
    (meta,) = [found for found in document.all("meta") if "http-equiv" in found]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    inside = "img-src data:; style-src 'unsafe-inline'"
    assert meta["content"] == f"default-src 'none'; {inside}; script-src 'sha256-{digest}'"


def test_a_study_is_shown_with_its_figure_and_its_finding(tmp_path, capsys):
    about = {"schema_version": 1, "study": "k", "title": "Which k?", "paper": "Fig. 3", "dataset": "demo"}
    study = {**about, "results": {}, "finding": ["k = 20 <is> best", "by 0.1 points"]}
    bare = {key: value for key, value in study.items() if key not in ("finding", "title")}
    drawing = b"<svg xmlns='http://www.w3.org/2000/svg'><script>window.hacked = 1</script></svg>"
    for name, content in {"a.b": study, "c": bare, "d": {**bare, "finding": "no list"}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "a.b.svg").write_bytes(drawing)
    for name in ("a.b.png", "c.png"):
        (tmp_path / name).write_bytes(b"\x89PNG")
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html")]) == 0
    found = Document((tmp_path / "r.html").read_text(encoding="utf-8"))
    one, two = found.all("img")
    assert one["src"] == f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}"
    assert one["alt"].startswith("Figure of the study k")
    assert "k = 20 <is> best by 0.1 points" in found.text()
    assert two["src"].startswith("data:image/png;base64,")
    assert "Which k? (demo)" in found.text()
    assert found.text().count("Study k (demo)") == 4  # heading and contents of both that have no title
    assert "There is no figure" in found.text()


def test_several_records_are_compared_and_each_has_its_part(record, tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(record))
    (tmp_path / "two.json").write_text(json.dumps({"records": [record, {**record, "dataset": "other"}]}))
    sources = read([tmp_path / "one.json", tmp_path / "two.json", tmp_path / "one.json"])
    assert [run.label for run in sources.runs] == ["one", "two#1", "two#2"]
    assert [name for name, _ in sources.files] == ["one.json", "two.json"]
    sources.studies.append(Study("s", {"study": "k"}))
    text = Document(page(sources)).text()
    for name in ("All runs", "one – synthetic: ", "two#2 – other: ", "Study k", "Records"):
        assert name in text
    assert text.count("Gains by domain") == 3
