"""``clip-tca explain``: records and states in words, and bad files in one line."""

from __future__ import annotations

import copy
import itertools
import json
import sys
from math import comb

import pytest
import torch
from safetensors.torch import save_file

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, evaluate
from clip_tca.cli import main
from clip_tca.datasets.synthetic import synthetic
from clip_tca.results.explanation import explain_record
from clip_tca.results.gains import gains, half_width, most_differing
from tests.conftest import ROOT
from tests.test_explanation import GOOD


def test_a_careful_interval_needs_six_of_six():
    """As the exact sign test: six changed for the better are beyond chance (p = 1/32), five are not (p = 1/16)."""
    for m in range(1, 60):
        for gained in range(m % 2, m + 1, 2):
            p = 2 * sum(comb(m, i) for i in range((m - gained) // 2 + 1)) / 2**m
            if gained > half_width(m):
                assert p < 0.05
    assert half_width(6) < 6
    assert half_width(5) > 5
    assert half_width(0) == 0


def test_class_counts_bound_what_can_differ():
    """Compared with every pair of answers that has these counts."""
    for images, a, b in [(4, 1, 2), (4, 4, 4), (4, 0, 3), (3, 3, 2)]:
        told = [{"per_class": {"x": {"correct": c, "images": images}}} for c in (a, b)]
        answers = [set(map(frozenset, itertools.combinations(range(images), count))) for count in (a, b)]
        assert most_differing(*told) == max(len(x ^ y) for x in answers[0] for y in answers[1])


def row(method, correct, *, domain="d", seed=0, changed=None, images=(10, 10), oracle=False):
    counts = zip(("ant", "bee"), correct, images, strict=True)
    told = {"method": method, "domain": domain, "seed": seed, "uses_labels": oracle}
    told |= {"correct": sum(correct), "images": sum(images), "divisor": sum(images)}
    told |= {"accuracy": 100 * sum(correct) / sum(images)}
    told["per_class"] = {name: {"correct": c, "images": n, "accuracy": 100 * c / n} for name, c, n in counts}
    return told if changed is None else told | {"diagnosis": GOOD | {"changed": changed, "classes": 2}}


def test_gains_by_hand():
    rows = [row("zero-shot", (5, 5), seed=s) for s in (0, 1)]
    rows += [row("linear-tca", (9, 4 + s), seed=s, changed=0.25) for s in (0, 1)] + [row("t3a", (5, 6), seed=0)] * 2
    rows += [row("t3a+tca", (4, 6), seed=s, changed=0.05) for s in (0, 1)]
    (domain,) = gains({"rows": rows})
    by_method = {result.method: result.gain for result in domain.methods}
    linear = by_method["linear-tca"]
    assert linear.gains == [15.0, 20.0]
    assert linear.gain == 17.5
    half = 100 * (1.96 * 5**0.5 + 1) / 20
    assert linear.interval == pytest.approx([17.5 - half, 17.5 + half])
    assert linear.beyond_chance == "chance"
    assert linear.classes == pytest.approx({"ant": 40.0, "bee": -5.0})
    assert linear.pairs_known
    assert not by_method["t3a"].pairs_known
    assert by_method["t3a+tca"].reference == "t3a"
    assert by_method["t3a+tca"].gain == -5.0
    assert by_method["zero-shot"] is None


def test_runs_that_drew_different_numbers_of_images_each_have_their_own_divisor():
    """Five of ten and five of twenty before; two more are right each time: 20 points and 10 points."""
    rows = [row("zero-shot", (5, 0), images=(5, 5 + 10 * s), seed=s) for s in (0, 1)]
    rows += [row("linear-tca", (5, 2), images=(5, 5 + 10 * s), seed=s) for s in (0, 1)]
    gain = gains({"rows": rows})[0].methods[1].gain
    assert gain.gains == [20.0, 10.0]
    assert gain.gain == 15.0


def test_no_difference_is_rarely_called_one():
    """Two methods that are right equally often, on the same images: beyond chance in at most one of twenty runs."""
    generator = torch.Generator().manual_seed(0)
    called = 0
    for _ in range(400):
        moved = torch.rand(200, generator=generator) < 0.2
        before = torch.rand(200, generator=generator) < 0.7
        after = torch.where(moved, torch.rand(200, generator=generator) < 0.7, before)
        gained = abs(int(after.sum()) - int(before.sum()))
        called += gained > half_width(int(moved.sum()))
    assert called <= 20


@pytest.fixture(scope="module")
def record():
    methods = ("zero-shot", "linear-tca", "linear-tca:reference", "conditional-tca")
    return evaluate("synthetic", methods=methods, seeds=2)


def test_a_record_keeps_the_diagnosis_of_its_adapters(record):
    by = {(r["method"], r["domain"], r["seed"]): r for r in record["rows"]}
    assert "diagnosis" not in by["zero-shot", "clean", 0]
    found = by["linear-tca", "shifted", 1]["diagnosis"]
    assert sum(found["predicted"]) == found["embeddings"] == 1440
    gained = by["linear-tca", "shifted", 1]["correct"] - by["zero-shot", "shifted", 1]["correct"]
    assert 0 < gained <= found["changed"] * 1440
    assert json.loads(json.dumps(record, allow_nan=False))["rows"] == record["rows"]


def test_a_record_is_explained_domain_by_domain(record, tmp_path, capsys):
    (tmp_path / "r.json").write_text(json.dumps(record))
    assert main(["explain", str(tmp_path / "r.json")]) == 0
    text = capsys.readouterr().out
    assert text.splitlines() == explain_record(record)
    assert "ORACLE: linear-tca:reference counted true labels" in text
    rows = {line.split()[0]: line for line in text.split("shifted: 1440 images")[1].splitlines()[2:7]}
    assert " gain " in rows["linear-tca"]
    assert rows["linear-tca"].endswith("trusted")
    assert "(oracle: uses true labels)" in rows["linear-tca:reference"]
    assert rows["linear-tca:reference"].endswith("none: an oracle")
    assert "beyond chance it gained in 2 and lost in 0" in text
    assert max(map(len, text.splitlines())) < 150


def test_classes_that_are_never_predicted_are_in_the_explanation_and_not_logged(tmp_path, caplog, capsys):
    """One class less would have been enough for these embeddings: the text of the fourth is that of none."""
    made = synthetic(0, classes=4, dim=24, images=60)
    text = made.text.clone()
    text[..., 3, :] = -text[..., :3, :].mean(dim=-2)
    tensors = {"text.single": text}
    for name, (z, y) in made.domains.items():
        tensors |= {f"{name}.embeddings": z, f"{name}.labels": y}
    save_file(tensors, tmp_path / "made.safetensors", metadata={"scale": str(made.scale)})
    record = evaluate(str(tmp_path / "made.safetensors"), methods=["zero-shot", "linear-tca"])
    assert record["rows"][1]["diagnosis"]["predicted"][3] == 0
    assert "never predicted" not in caplog.text
    assert "1 of 4 classes are missed: 1 never predicted (3)." in " ".join(" ".join(explain_record(record)).split())


def test_a_record_as_json_holds_every_figure(record, tmp_path, capsys):
    (tmp_path / "r.json").write_text(json.dumps({"records": [record, record]}))
    assert main(["explain", str(tmp_path / "r.json"), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["records"]
    assert len(told) == 2
    shifted = next(domain for domain in told[0]["domains"] if domain["domain"] == "shifted")
    linear = next(one for one in shifted["methods"] if one["method"] == "linear-tca")
    assert linear["verdict"] == "trusted"
    assert linear["interval"][0] > 0
    assert all({"level", "text"} == set(sign) for sign in linear["signs"])
    assert "verdict" not in next(one for one in shifted["methods"] if one["uses_labels"])


def test_a_stream_and_a_record_without_zero_shot_say_what_is_missing():
    online = evaluate("synthetic", methods=["zero-shot", "linear-tca"], setting="online")
    assert any("No diagnosis in it (setting online)" in line for line in explain_record(online))
    alone = evaluate("synthetic", methods=["linear-tca"])
    assert any("no zero-shot row" in line for line in explain_record(alone))


def test_a_record_without_diagnosis_says_why(record):
    old = {**record, "rows": [{k: v for k, v in row.items() if k != "diagnosis"} for row in record["rows"]]}
    assert "No diagnosis in it: the record is older than diagnoses; evaluate again to have them." in explain_record(old)
    plain = evaluate("synthetic", methods=["zero-shot", "t3a"])
    assert explain_record(plain)[-1] == "No diagnosis in it: only adapters have one, and none was evaluated."


@pytest.mark.parametrize("kind", [LinearTCA, MLPTCA, ConditionalTCA])
def test_a_state_is_explained_with_names_from_a_file(shifted, kind, tmp_path, capsys):
    kind(shifted.g).fit(shifted.z).save(tmp_path / "s.safetensors")
    (tmp_path / "names.txt").write_text("# animals\nant\nbee\ncow = big cow\ndog\n")
    arguments = ["explain", str(tmp_path / "s.safetensors"), "--class-names", str(tmp_path / "names.txt")]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{kind.__name__} was fitted to 240 embeddings.")
    assert "  big cow " in text
    assert main([*arguments, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["classes"] == ["ant", "bee", "big cow", "dog"]
    assert told["diagnosis"]["kind"] == kind.__name__
    assert f"{told['verdict']}:" in text


def test_a_state_that_has_names_needs_no_file_of_them(shifted, tmp_path, capsys):
    path, names = str(tmp_path / "s.safetensors"), ["ant", "bee", "big cow", "dog"]
    LinearTCA(shifted.g.named(names)).fit(shifted.z).save(path)
    assert main(["explain", path]) == 0
    assert "big cow" in capsys.readouterr().out
    assert main(["explain", path, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "not a saved clip-tca state"),
        (b"some text", "not a saved clip-tca state"),
        (b'{"rows": [', "not a record of clip-tca eval"),
        (b'{"schema_version": 1}', "not a whole record"),
        (b"[1, 2]", "not a saved clip-tca state"),
    ],
)
def test_bad_files_are_one_line(content, message, tmp_path, capsys):
    if content is not None:
        (tmp_path / "f").write_bytes(content)
    assert main(["explain", str(tmp_path / "f")]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_damaged_states_records_and_names_are_one_line(shifted, record, tmp_path, capsys):
    LinearTCA(shifted.g).fit(shifted.z).save(tmp_path / "s.safetensors")
    whole = (tmp_path / "s.safetensors").read_bytes()
    (tmp_path / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    broken = json.loads(json.dumps(record))
    del broken["rows"][0]["per_class"], broken["rows"][1]["diagnosis"]["movement"]
    (tmp_path / "r.json").write_text(json.dumps(broken))
    state = str(tmp_path / "s.safetensors")
    capsys.readouterr()  # what fitting says
    for arguments, message in [
        ([str(tmp_path / "half.safetensors")], "damaged"),
        ([state, "--class-names", str(tmp_path / "names.txt")], "has 2, but the state has 4 classes"),
        ([state, "--class-names", str(tmp_path / "none")], "is not a file"),
        ([str(tmp_path / "r.json")], "not a whole record"),
        ([str(tmp_path / "r.json"), "--class-names", state], "a record has its own"),
    ]:
        assert main(["explain", *arguments]) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_diagnosis_of_no_dimensions_is_one_line(record, tmp_path, capsys):
    damaged = copy.deepcopy(record)
    row = next(row for row in damaged["rows"] if "diagnosis" in row)
    row["diagnosis"]["dim"] = 0
    (tmp_path / "damaged.json").write_text(json.dumps(damaged))
    assert main(["explain", str(tmp_path / "damaged.json")]) == 1
    assert "not a whole record of clip-tca eval" in capsys.readouterr().err


def test_the_page_counts_what_it_says(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "eval")
    import explain

    cases = [
        ("PACS", "m", "trusted", 9, 9, 100),
        ("PACS", "m", "trusted", -1, 4, 50),
        ("PACS", "m", "trusted", 0, 2, 10),
    ]
    assert explain.line("trusted", cases) == "| trusted | 3 | 1 | 1 | 1 | 1 | 0 | +2.33 | -2.0 | +9.0 |"
    assert explain.summary([*cases, ("PACS", "m", "little effect", 1, 1, 40)]) == [
        "* `trusted`: 1 of 3 gained, 1 lost.",
        "* `not here`: 0 of 0 did not gain, 0 lost.",
        "* `little effect`: 1 cases, 2.5 points at most either way.",
        "* Without any verdict: of the 3 others 1 gained (33%).",
    ]
    assert explain.summary([])[2:] == [  # embeddings with one template have no held-out cases
        "* `little effect`: 0 cases.",
        "* Without any verdict: of the 0 others 0 gained.",
    ]
    sys.modules.pop("explain")
