"""AdaNPC: the original's own outputs, and what holds for its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.methods import adanpc
from clip_tca.methods.adanpc import AdaNPC
from clip_tca.methods.base import Task

SCALE = 30.0
STORED = load_file(Path(__file__).parent / "references" / "adanpc.safetensors")
"""Texts, embeddings, and the votes of github.com/yfzhang114/AdaNPC (its class AdaNPC) on them in batches of 32.

Its memory was given the texts in place of source data. ``votes``: then left to itself; ``zero-shot``: with the batch
added (by its ``extend_test``) under the classes of the text classifier before it was predicted."""
Z = STORED["embeddings"]


@pytest.fixture
def task() -> Task:
    return Task(ZeroShotClassifier(STORED["text"], SCALE))


def run(method: AdaNPC, z: Tensor = Z, size: int = 32) -> Tensor:
    return torch.cat([method(batch)[1] for batch in z.split(size)])


def zero_shot() -> Tensor:
    return SCALE * Z @ torch.nn.functional.normalize(STORED["text"].mean(dim=0), dim=1).T


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("votes", {"labels": "votes", "k": 6, "threshold": 0.2}),
        ("votes.sharp", {"labels": "votes", "k": 4, "temperature": 0.01, "threshold": 0.3}),
        ("zero-shot", {"k": 20, "threshold": 0.5}),
        ("zero-shot.broad", {"k": 30, "temperature": 0.2}),
    ],
)
def test_logits_are_the_logarithm_of_the_original_votes(task: Task, name: str, options: dict[str, Any]) -> None:
    logits = run(AdaNPC(task, **options))
    torch.testing.assert_close(logits, STORED[name].log(), atol=1e-4, rtol=0)
    assert (logits.argmax(dim=1) != zero_shot().argmax(dim=1)).any()  # there is something to agree on


def test_probabilities_are_the_votes(task: Task) -> None:
    p = run(AdaNPC(task)).softmax(dim=1)
    torch.testing.assert_close(p, run(AdaNPC(task)).exp(), atol=1e-4, rtol=0)


def test_texts_alone_predict_as_zero_shot(task: Task) -> None:
    method = AdaNPC(task, threshold=1.1)
    assert torch.equal(run(method).argmax(dim=1), zero_shot().argmax(dim=1))
    assert len(method.memory_) == 6


def test_one_neighbour_is_zero_shot(task: Task) -> None:
    method = AdaNPC(task, k=1, threshold=0)  # the nearest in memory is the image itself
    assert torch.equal(run(method).argmax(dim=1), zero_shot().argmax(dim=1))


def test_memory_does_not_depend_on_the_batches(task: Task) -> None:
    together, single = AdaNPC(task), AdaNPC(task)
    last = run(together, size=len(Z))[-1]
    torch.testing.assert_close(run(single, size=1)[-1], last)
    assert torch.equal(together.memory_, single.memory_)
    assert torch.equal(together.memory_labels_, single.memory_labels_)


def test_only_confident_images_join(task: Task) -> None:
    method = AdaNPC(task, threshold=0.9)
    run(method)
    p = zero_shot().softmax(dim=1).amax(dim=1)
    torch.testing.assert_close(method.memory_[6:], Z[p >= 0.9])
    assert 6 < len(method.memory_) < 6 + len(Z)


def test_blocks_do_not_matter(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(AdaNPC(task), size=len(Z))
    monkeypatch.setattr(adanpc, "ROWS_AT_ONCE", 7)
    torch.testing.assert_close(run(AdaNPC(task), size=len(Z)), expected)


@pytest.mark.parametrize("labels", ["zero-shot", "votes"])
def test_reset_forgets(task: Task, labels: Any) -> None:
    method = AdaNPC(task, labels=labels)
    first = run(method)
    assert not torch.equal(run(method), first)
    method.reset()
    assert torch.equal(run(method), first)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("labels", ["zero-shot", "votes"])
def test_dtypes(task: Task, dtype: torch.dtype, labels: Any) -> None:
    z, logits = AdaNPC(task, labels=labels)((2 * Z).to(dtype))
    assert z.dtype == logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(len(Z), dtype=z.dtype))
    close = 0.05 if dtype == torch.float16 else 1e-4
    torch.testing.assert_close(logits.float(), AdaNPC(task, labels=labels)(Z)[1], atol=close, rtol=0)


def test_inside_and_outside_of_inference_mode(task: Task) -> None:
    with torch.inference_mode():
        method = AdaNPC(task)
        half = method(Z[:48].clone())
    both = torch.cat([half[1], method(Z[48:])[1]])
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in half)
    torch.testing.assert_close(both, run(AdaNPC(task), size=48))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k: 0; allowed are whole numbers of at least 1"),
        ({"temperature": 0}, "temperature: 0; allowed are numbers above 0"),
        ({"temperature": "hot"}, "temperature: 'hot'; allowed are numbers above 0"),
        ({"threshold": -0.1}, "threshold: -0.1; allowed are numbers of at least 0"),
        ({"labels": "truth"}, "labels: 'truth'; allowed are zero-shot, votes"),
    ],
)
def test_bad_options(task: Task, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaNPC(task, **options)


def test_predict_uses_the_state_and_leaves_it(task: Task) -> None:
    method, other = AdaNPC(task), AdaNPC(task)
    start = method.predict(Z)[1]
    run(method, Z[:48]), run(other, Z[:48])
    z, logits = method.predict(Z[48:])
    torch.testing.assert_close(z, Z[48:])
    torch.testing.assert_close(torch.cat([method.predict(row[None])[1] for row in Z[48:]]), logits)
    assert not torch.allclose(logits, start[48:], atol=0.1)
    assert torch.equal(method(Z[48:])[1], other(Z[48:])[1])
