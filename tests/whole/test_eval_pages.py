"""The scripts behind the pages in eval/ run on any stored embeddings."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from clip_tca import LinearClassifier
from clip_tca.data.embeddings import EmbeddingSet, synthetic
from clip_tca.methods.registry import RIVAL_METHODS
from tests.conftest import ROOT


def printed(script: str, *words: object) -> str:
    command = [sys.executable, ROOT / "eval" / script, *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def test_batch_size_writes_its_page(stored, tmp_path):
    printed("batch_size.py", stored, "--output", tmp_path / "page.md")
    lines = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if "TCA | " in line]
    assert len(rows) == 2 * 3
    assert all(0 <= float(cell.strip(" |")) <= 100 for row in rows for cell in row[2:])


def test_the_page_about_answers_has_a_row_for_each_domain_in_both_tables(stored, tmp_path):
    printed("ask.py", stored, "--output", tmp_path / "page.md")
    asked, reviewed = (tmp_path / "page.md").read_text(encoding="utf-8").split("## `--review-below P`")
    unasked = asked.partition("nothing is asked: ")[2].partition(".\n")[0].count("made ")
    assert asked.count("\n| made ") + unasked == 3
    assert reviewed.count("\n| made ") == 3


def test_the_estimate_without_labels_is_judged_on_data_sets_that_it_was_not_fitted_to(stored, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "eval")
    import explain
    import numpy as np

    found = [explain.Measured(data, "m", "", 10 * x, 20, 100, [float(x)]) for data in "ab" for x in (-1, 1, 2)]
    wrong = [explain.Measured("c", "m", "", -10, 20, 100, [1.0])]
    points, half = explain.estimates(found + wrong, [0])
    assert points[-1] == pytest.approx(10)  # as the others have it, whatever its own labels say
    assert half[-1] == pytest.approx(0, abs=1e-6)
    assert not np.allclose(points[:3], [-10, 10, 20])  # those were fitted to the wrong one too
    other = shutil.copy(stored, tmp_path / "other.safetensors")
    text = printed("explain.py", stored, other, "--domain", "shifted", "--domain", "skewed", "--seeds", 1)
    assert "Cases: made " in text
    assert text.count("\n| neighbours | ") == 2
    assert "| LinearTCA as in the paper, k = 20: " in text


def test_regimes_are_drawn_as_described(stored, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "eval")
    import regimes

    every = list(regimes.cases([str(stored)], ["shifted"], seeds=2))
    found = {case.regime: case for case in every}
    few = [int((torch.bincount(case.y) > 0).sum()) for case in every if case.regime == "few classes"]
    assert few == [2, 3, 2, 3, 2]
    assert sum(case.regime == "long tail" for case in every) == 2
    counts = {name: torch.bincount(case.y, minlength=case.classifier.n_classes) for name, case in found.items()}
    assert float(counts["one class 80%"].max() / counts["one class 80%"].sum()) == pytest.approx(0.8, abs=0.05)
    assert counts["5 per class"].tolist() == [5] * len(counts["whole"])
    assert counts["long tail"].max() >= 10 * counts["long tail"].min().clamp_min(1)
    assert len(found["n = 50"].y) == 50
    small = {name: [case.y for case in every if case.regime == name] for name in regimes.SMALL_BATCHES}
    assert {name: len(batches) for name, batches in small.items()} == dict.fromkeys(small, 2 * regimes.BATCHES)
    assert all(1 <= len(y.unique()) <= 4 and len(y) <= regimes.BATCH for y in small["64 of 1-4"])
    assert int((found["sorted stream"].y.diff() != 0).sum()) == len(counts["whole"]) - 1
    gains = {("a", "x"): [(1.0, 300), (3.0, 10)], ("a", "y"): [(-1.0, 500)]}
    assert regimes.row("m", gains) == "| m | +0.5 (-1.0) | +0.50 | -1.0 | -1.0 |"


def test_the_page_of_rivals_has_a_row_for_every_method_and_says_how_it_sees_a_set(stored, tmp_path):
    printed("rivals.py", stored, "--domain", "shifted", "--seeds", 1, "--output", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert all(f"\n| {name} " in text.replace("**", "") for name in RIVAL_METHODS[1:])
    assert "dmn (in batches, authors tuned on test data)" in text
    assert "\n* transductive: `transclip`, `stata`, `zlap`, `gmm`: whole set at once" in text
    assert "\n* online: `tda`, `dmn`, `oga`, `dota`, `bca`, `ecalp`, `dpe`: batches of 64" in text


def test_the_ablation_has_a_row_for_every_change_of_a_number(stored, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "eval")
    import ablation

    from clip_tca.adapters.conditional import Constants

    changed = {name for changes in ablation.CHANGES.values() for name in changes}
    assert set(Constants._fields) - changed == {"settled", "answer_counts", "answer_scale"}
    printed("ablation.py", stored, "--domain", "shifted", "--output", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ")}
    assert list(rows)[1:] == list(ablation.CHANGES)
    assert len(set(rows.values())) > 5, "the numbers change something"


def test_the_tables_on_clip_are_made_from_files_as_the_repositories_have_them(tmp_path):
    """A folder of test images with one training image of each class, and one of features of another model."""
    z, y = functional.normalize(torch.randn(60, 512), dim=1), torch.arange(60) % 6
    centres = functional.normalize(torch.randn(6, 512), dim=1)
    for name, width in (("ucf101", 512), ("food101", 1024)):
        folder = tmp_path / "IMAS" / "caches" / name
        folder.mkdir(parents=True)
        torch.save(functional.pad(centres, (0, width - 512)).T.half(), folder / "keys_1shots.pt")
        torch.save(torch.eye(6).half(), folder / "values_1shots.pt")
        torch.save((centres[y] + 0.5 * z).half(), folder / "test_f.pt")
        torch.save(y, folder / "test_l.pt")
    words = (tmp_path / "IMAS", tmp_path, "--set", "ucf101", "--set", "food101", "--method", "conditional-tca")
    text = printed("clip/tables.py", *words)
    assert "| ucf101* | 60 | 6 | prototypes, 1 shot | 100.0 |" in text
    assert "food101" not in text, "features of another model are left out"
    assert "\n| conditional-tca | +0.0 | +0.0 | +0.0 | +0.0 |" in text
    assert "\n* whole: all sets: none; sets marked *: none." in text


def test_the_table_of_divisors_has_the_finding_on_pacs():
    assert "| pacs | 96.08 | 97.11 | 97.36 | +1.28 | +0.25 |" in printed("reported/divisors.py")


def test_the_papers_table_on_features_with_a_head(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "eval" / "paper")
    import resnet18

    made = synthetic(0, classes=7, dim=24, images=30)
    g = made.classifier()
    z, y = made.domains["shifted"]
    for domain in resnet18.DOMAINS:
        data = EmbeddingSet(None, 1.0, {"target": (5 * z, y)}, head=LinearClassifier(g.weight.float()))
        data.source = 5 * made.domains["clean"][0], made.domains["clean"][1].clone()
        data.save(tmp_path / f"pacs_resnet18_{domain}.safetensors")
    kept = ("T3A, M = 20", "ORACLE: bias shifted to the true shares, no feature moved", "ConditionalTCA, our defaults")
    monkeypatch.setattr(resnet18, "ROWS", {name: resnet18.ROWS[name] for name in kept})
    text = resnet18.page(tmp_path)
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in text.splitlines() if " | " in line}
    right = 100 * float((g.predict(z) == y).double().mean())
    assert f"| SOURCE, accuracy | {right:.2f} |" in text
    assert float(rows[kept[1]][0]) >= 0
    assert rows["MLP-2"][:5] == ["+2.87", "+4.34", "+0.86", "+1.57", "+2.41"]
    assert rows[kept[0]][5].startswith("+1.36")


def test_the_table_of_label_free_choices_has_a_row_for_each_domain(stored, capsys, monkeypatch, caplog):
    caplog.set_level(logging.ERROR, "clip_tca")  # the script sets it, and this sets it back
    monkeypatch.syspath_prepend(ROOT / "eval")
    import label_free

    everything = label_free.settings
    few = (*label_free.DEFAULTS, "linear global 5 monge", "conditional uniform 3.0")
    monkeypatch.setattr(label_free, "settings", lambda g: {name: everything(g)[name] for name in few})
    label_free.main([str(stored)])
    head, _, *rows = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines())
    assert [row[0] for row in rows] == ["made clean", "made shifted", "made skewed"]
    for row in rows:
        figures = dict(zip(head[1:], map(float, row[1:]), strict=True))
        assert figures["worst"] <= figures["chosen"] <= figures["best"]
