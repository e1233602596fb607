from __future__ import annotations

import pytest
import torch

from clip_tca.methods import clipartt
from clip_tca.methods.clipartt import CLIPArTT, agreement
from tests.methods.small import RESNET, VIT, TowerFacts, clip, largest, logits, original, pictures, shared_task, task

FIRST, SECOND = pictures(8, "first").double(), pictures(8, "second").double()
LARGE = (pictures(8, "first", 64).double(), pictures(8, "second", 64).double())


class TestCLIPArTT(TowerFacts):
    method = CLIPArTT


def vit(**options: float) -> CLIPArTT:
    return CLIPArTT(task(clip(VIT).double()), **options)


def test_gives_what_the_original_gives() -> None:
    theirs = original("clipartt")
    assert largest(logits(vit(), FIRST, SECOND), theirs["vit"]) < 1e-4
    assert largest(logits(vit(continual=True), FIRST, SECOND), theirs["continual"]) < 1e-4
    assert largest(logits(vit(k=1), FIRST), theirs["k-1"]) < 1e-4
    assert largest(logits(vit(k=5), FIRST), theirs["k-5"]) < 1e-4
    assert largest(logits(vit(lr=1e-4), FIRST), theirs["1e-4"]) < 1e-4
    assert largest(theirs["vit"][:8], theirs["plain"]) > 5, "the reference has adapted"


def test_gives_what_the_original_gives_on_a_resnet() -> None:
    method = CLIPArTT(task(clip(RESNET).double()))
    assert largest(logits(method, *LARGE), original("clipartt")["resnet"]) < 1e-4


def test_single_precision_follows() -> None:
    ours = logits(CLIPArTT(task(clip(VIT))), FIRST.float(), SECOND.float())
    assert largest(ours, original("clipartt")["vit"]) < 0.02


def test_one_image_alone_changes_nothing() -> None:
    method = vit()
    before = method.logits(method.embed(FIRST[:1]))
    assert torch.equal(logits(method, FIRST[:1]), before)
    assert largest(before, original("clipartt")["single"]) < 1e-4


def test_prompts_join_classes_in_their_order() -> None:
    method = vit()
    texts = ["a photo of a giraffe or dog or person", "a photo of a dog or giraffe or person"]
    tokens = method.prompts.tokenizer(texts)
    expected = method.task.model.encode_text(tokens, normalize=True)
    assert largest(method.prompt_embeddings([[2, 0, 6], [0, 2, 6]]), expected) < 1e-12
    assert largest(expected[0], expected[1]) > 1e-3


def test_the_text_tower_runs_only_for_new_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    method, asked = vit(), []
    real = method.task.model.encode_text
    monkeypatch.setattr(method.task.model, "encode_text", lambda tokens: asked.append(len(tokens)) or real(tokens))
    first = method.prompt_embeddings([[0, 1, 2], [3, 4, 5], [0, 1, 2]])
    again = method.prompt_embeddings([[3, 4, 5], [0, 1, 2], [0, 1, 3]])
    assert asked == [2, 1]
    assert torch.equal(first[:2], again[[1, 0]])
    monkeypatch.setattr(clipartt, "PROMPTS", 3)
    assert largest(method.prompt_embeddings([[6, 5, 4], [0, 1, 2]])[1:], first[:1]) < 1e-12


@pytest.mark.parametrize("k", [0, 8, 2.0, True])
def test_k_must_fit_the_classes(k: float) -> None:
    with pytest.raises(ValueError, match=f"k: {k}; allowed are whole numbers from 1 to 7"):
        CLIPArTT(shared_task(), k=k)


def test_agreement_of_two_by_hand() -> None:
    """Orthogonal images and texts: Q = softmax rows of [[100, 0], [0, 100]], the identity; L = log(1 + e⁻²)."""
    eye = torch.eye(2, dtype=torch.float64)
    assert float(agreement(eye, eye, 2.0)) == pytest.approx(0.126928, abs=1e-6)
