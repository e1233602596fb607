from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from clip_tca import LinearClassifier, ZeroShotClassifier
from tests.tiny_clip import MODEL
from tests.tiny_transformers import LENGTH, tiny


def test_templates_are_normalised_averaged_and_normalised_again():
    text = torch.tensor([[[3.0, 0.0], [0.0, 2.0]], [[0.0, 1.0], [0.0, 5.0]]])
    g = ZeroShotClassifier(text)
    half = 0.5**0.5
    torch.testing.assert_close(g.text, torch.tensor([[half, half], [0.0, 1.0]]))


def test_logits_are_scaled_similarities():
    g = ZeroShotClassifier(np.array([[2.0, 0.0], [0.0, 3.0]]), scale=10)
    np.testing.assert_allclose(g.logits(np.array([[0.6, 0.8]])), [[6.0, 8.0]])
    assert g.predict(np.array([[0.6, 0.8]])).tolist() == [1]
    p = g.predict_proba(np.array([[0.6, 0.8]]))
    np.testing.assert_allclose(p, [[1 / (1 + np.exp(2)), 1 / (1 + np.exp(-2))]])


@pytest.mark.parametrize(
    ("text", "scale", "says"),
    [
        (torch.ones(4), 1.0, r"got shape \(4,\)"),
        (torch.ones(3, 4), 0.0, "positive"),
        (torch.full((3, 4), float("nan")), 1.0, "3 of 3 rows"),
        (torch.eye(4)[[0, 1, 2]] * torch.tensor([[1.0], [0.0], [1.0]]), 1.0, "row 1 is all zeros"),
        (torch.ones(3, 4), None, "scale: None"),
    ],
)
def test_bad_texts_are_refused(text, scale, says):
    with pytest.raises(ValueError, match=says):
        ZeroShotClassifier(text, scale)


def test_the_fingerprint_tells_weights_scale_and_bias_apart():
    text = torch.eye(3)
    made = [(text, 100.0, 0.0), (text, 50.0, 0.0), (text.flip(0), 100.0, 0.0), (text, 100.0, -3.5)]
    others = [ZeroShotClassifier(rows, scale, bias=bias) for rows, scale, bias in made]
    others += [LinearClassifier(100 * text), LinearClassifier(100 * text, normalize=True)]
    assert len({g.fingerprint() for g in others}) == len(others) - 1  # prompts and a head that scales rows are the same
    z = torch.tensor([[3.0, 4.0, 0.0]])
    assert others[-1].logits(z).tolist() == [pytest.approx([60.0, 80.0, 0.0])]
    assert others[-2].logits(z).tolist() == [[300.0, 400.0, 0.0]]
    assert ZeroShotClassifier(text.clone(), classes=list("abc")).fingerprint() == others[0].fingerprint()


def test_names_come_with_the_predictions():
    z = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.4]])
    g = ZeroShotClassifier(np.eye(2), classes=np.array(["cat", "a dog"]))
    assert g.predict(z, names=True).tolist() == ["a dog", "cat", "a dog"]
    assert g.named(["x", "y"]).predict(z, names=True).tolist() == ["y", "x", "y"]
    assert repr(g) == "ZeroShotClassifier(2 classes of 2 dimensions: cat, a dog)"
    with pytest.raises(ValueError, match="names: the classifier has none; give it names"):
        ZeroShotClassifier(np.eye(2)).predict(z, names=True)


def test_the_score_is_the_share_of_right_predictions():
    z, g = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.4], [0.9, 0.1]]), ZeroShotClassifier(np.eye(2))
    for y in ([1, 0, 0, 0], np.array([1, 0, 0, 0]), torch.tensor([1, 0, 0, 0])):
        assert g.score(z, y) == g.score(torch.from_numpy(z), y) == 0.75
    named = g.named(["cat", "dog"])
    assert named.score(z, ["dog", "cat", "cat", "cat"]) == 0.75
    with pytest.raises(ValueError, match="y: 'cow' is no class; the classes are cat, dog"):
        named.score(z, ["dog", "cat", "cow", "cat"])
    with pytest.raises(ValueError, match="there are 4 embeddings; one label for each is needed"):
        g.score(z, [1, 0])
    with pytest.raises(ValueError, match="values 0 to 2; allowed are 0 to 1"):
        g.score(z, [1, 0, 2, 0])


# -- prompts of a model at hand ----------------------------------------------------------------------------------------

NAMES = ["cat", "dog", "house"]
TEMPLATES = ("a photo of a {}", "a {} .")


def by_hand(encode) -> torch.Tensor:
    """CLIP's prompt ensemble: mean of unit embeddings, of unit length again."""
    parts = [encode([template.format(name) for name in NAMES]) for template in TEMPLATES]
    mean = sum(torch.nn.functional.normalize(part.double(), dim=1) for part in parts) / len(parts)
    return torch.nn.functional.normalize(mean, dim=1).float()


def test_prompts_are_encoded_by_a_model_of_open_clip():
    import open_clip

    model = open_clip.create_model(MODEL)
    tokenizer = open_clip.get_tokenizer(MODEL)
    g = ZeroShotClassifier.from_prompts(model, tokenizer, NAMES, TEMPLATES)
    assert model.training  # as it came; the prompts were encoded without dropout
    with torch.no_grad():
        expected = by_hand(lambda texts: model.eval().encode_text(tokenizer(texts)))
    torch.testing.assert_close(g.text, expected, rtol=0, atol=1e-5)
    assert g.scale == pytest.approx(model.logit_scale.exp().item())
    assert g.classes == tuple(NAMES)
    written = [lambda name: f"a photo of a {name}", lambda name: f"a {name} ."]  # as open_clip has its own templates
    assert torch.equal(ZeroShotClassifier.from_prompts(model, tokenizer, NAMES, written).text, g.text)
    single = ZeroShotClassifier.from_prompts(model, tokenizer, NAMES, scale=7.0)
    assert torch.equal(single.text, ZeroShotClassifier.from_prompts(model, tokenizer, NAMES, "a photo of a {}").text)
    assert single.scale == 7.0


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_prompts_are_encoded_by_a_model_of_transformers(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = tiny(kind, tmp_path / kind)
    model = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    g = ZeroShotClassifier.from_prompts(model, tokenizer, NAMES, TEMPLATES)

    def encode(texts: list[str]) -> torch.Tensor:
        tokens = tokenizer(texts, padding="max_length", max_length=LENGTH, return_tensors="pt")
        masks = {} if kind == "siglip" else {"attention_mask": tokens["attention_mask"]}
        with torch.no_grad():
            found = model.get_text_features(input_ids=tokens["input_ids"], **masks)
        return getattr(found, "pooler_output", found)

    torch.testing.assert_close(g.text, by_hand(encode), rtol=0, atol=1e-5)
    assert g.scale == pytest.approx(model.logit_scale.exp().item())
    assert g.bias.tolist() == pytest.approx([-3.5] * 3 if kind == "siglip" else [0.0] * 3)
    processor = SimpleNamespace(tokenizer=tokenizer, image_processor=None)
    assert torch.equal(ZeroShotClassifier.from_prompts(model, processor, NAMES, TEMPLATES).text, g.text)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (torch.nn.Linear(2, 2), {}, "model: a Linear has neither encode_text .open_clip. nor get_text_features"),
        (None, {"templates": "a photo"}, r"templates: 'a photo' has no \{\}; write it where the class name goes"),
        (None, {"templates": []}, "templates: none; give at least one"),
        (None, {"classes": "cat"}, "classes: 'cat'; a list of names is needed"),
        (None, {"classes": ["cat", "cat"]}, "classes: 'cat' occurs twice; every class needs a name of its own"),
    ],
)
def test_prompts_that_can_t_be_encoded_are_refused_in_one_line(model, options, says):
    with pytest.raises((TypeError, ValueError), match=says) as caught:
        ZeroShotClassifier.from_prompts(model, None, **{"classes": NAMES, **options})
    assert "\n" not in str(caught.value)
