"""The report: every number is the record's, every name is text, and the page needs nothing but itself."""

from __future__ import annotations

import base64
import copy
import gzip
import hashlib
import io
import json
import os
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image

import clip_tca
from clip_tca import ZeroShotClassifier
from clip_tca.cli import main
from clip_tca.core.checks import visible
from clip_tca.datasets.embedding_set import EmbeddingSet
from clip_tca.datasets.image_set import Domain, ImageSet
from clip_tca.evaluation.examples import EXAMPLE_KINDS, changed, kinds, spread
from clip_tca.evaluation.inputs import Embedded
from clip_tca.evaluation.result_rows import confusion_matrix
from clip_tca.report.calibration_panel import Bin, pooled
from clip_tca.report.charts import limits
from clip_tca.report.confusion_panel import confusions
from clip_tca.report.document import policy
from clip_tca.report.markup import VOID, signed, tag
from clip_tca.report.page import page
from clip_tca.report.run import Run
from clip_tca.report.sources import Sources, read
from clip_tca.report.studies_panel import StudyRecord
from clip_tca.results.rendering import as_json
from clip_tca.results.table import accuracy_table
from tests.records import HOSTILE, ORACLE, honest, hostile

REPORT = Path(clip_tca.__file__).parent / "report"


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
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def text(self) -> str:
        return " ".join(data for where, data in self.texts if where not in ("script", "style"))

    def all(self, name: str, **wanted: str) -> list[dict[str, str | None]]:
        named = {key.rstrip("_").replace("_", "-"): value for key, value in wanted.items()}
        return [
            found for tag, found in self.elements if tag == name and all(found.get(k) == v for k, v in named.items())
        ]


@pytest.fixture(scope="module")
def record() -> dict:
    return json.loads(json.dumps(honest()))


@pytest.fixture(scope="module")
def html(record) -> str:
    return page(Sources([Run("one", record)], [], [("one.json", json.dumps(record).encode())]))


@pytest.fixture(scope="module")
def document(html) -> Document:
    return Document(html)


# -- what the record holds for it --------------------------------------------------------------------------------------


def test_confusion_counts_every_image_and_its_diagonal_is_what_was_right(record):
    for row in record["rows"]:
        matrix = torch.tensor(row["confusion"])
        assert matrix.sum() == row["images"]
        assert matrix.diagonal().tolist() == [score["correct"] for score in row["per_class"].values()]
        assert matrix.sum(dim=1).tolist() == [score["images"] for score in row["per_class"].values()]
        assert "predicted" not in row


def test_rows_of_a_confusion_matrix_are_true_classes_by_hand():
    """Two images of class 0: one is called 2. One of class 2: it is called 1."""
    found = confusion_matrix(torch.tensor([0, 2, 1]), torch.tensor([0, 0, 2]), 3)
    assert found.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_kinds_by_hand():
    truth, before, after = (torch.tensor(x) for x in ([0, 0, 0, 0, 0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 2]))
    assert {kind: where.tolist() for kind, where in kinds(truth, before, after).items()} == {
        "fixed": [False, False, True, False, False],
        "broken": [False, True, False, False, False],
        "still_wrong": [False, False, False, False, True],
    }


def test_examples_are_spread_and_all_are_taken_where_there_are_few():
    assert spread(list(range(100)), 4) == [12, 37, 62, 87]
    assert spread([3, 5, 9], 4) == [3, 5, 9]
    assert spread(list(range(9)), 1) == [4]
    assert spread([], 4) == []


def test_fixed_minus_broken_is_the_gain_in_right_answers(record):
    right = {(row["method"], row["domain"]): row["correct"] for row in record["rows"]}
    groups = record["examples"]["groups"]
    assert {(g["method"], g["domain"]) for g in groups} == {key for key in right if key[0] != "zero-shot"}
    for group in groups:
        gain = right[group["method"], group["domain"]] - right["zero-shot", group["domain"]]
        assert group["counts"]["fixed"] - group["counts"]["broken"] == gain
        assert all(len(group[kind]) == min(2, group["counts"][kind]) for kind in EXAMPLE_KINDS)
    assert sum(sum(group["counts"].values()) for group in groups) > 0


def test_examples_under_the_watt_protocol_are_of_images_that_were_seen():
    methods = ["zero-shot", "linear-tca"]
    record = clip_tca.evaluate("synthetic", methods=methods, protocol="watt", examples=1, domains=["skewed"])
    before, after = (row["correct"] for row in record["rows"])
    counts = record["examples"]["groups"][0]["counts"]
    assert counts["fixed"] - counts["broken"] == after - before


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def test_examples_have_names_labels_and_small_pictures_in_the_data_set_s_order():
    """Four images, zero-shot says class 0 for all; the method says 1 for those at places 1 and 3."""
    z, truth = torch.eye(2)[[0, 0, 0, 0]], torch.tensor([0, 0, 1, 1])
    pictures = [png(Image.new("RGB", (300, 150), colour)) for colour in ("red", "green", "blue", "white")]
    domain = Domain([f"{i}.png" for i in range(4)], [""] * 4, truth.tolist(), lambda i: pictures[i] if i != 3 else None)
    embedded = Embedded(EmbeddingSet(torch.eye(2), 10.0, {"d": (z, truth)}), {"data": {"classes": ["cat", "dog"]}})
    embedded.pictures = ImageSet("own", ["cat", "dog"], {"d": domain}, {})
    predicted = torch.tensor([0, 1, 0, 1])
    g = ZeroShotClassifier(torch.eye(2), 10.0)
    (group,) = changed({("m", "d", 0): predicted, ("m", "d", 1): predicted}, g, embedded, 3)["groups"]
    assert group["counts"] == {"fixed": 1, "broken": 1, "still_wrong": 0}
    assert {k: v for k, v in group["broken"][0].items() if k != "thumbnail"} == {
        "position": 1,
        "name": "1.png",
        "true": "cat",
        "before": "cat",
        "after": "dog",
    }
    small = Image.open(io.BytesIO(base64.b64decode(group["broken"][0]["thumbnail"])))
    assert (small.format, small.size) == ("JPEG", (96, 48))
    assert small.getpixel((40, 20))[1] > 100 > small.getpixel((40, 20))[0]
    assert (group["fixed"][0]["name"], group["fixed"][0]["thumbnail"]) == ("3.png", None)


def test_examples_are_off_unless_asked_for_and_a_bad_number_is_named(capsys):
    assert "examples" not in clip_tca.evaluate("synthetic", methods=["zero-shot"])
    assert main(["eval", "--dataset", "synthetic", "--examples", "-1"]) == 1
    assert "examples: -1" in capsys.readouterr().err


def test_json_has_a_line_for_a_row_of_numbers_and_loses_nothing():
    content = {
        "a": [[1, 2], [-3, 4.5e-7]],
        "n": [None, 1.5],
        "b": "[\n1,\n2\n]",
        "c": [],
        "d": ["[1, 2"],
        "e": [1, "x"],
    }
    text = as_json(content)
    assert json.loads(text) == content
    assert "  [1, 2],\n  [-3, 4.5e-07]\n" in text
    assert '"n": [null, 1.5]' in text


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_has_every_section_landmark_and_heading_level_in_order(document):
    shown = document.text()
    for title in ("Accuracy", "Gains by domain", "Classes that gained", "Confusion before", "Examples of", "Cost"):
        assert title in shown
    assert "Left out" not in shown
    assert [len(document.all(name)) for name in ("main", "header", "nav", "h1")] == [1, 1, 1, 1]
    levels = [int(tag[1]) for tag, _ in document.elements if re.fullmatch(r"h\d", tag)]
    assert all(now - before <= 1 for before, now in zip([0, *levels], levels, strict=False))
    anchors = {found["href"] for found in document.all("a") if found["href"].startswith("#")}
    ids = [found["id"] for _, found in document.elements if "id" in found]
    assert anchors <= {f"#{name}" for name in ids}
    assert len(ids) == len(set(ids))
    assert document.all("html", lang="en")


def test_tables_have_captions_scopes_and_sorting_buttons(document):
    tables = document.all("table")
    assert len(document.all("caption")) == len(tables)
    assert all(found.get("scope") in ("col", "row", "rowgroup") for found in document.all("th"))
    sortable = document.all("th", aria_sort="none")
    assert len(document.all("button", type="button")) == len(sortable) > 20
    boxes = document.all("div", class_="scroll", role="region", tabindex="0")
    assert len(boxes) == len(tables)
    assert all(box["aria-label"] for box in boxes)


def test_the_table_is_that_of_eval(record, document):
    shown = document.text()
    for line in accuracy_table(record).sections[0][1]:
        for cell in line:
            assert cell.replace("-", "−", 1) in shown or cell in shown


def test_gains_are_the_difference_of_accuracies(record, document):
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


def test_class_changes_by_hand(record, html):
    """One class's change in one domain, from the counts."""
    rows = {(row["method"], row["domain"]): row["per_class"] for row in record["rows"]}
    name = record["data"]["classes"][0]
    before, after = (rows[method, "skewed"][name] for method in ("zero-shot", "linear-tca"))
    change = 100 * (after["correct"] - before["correct"]) / before["images"]
    note = f"{before['accuracy']:.1f} % before, {after['accuracy']:.1f} % after, {before['images']} images"
    assert re.search(rf'title="{re.escape(note)}">{re.escape(signed(change, 1))}</td>', html)


def test_every_mention_of_an_oracle_says_so(document):
    places = [text for _, text in document.texts if ORACLE in text]
    places += [value for _, found in document.elements for value in found.values() if value and ORACLE in value]
    assert len(places) >= 8
    for text in places:
        assert text.count(ORACLE) == len(re.findall(rf"{ORACLE} \(oracle", text)), text


def test_the_finding_never_praises_an_oracle_and_says_when_nothing_helped(record):
    def finding(change: int) -> str:
        other = copy.deepcopy(record)
        for row in other["rows"]:
            correct = {"zero-shot": 700, "linear-tca": 700 + change, ORACLE: 1400}.get(row["method"], 100)
            row.update(correct=correct, divisor=2000, accuracy=correct / 20)
        return Document(page(Sources([Run("one", other)]))).text()

    assert "linear-tca has the highest average: +0.70 points" in finding(14)
    assert "it gained in 2 and lost in 0 of 2 domains" in finding(14)
    assert "none has a higher average than zero-shot; linear-tca comes closest at −0.70" in finding(-14)


def test_fixed_and_broken_are_treated_alike(record, document):
    shown = document.text()
    for kind, name in {"fixed": "Fixed", "broken": "Broken", "still_wrong": "Still wrong"}.items():
        found = document.all("div", class_=f"kind {kind}")
        assert len(found) == len(record["examples"]["groups"])
        for group in record["examples"]["groups"]:
            assert f"{name}: {group['counts'][kind]}" in shown
    assert "Nobody picked them" in shown


def test_an_old_record_gives_a_report_that_says_what_is_left_out(record):
    old = copy.deepcopy(record)
    del old["examples"]
    for row in old["rows"]:
        del row["confusion"]
    shown = Document(page(Sources([Run("old", old)]))).text()
    assert "Confusion before and after: the record has no confusion matrices" in shown
    assert "Examples of changed predictions: none were kept" in shown
    assert "true ↓" not in shown


def test_without_zero_shot_there_is_no_before(record):
    other = {**record, "rows": [row for row in record["rows"] if row["method"] != "zero-shot"]}
    shown = Document(page(Sources([Run("one", other)]))).text()
    assert shown.count("no zero-shot rows to compare with") == 3


def test_seeds_are_averaged_and_counted_together():
    run = Run("two", honest(seeds=2, examples=0))
    rows = [row for row in run.record["rows"] if (row["method"], row["domain"]) == ("linear-tca", "skewed")]
    assert len(rows) == 2
    assert run.accuracy["linear-tca"]["skewed"] == pytest.approx(sum(row["accuracy"] for row in rows) / 2)
    matrix = run.confusion("linear-tca", "skewed")
    assert sum(map(sum, matrix)) == sum(row["images"] for row in rows)
    assert matrix[0][0] == sum(row["confusion"][0][0] for row in rows)
    assert "mean of 2 shuffles" in page(Sources([run]))


def test_many_classes_list_their_largest_confusions_and_the_page_stays_small(record):
    many = copy.deepcopy(record)
    names = [f"class {i}" for i in range(65)]
    many["data"]["classes"] = names
    for row in many["rows"]:
        row["confusion"] = [[90 if i == j else 10 if j == (i + 1) % 65 else 0 for j in range(65)] for i in range(65)]
        row["confusion"][7] = [100 if j == 9 else 0 for j in range(65)]
        row["per_class"] = {name: {"correct": 90, "images": 100, "accuracy": 90.0} for name in names}
    html = page(Sources([Run("many", many)]))
    assert re.search(r'scope="row">class 7</th><td class="short">class 9</td><td class="number">100.0</td>', html)
    assert len(html) < 500_000


def test_the_largest_confusions_of_a_thousand_classes_take_seconds_not_minutes(record):
    many = copy.deepcopy(record)
    names = many["data"]["classes"] = [f"class {i}" for i in range(1000)]
    matrix = [[50 * (i == j) for j in range(1000)] for i in range(1000)]
    matrix[3][5], matrix[8][2], matrix[8][1] = 50, 10, 40
    many["rows"] = [row for row in many["rows"] if row["domain"] == "skewed" and row["method"] != ORACLE]
    many["data"]["domains"] = {"skewed": many["data"]["domains"]["skewed"]}
    for row in many["rows"]:
        row["confusion"] = matrix
        row["per_class"] = {name: {"correct": 50, "images": 50, "accuracy": 100.0} for name in names}
    began = time.process_time()
    shown = str(confusions(Run("many", many)).body)
    assert time.process_time() - began < 10  # 30 for each domain when lines were summed for every pair
    rows = re.findall(r'scope="row">(.*?)</th><td class="short">(.*?)</td><td class="number">([\d.]+)', shown)
    assert rows == [("class 3", "class 5", "50.0"), ("class 8", "class 1", "40.0"), ("class 8", "class 2", "10.0")]


def test_a_report_of_a_thousand_classes_and_fifteen_domains_is_small_and_says_what_it_leaves_out(record):
    many = copy.deepcopy(record)
    names = many["data"]["classes"] = [f"a class with a name of some length {i}" for i in range(1000)]
    many["data"]["domains"] = {f"corruption {i}": {"images": 50_000} for i in range(15)}
    many["methods"] = [method for method in many["methods"] if method["name"] in ("zero-shot", "linear-tca")]
    del many["examples"]

    def row(method: str, domain: str, right: list[int]) -> dict:
        # a class of 50 images is called by its own name, and by those of the next two
        matrix = [[0] * 1000 for _ in range(1000)]
        for i, number in enumerate(right):
            matrix[i][i], matrix[i][i - 1], matrix[i][i - 2] = number, 45 - number, 5
        scores = {n: {"correct": c, "images": 50, "accuracy": 2.0 * c} for n, c in zip(names, right, strict=True)}
        about = {"method": method, "domain": domain, "seed": 0, "uses_labels": False}
        counts = {"correct": sum(right), "images": 50_000, "divisor": 50_000, "accuracy": sum(right) / 500}
        return {**about, **counts, "per_class": scores, "confusion": matrix}

    before, after = [20] * 1000, [21 + (i == 700) * 9 for i in range(1000)]
    shared = [row("zero-shot", "", before), row("linear-tca", "", after)]
    many["rows"] = [{**one, "domain": domain} for domain in many["data"]["domains"] for one in shared]
    html = page(Sources([Run("many", many)]))
    assert len(html) < 3_000_000
    assert "the 100 of 1,000 classes that changed most" in html
    classes = html.split("Confusion before and after")[-2]
    assert 'scope="row">a class with a name of some length 700</th>' in classes
    assert "length 750</th>" not in classes


def test_a_large_record_is_saved_compressed_and_only_named_if_that_is_large(record):
    plain, dense = b"0, " * 700_000, os.urandom(1_500_000)
    html = page(Sources([Run("one", record)], [], [("plain.json", plain), ("dense.json", dense)]))
    (link,) = Document(html).all("a", download="plain.json.gz")
    assert gzip.decompress(base64.b64decode(link["href"].removeprefix("data:application/gzip;base64,"))) == plain
    shown = Document(html).text()
    assert "dense.json (too large for this page)" in shown
    assert hashlib.sha256(dense).hexdigest() in shown
    assert "but for those that are too large" in shown
    assert len(html) < 1_000_000


def test_a_reliability_diagram_pools_domains_and_runs_by_hand():
    """One image with confidence 60 that is right, three with 64 of which none is: 63 and 25 together."""
    one = {"count": [0, 1], "confidence": [None, 60.0], "accuracy": [None, 100.0]}
    three = {"count": [0, 3], "confidence": [None, 64.0], "accuracy": [None, 0.0]}
    assert pooled([one, three]) == [None, Bin(4, 63.0, 25.0)]


def test_every_method_has_a_reliability_diagram_of_its_bins(record, document):
    drawings = [found["aria-label"] for found in document.all("div", role="img")]
    assert [text.split(": ")[0] for text in drawings] == [
        f"Reliability diagram of {name}"
        for name in ("zero-shot", "linear-tca", "conditional-tca", f"{ORACLE} (oracle)")
    ]
    rows = [row["calibration"] for row in record["rows"] if row["method"] == "zero-shot"]
    images = sum(row["count"][14] for row in rows)
    right = sum(row["count"][14] * row["accuracy"][14] for row in rows) / images
    assert drawings[0].endswith(f", {right:.0f} % right ({images:,} images)")
    assert len(document.all("rect", class_="bin")) == sum(text.count("right") for text in drawings)


def test_a_record_without_measures_has_no_diagram_and_the_page_says_why(record):
    old = copy.deepcopy(record)
    for row in old["rows"]:
        del row["metrics"], row["calibration"]
    shown = Document(page(Sources([Run("old", old)]))).text()
    assert "Calibration and other measures: the record is older than these measures" in shown


# -- nothing from outside is markup ------------------------------------------------------------------------------------


def test_names_are_text_wherever_they_stand(record, tmp_path, capsys):
    file = tmp_path / f"{HOSTILE[0].replace('/', '')} 'é\".json"
    file.write_text(json.dumps(hostile(record)))
    assert main(["report", str(file), "-o", str(tmp_path / "r.html")]) == 0
    found = Document((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert len(found.all("script")) == len(found.all("style")) == len(found.all("title")) == 1
    assert found.all("img") == []
    known = {tag for tag, _ in Document(page(Sources([Run("one", record)]))).elements}
    assert {tag for tag, _ in found.elements} <= known
    for _, attributes in found.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src"):
            assert attributes.get(name, "#").startswith(("#", "data:application/json;base64,"))
    shown = found.text()
    for name in HOSTILE:
        assert shown.count(visible(name)) > 10
    assert r"skewed \udcff\n" in shown
    (link,) = [a for a in found.all("a") if a.get("download")]
    assert link["download"] == file.name
    assert base64.b64decode(link["href"].split(",")[1]) == file.read_bytes()


def test_attributes_and_content_are_escaped_and_void_elements_stay_open():
    assert tag("p", "<&>", title="\"x\" 'y'", hidden=True, id=None) == (
        '<p title="&quot;x&quot; &#x27;y&#x27;" hidden>&lt;&amp;&gt;</p>'
    )
    assert tag("img", src="a") == '<img src="a">'


@pytest.mark.parametrize("bad", ["", "not base64!", base64.b64encode(b"<svg onload=x>").decode(), 7, ["a"]])
def test_a_thumbnail_is_a_jpeg_or_nothing(bad, record):
    odd = copy.deepcopy(record)
    for group in odd["examples"]["groups"]:
        for image in (*group["fixed"], *group["broken"], *group["still_wrong"]):
            image["thumbnail"] = bad
    assert not Document(page(Sources([Run("one", odd)]))).all("img")


def test_the_page_loads_nothing_and_runs_only_its_own_script(html, document):
    style, script = ((REPORT / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    assert [text for where, text in document.texts if where == "script"] == [script]
    assert not re.search(r"url\(|@import|http", style + script)
    (meta,) = [found for found in document.all("meta") if "http-equiv" in found]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert meta["content"] == policy(script)
    assert meta["content"].startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in meta["content"]
    assert "http:" not in html
    assert "https:" not in html


# -- studies -----------------------------------------------------------------------------------------------------------


def test_a_study_is_shown_with_its_figure_and_its_finding(tmp_path, capsys):
    about = {"schema_version": 1, "study": "k", "title": "Which k?", "paper": "Fig. 3", "dataset": "demo"}
    study = {**about, "reference": "photo", "results": {}, "finding": ["k = 20 <is> best", "by 0.1 points"]}
    (tmp_path / "a.b.json").write_text(json.dumps(study))
    drawing = b"<svg xmlns='http://www.w3.org/2000/svg'><script>window.hacked = 1</script></svg>"
    (tmp_path / "a.b.svg").write_bytes(drawing)
    (tmp_path / "a.b.png").write_bytes(b"\x89PNG")
    bare = {key: value for key, value in study.items() if key not in ("finding", "title")}
    (tmp_path / "c.json").write_text(json.dumps(bare))
    (tmp_path / "c.png").write_bytes(b"\x89PNG")
    (tmp_path / "d.json").write_text(json.dumps({**bare, "finding": "no list"}))
    files = [str(tmp_path / name) for name in ("a.b.json", "c.json", "d.json")]
    assert main(["report", *files, "-o", str(tmp_path / "r.html")]) == 0
    found = Document((tmp_path / "r.html").read_text(encoding="utf-8"))
    one, two = found.all("img")
    assert one["src"] == f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}"
    assert one["alt"] == "Figure of the study k. k = 20 <is> best by 0.1 points"
    assert two["src"].startswith("data:image/png;base64,")
    shown = found.text()
    assert "Which k? (demo)" in shown
    assert shown.count("Study k (demo)") == 4  # heading and contents of both that have no title
    assert "There is no figure" in shown
    assert len(found.all("script")) == 1


# -- several records, and bad ones -------------------------------------------------------------------------------------


def test_several_records_are_compared_and_each_has_its_part(record, tmp_path):
    other = {**record, "dataset": "other"}
    (tmp_path / "one.json").write_text(as_json(record))
    (tmp_path / "two.json").write_text(as_json({"records": [record, other]}))
    sources = read([tmp_path / "one.json", tmp_path / "two.json", tmp_path / "one.json"])
    assert [run.label for run in sources.runs] == ["one", "two#1", "two#2"]
    assert [name for name, _ in sources.files] == ["one.json", "two.json"]
    sources.studies.append(StudyRecord("s", {"study": "k"}))
    found = Document(page(sources))
    shown = found.text()
    for name in ("All runs", "one — synthetic: transductive, protocol full", "two#2 — other", "Study k", "Records"):
        assert name in shown
    assert shown.count("Gains by domain") == 3
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file"),
        ("<html>", "not a record"),
        ("[" * 100_000, "not a record"),
        ("[1]", "not a record"),
        ('{"schema_version": 1, "rows": []}', "not a whole record"),
        ('{"schema_version": 9}', "schema 9"),
        (b"\xff\xfe", "not a record"),
    ],
)
def test_bad_input_is_one_line_and_no_page(content, reason, tmp_path, capsys):
    file = tmp_path / "bad.json"
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    assert main(["report", str(file), "-o", str(tmp_path / "r.html")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith(f"clip-tca: {file}: ")
    assert reason in errors[0]
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("key", ["per_class", "counts", "origin"])
def test_a_record_with_a_hole_is_one_line(key, record, tmp_path, capsys):
    text = json.dumps(record).replace(f'"{key}"', '"gone"')
    (tmp_path / "hole.json").write_text(text)
    assert main(["report", str(tmp_path / "hole.json"), "-o", str(tmp_path / "r.html")]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert "hole" in error
    assert f"'{key}' is missing" in error


def test_the_output_must_be_named(record, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path / "a.json")])
    assert stop.value.code == 2
