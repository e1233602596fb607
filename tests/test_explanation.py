"""``explain`` says what the figures say: the verdict first, rows as rows, weights as weights."""

from __future__ import annotations

import pytest

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.diagnosis import diagnose
from clip_tca.adapters.registry import ADAPTERS
from clip_tca.cli import main
from clip_tca.explanation import indicators, verdict

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
ESTIMATED = {"shares_from": "estimated", "agreement": {"zero-shot": 0.8, "adapted": 0.9}}


@pytest.mark.parametrize(
    ("difference", "judgement", "figure"),
    [
        ({}, "trusted", "All 4 classes"),
        ({"predicted": [270, 270, 460, 0], "chosen": [20, 20, 40, 0]}, "with care", "1 of 4 classes"),
        ({"predicted": [990, 10, 0, 0], "chosen": [20, 0, 0, 0]}, "not here", "3 of 4 classes"),
        ({"predicted": [910, 30, 30, 30], "chosen": [20, 1, 1, 1]}, "with care", "87% of the weight is on ant"),
        ({"chosen": [40, 5, 5, 5]}, "not here", "48% off"),
        (ESTIMATED, "trusted", "90% of its predictions agree with ConditionalTCA's, 80% of zero-shot's: nearer"),
        (ESTIMATED | {"agreement": {"zero-shot": 0.8, "adapted": 0.7}}, "with care", "zero-shot's: further away"),
        ({"uncertainty_mean": 0.2}, "with care", "20.0% of a pure guess"),
        ({"movement": 1.2}, "not here", "1.20 of their spread"),
        ({"changed": 0.4}, "not here", "40.0% of the predictions"),
        ({"changed": 0.0}, "little effect", "0.0% of the predictions change"),
        ({"chosen": [0] * 4, "shares": [0.0] * 4, "movement": 0.0}, "little effect", "none of the 1000"),
    ],
)
def test_each_indicator_names_its_figure(difference, judgement, figure):
    diagnosis = GOOD | difference
    if difference.get("chosen") and "shares" not in difference:
        diagnosis["shares"] = [count / sum(diagnosis["chosen"]) for count in diagnosis["chosen"]]
    signs = indicators(diagnosis, NAMES)
    assert verdict(signs, diagnosis) == judgement
    assert any(figure in sign.text for sign in signs)
    if judgement not in ("little effect", "trusted"):
        worst = max(sign.level for sign in signs)
        assert any(figure in sign.text and sign.level == worst for sign in signs)


@pytest.mark.parametrize("given", ["estimated", "given", "predicted"])
def test_weights_that_follow_from_the_data_or_are_known_are_not_held_against_the_predictions(given):
    diagnosis = GOOD | {"chosen": [40, 5, 5, 5], "shares": [0.73, 0.09, 0.09, 0.09], "shares_from": given}
    assert verdict(indicators(diagnosis, NAMES), diagnosis) == "trusted"


@pytest.mark.parametrize("kind", [LinearTCA, MLPTCA, ConditionalTCA])
def test_the_command_prints_what_explain_returns(shifted, kind, tmp_path, capsys):
    adapter = kind(shifted.g.named(NAMES)).fit(shifted.z)
    text = adapter.explain()
    adapter.save(tmp_path / "s.safetensors")
    capsys.readouterr()  # what fitting says
    assert main(["explain", str(tmp_path / "s.safetensors")]) == 0
    assert capsys.readouterr().out == text + "\n"
    assert text.startswith(f"{kind.__name__} was fitted to 240 embeddings.\n")
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
    assert "little effect" in sure
    same = LinearTCA(shifted.g).fit(shifted.z[:1].repeat(40, 1)).explain()
    assert "All embeddings are the same" in same
    oracle = ADAPTERS["linear-tca:reference"].build(shifted.g).fit(shifted.z, labels=shifted.y).explain()
    assert "ORACLE: the true labels were counted" in oracle.split("Can it be trusted?")[0]


def test_pacs_sketch_is_trusted_and_the_paper_at_k_20_is_not(pacs):
    """LinearTCA gains there; the 20 most certain overall are one class, and accuracy falls by half."""
    g = ZeroShotClassifier(pacs.text, pacs.scale)
    z, y = pacs.domains["sketch"]
    said, right = {}, {}
    for name in ("linear-tca", "linear-tca:paper"):
        adapter = ADAPTERS[name].build(g).fit(z)
        found = diagnose(adapter)
        said[name] = verdict(indicators(found, [str(c) for c in range(7)]), found)
        right[name] = int((adapter.predict(z) == y).sum())
    assert said == {"linear-tca": "trusted", "linear-tca:paper": "not here"}
    assert right["linear-tca"] > int((g.predict(z) == y).sum()) > right["linear-tca:paper"]
