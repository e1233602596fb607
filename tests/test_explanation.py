"""``explain`` says what the figures say, and no more: the verdict first, rows as rows, weights as weights."""

from __future__ import annotations

import pytest

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.diagnosis import diagnose
from clip_tca.cli import main
from clip_tca.explanation import Finding, closing_lines, reasons, verdict
from clip_tca.methods.registry import ADAPTERS

NAMES = ["ant", "bee", "cow", "dog"]
GOOD = {
    "kind": "LinearTCA",
    "embeddings": 1000,
    "dim": 100,
    "classes": 4,
    "spread": 0.8,
    "mean_shift": 0.2,
    "correlation_distance": 1e-8,
    "covariance_shift": 0.5,
    "movement": 0.5,
    "predicted": [250, 250, 250, 250],
    "chosen": [20, 20, 20, 20],
    "shares": [0.25, 0.25, 0.25, 0.25],
    "shares_from": "global",
    "uncertainty_mean": 0.001,
    "changed": 0.1,
}


@pytest.mark.parametrize(
    ("difference", "judgement", "figure"),
    [
        ({}, "can't tell", "All 4 classes"),
        ({"predicted": [270, 270, 460, 0], "chosen": [20, 20, 40, 0]}, "can't tell", "1 of 4 classes"),
        ({"chosen": [40, 5, 5, 5]}, "likely loss", "by 48%"),
        ({"changed": 0.4}, "can't tell", "can't change by more than 40.0 points"),
        ({"changed": None}, "can't tell", "It is not known"),
        ({"changed": 0.02, "chosen": [40, 5, 5, 5]}, "little effect", "2.0% of the predictions change"),
        ({"movement": 0.0}, "little effect", "No embedding moves."),
    ],
)
def test_the_verdict_claims_little_and_the_reasons_name_their_figure(difference, judgement, figure):
    diagnosis = GOOD | difference
    assert verdict(diagnosis) == judgement
    assert any(figure in sentence for sentence in reasons(diagnosis, NAMES))


@pytest.mark.parametrize("given", ["estimated", "given", "predicted"])
def test_weights_that_follow_from_the_data_or_are_known_are_not_held_against_the_predictions(given):
    diagnosis = GOOD | {"chosen": [40, 5, 5, 5], "shares": [0.73, 0.09, 0.09, 0.09], "shares_from": given}
    assert verdict(diagnosis) == "can't tell"


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (
            {"a": Finding(3, 10, "can't tell")},
            ["m changed 3 of 10 predictions (30.0%).", "Verdict: can't", "ASK; if you know"],
        ),
        (
            {"a": Finding(3, 10, "gain"), "b": Finding(0, 10, "same")},
            ["m changed 3 of 20", "on a: a gain", "on b:", "use"],
        ),
        (
            {"a": Finding(3, 10, "gain"), "b": Finding(1, 10, "loss")},
            ["m changed 4", "on a:", "on b: a loss", "next: keep zero"],
        ),
        ({"a": Finding(0, 10, "little effect")}, ["m changed 0 of 10", "little effect", "nothing to do"]),
        ({"a": Finding(None, 10, None)}, ["is not known", "can't tell without labels.", "or keep zero-shot"]),
    ],
)
def test_the_last_lines_say_how_many_changed_the_verdict_and_what_next(found, lines):
    printed = closing_lines("m", found, "ASK")
    assert len(printed) == len(lines)
    assert all(part in line for part, line in zip(lines, printed, strict=True))


@pytest.mark.parametrize("kind", [LinearTCA, MLPTCA, ConditionalTCA])
def test_the_command_prints_what_explain_returns(shifted, kind, tmp_path, capsys):
    adapter = kind(shifted.g.named(NAMES)).fit(shifted.z)
    text = adapter.explain()
    adapter.save(tmp_path / "s.safetensors")
    capsys.readouterr()  # what fitting says
    assert main(["explain", str(tmp_path / "s.safetensors")]) == 0
    assert capsys.readouterr().out == text + "\n"
    words, figures = text.split("\n\nThe figures\n")
    assert words.startswith(f"{kind.__name__} was fitted to 240 embeddings.\n")
    assert not any(term in words for term in ("spread", "variance", "covariance", "mean", "%"))
    assert "of the spread" in figures
    assert "\n  cow " in text


def test_a_class_that_is_never_predicted_has_no_weight_and_nothing_chosen(shifted):
    text = shifted.g.text.clone()
    text[3] = -shifted.z.mean(dim=0)
    g = ZeroShotClassifier(text, shifted.g.scale, classes=["ant", "bee", "cow", "person"])
    known = LinearTCA(g, shares={"ant": 0.003, "bee": 0.003, "cow": 0.004, "person": 0.99}).fit(shifted.z)
    for adapter in (known, LinearTCA(g).fit(shifted.z)):
        lines = adapter.explain().splitlines()
        assert next(line for line in lines if line.startswith("  person")).split() == ["person", "0", "0", "0.0%"]
        assert "1 of 4 classes are missed: 1 never predicted (person)" in "\n".join(lines)
        assert "is on person" not in "\n".join(lines)


def test_a_zero_shot_that_is_kept_images_that_are_all_the_same_and_an_oracle_are_said(shifted):
    sure = ConditionalTCA(shifted.g).fit(shifted.z[:5]).explain()
    assert sure.startswith("ConditionalTCA was fitted to 5 embeddings.\n")
    assert "No embedding moves" in sure
    assert "Little effect" in sure
    same = LinearTCA(shifted.g).fit(shifted.z[:1].repeat(40, 1)).explain()
    assert "All embeddings are the same" in same
    oracle = ADAPTERS["linear-tca:reference"].build(shifted.g).fit(shifted.z, labels=shifted.y).explain()
    assert "ORACLE: it counted the true labels" in oracle.split("Can it be trusted?")[0]


def test_of_pacs_sketch_nothing_is_claimed_and_the_paper_at_k_20_likely_loses(pacs):
    """The 20 most certain overall are one class, and accuracy falls by half."""
    g = ZeroShotClassifier(pacs.text, pacs.scale)
    z, y = pacs.domains["sketch"]
    said, right = {}, {}
    for name in ("linear-tca", "linear-tca:paper"):
        adapter = ADAPTERS[name].build(g).fit(z)
        said[name] = verdict(diagnose(adapter))
        right[name] = int((adapter.predict(z) == y).sum())
    assert said == {"linear-tca": "can't tell", "linear-tca:paper": "likely loss"}
    assert int((g.predict(z) == y).sum()) > right["linear-tca:paper"]
