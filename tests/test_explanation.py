"""``explain`` says what the figures say: the verdict first, rows as rows, weights as weights."""

from __future__ import annotations

import pytest
import torch

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.diagnosis import diagnose
from clip_tca.adapters.registry import ADAPTERS
from clip_tca.cli import main
from clip_tca.explanation import explanation, indicators, verdict

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
    "uncertainty_max": 0.01,
    "changed": 0.1,
}
ESTIMATED = {"shares_from": "estimated", "agreement": {"zero-shot": 0.8, "adapted": 0.9}}


@pytest.mark.parametrize(
    ("difference", "judgement", "figure"),
    [
        ({}, "trusted", "All 4 classes"),
        ({"embeddings": 100}, "with care", "100 embeddings for 100 dimensions"),
        ({"predicted": [270, 270, 460, 0], "chosen": [20, 20, 40, 0]}, "with care", "1 of 4 classes"),
        ({"predicted": [990, 10, 0, 0], "chosen": [20, 0, 0, 0]}, "not here", "3 of 4 classes"),
        ({"predicted": [910, 30, 30, 30], "chosen": [20, 1, 1, 1]}, "with care", "87% of the weight is on ant"),
        ({"chosen": [20, 12, 12, 12]}, "with care", "11% off"),
        ({"chosen": [40, 5, 5, 5]}, "not here", "48% off"),
        (ESTIMATED, "trusted", "90% of its predictions agree with ConditionalTCA's, 80% of zero-shot's: nearer"),
        (
            ESTIMATED | {"agreement": {"zero-shot": 0.8, "adapted": 0.7}},
            "with care",
            "70% of its predictions agree with ConditionalTCA's, 80% of zero-shot's: further away",
        ),
        ({"uncertainty_mean": 0.2}, "with care", "20% of a pure guess"),
        ({"movement": 0.9}, "with care", "0.90 of their spread"),
        ({"movement": 1.2}, "not here", "1.20 of their spread"),
        ({"changed": 0.4}, "not here", "40.0% of the predictions"),
        ({"changed": 0.0}, "little effect", "accuracy stays as it is"),
        ({"changed": None, "movement": 1e-9}, "little effect", "No embedding moves"),
        ({"chosen": [250] * 4, "movement": 0.0}, "little effect", "all of the 1000"),
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
    assert not text.endswith("\n")


@pytest.mark.parametrize("kind", [LinearTCA, MLPTCA, ConditionalTCA])
def test_it_begins_with_the_effect_and_the_verdict(shifted, kind):
    adapter = kind(shifted.g).fit(shifted.z)
    first, second, *rest = adapter.explain().splitlines()
    changed = float((adapter.predict(shifted.z) != shifted.g.predict(shifted.z)).double().mean())
    assert first == f"{kind.__name__} was fitted to 240 embeddings. It changes {changed:.1%} of the predictions."
    found = diagnose(adapter)
    assert f"  {verdict(indicators(found, NAMES), found)}: " in second
    assert "The verdict uses no labels" in "\n".join(rest)
    assert any(line.split()[:2] == ["class", "0"] for line in rest)  # the classifier has no names
    assert len(rest) <= 30
    assert max(map(len, rest)) <= 100


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
        weights = [
            float(line.split()[-1].rstrip("%")) for line in lines if line.startswith(("  ant", "  bee", "  cow"))
        ]
        assert sum(weights) == pytest.approx(100, abs=0.2)


def test_the_weight_of_a_class_is_not_the_number_of_its_rows(shifted):
    adapter = LinearTCA(shifted.g.named(NAMES), k=8, shares=[0.91, 0.03, 0.03, 0.03]).fit(shifted.z)
    text = adapter.explain()
    assert "To the 32 most certain of 240 embeddings" in text
    assert "91% of the weight is on ant" in text
    assert [line.split()[2:] for line in text.splitlines() if line.startswith("  ant")] == [["8", "91.0%"]]


@pytest.mark.parametrize("solver", ["monge", "gradient"])
def test_the_agreement_in_the_text_is_that_of_the_solver(shifted, solver):
    adapter = LinearTCA(shifted.g, solver=solver).fit(shifted.z)
    agreement = diagnose(adapter)["agreement"]
    sentence = f"{agreement['adapted']:.0%} of its predictions agree with ConditionalTCA's, "
    assert sentence + f"{agreement['zero-shot']:.0%} of zero-shot's" in adapter.explain()


def test_an_oracle_says_so_before_the_verdict(shifted):
    adapter = ADAPTERS["linear-tca:reference"].build(shifted.g).fit(shifted.z, labels=shifted.y)
    lines = adapter.explain().splitlines()
    oracle = next(i for i, line in enumerate(lines) if line.startswith("ORACLE: the true labels were counted"))
    assert lines[oracle + 1].startswith("Can it be trusted?")


def test_a_zero_shot_that_is_kept_and_images_that_are_all_the_same(shifted):
    sure = ConditionalTCA(shifted.g).fit(shifted.z[:5]).explain()
    assert sure.startswith("ConditionalTCA was fitted to 5 embeddings. It changes nothing.\n")
    assert "little effect" in sure
    same = LinearTCA(shifted.g).fit(shifted.z[:1].repeat(40, 1)).explain()
    assert "All embeddings are the same" in same


def test_many_classes_and_control_characters_stay_readable():
    many = {"classes": 40, "predicted": [25] * 40, "chosen": [2] * 39 + [0], "shares": [0.03] * 30 + [0.01] * 9 + [0]}
    lines = explanation(GOOD | many, [f"c\n{i}" for i in range(40)])
    assert len(lines) <= 30
    assert "  chosen: 0 to 2 a class, median 2" in lines
    assert "  weight: 0.0% to 3.0% a class, median 3.0%" in lines
    assert any("1 predicted but not used (c\\n39)" in line for line in lines)
    few = explanation(GOOD | {"predicted": [1234567, 1, 1, 1]}, ["a\tb", *NAMES[1:]])
    assert [line for line in few if line.startswith("  a\\tb")] == ["  a\\tb     1234567         20      25.0%"]


def test_what_is_not_fitted_is_not_explained(shifted):
    with pytest.raises(ValueError, match="not fitted yet"):
        LinearTCA(shifted.g).explain()


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


@pytest.mark.parametrize("kind", [LinearTCA, MLPTCA, ConditionalTCA])
def test_explaining_changes_nothing_and_a_stream_goes_on(shifted, kind):
    stream, plain = (kind(shifted.g).partial_fit(shifted.z[:180]).partial_fit(shifted.z[180:200]) for _ in range(2))
    before = stream.logits(shifted.z)
    with torch.inference_mode():
        stream.explain()
    assert torch.equal(stream.logits(shifted.z), before)
    for one in (stream, plain):
        one.partial_fit(shifted.z[200:]).solve()
    torch.testing.assert_close(stream.logits(shifted.z), plain.logits(shifted.z), rtol=0, atol=1e-4)
