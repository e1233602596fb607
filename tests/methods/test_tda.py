"""TDA: the original's own outputs, and what holds for its caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.methods.base import Task
from clip_tca.methods.tda import ROWS_AT_ONCE, TDA, Cache

SCALE = 30.0
STORED = load_file(Path(__file__).parent / "references" / "tda.safetensors")
"""Texts, embeddings, and the final logits of github.com/kdiAAA/TDA (its function run_test_tda) on them."""
Z = STORED["embeddings"]


@pytest.fixture
def task() -> Task:
    return Task(ZeroShotClassifier(STORED["text"], SCALE))


def run(method: TDA, z: Tensor = Z, size: int = 40) -> Tensor:
    return torch.cat([method(batch)[1] for batch in z.split(size)])


def zero_shot() -> Tensor:
    return SCALE * Z @ torch.nn.functional.normalize(STORED["text"].mean(dim=0), dim=1).T


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("default", {}),
        ("positive", {"negative_shots": 0}),
        ("negative", {"positive_shots": 0, "negative_alpha": 1.7}),
        ("sketch", {"positive_alpha": 2.363, "positive_beta": 7.45, "negative_shots": 1}),
    ],
)
def test_logits_are_the_original_ones(task: Task, name: str, options: dict[str, Any]) -> None:
    torch.testing.assert_close(run(TDA(task, **options)), STORED[name], atol=1e-4, rtol=0)
    assert (STORED[name] - zero_shot()).abs().max() > 1  # there is something to agree on


@pytest.mark.parametrize("size", [1, 7, 96])
def test_batches_do_not_matter(task: Task, size: int) -> None:
    torch.testing.assert_close(run(TDA(task), size=size), STORED["default"], atol=1e-4, rtol=0)


def test_more_images_than_one_block(task: Task) -> None:
    z = Z.repeat(4, 1)[: ROWS_AT_ONCE + 50]
    torch.testing.assert_close(run(TDA(task), z, size=len(z)), run(TDA(task), z, size=64), atol=1e-4, rtol=0)


def test_order_matters(task: Task) -> None:
    assert not torch.allclose(run(TDA(task), Z.flip(0)).flip(0), run(TDA(task)), atol=1e-2)


def test_without_caches_it_is_zero_shot(task: Task) -> None:
    method = TDA(task, positive_shots=0, negative_shots=0)
    torch.testing.assert_close(run(method), zero_shot(), atol=1e-5, rtol=0)


def test_an_image_sees_itself_in_the_cache(task: Task) -> None:
    logits = TDA(task, negative_shots=0)(Z[:1])[1] - zero_shot()[:1]
    assert logits.max().item() == pytest.approx(2.0, abs=1e-4)  # alpha · exp(0) for its own class
    assert logits.min().item() == pytest.approx(0.0, abs=1e-4)


def test_cache_keeps_the_most_certain(task: Task) -> None:
    cache, z = Cache(2), torch.eye(4)
    votes = cache.visit(z, torch.eye(4), [0, 0, 0, 1], [0.5, 0.3, 0.4, None], beta=0.0)
    assert cache.keys is not None
    assert sorted(cache.keys.argmax(dim=1).tolist()) == [1, 2]  # the third took the place of the first
    assert votes.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0]]


def test_caches_stay_small(task: Task) -> None:
    method = TDA(task)
    run(method)
    assert method.positive_.keys is not None
    assert method.negative_.keys is not None
    assert len(method.positive_.keys) <= 3 * 6
    assert 0 < len(method.negative_.keys) <= 2 * 6


def test_reset_forgets(task: Task) -> None:
    method = TDA(task)
    first = run(method)
    assert not torch.equal(run(method), first)
    method.reset()
    assert torch.equal(run(method), first)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_dtypes(task: Task, dtype: torch.dtype) -> None:
    z, logits = TDA(task)((2 * Z).to(dtype))
    assert z.dtype == logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(len(Z), dtype=z.dtype))
    close = 0.1 if dtype == torch.float16 else 1e-4
    torch.testing.assert_close(logits.float(), STORED["default"], atol=close, rtol=0)


def test_inside_and_outside_of_inference_mode(task: Task) -> None:
    with torch.inference_mode():
        method = TDA(task)
        half = method(Z[:48].clone())
    both = torch.cat([half[1], method(Z[48:])[1]])
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in half)
    torch.testing.assert_close(both, STORED["default"], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positive_shots": -1}, "positive_shots: -1; allowed are whole numbers"),
        ({"negative_shots": 1.5}, "negative_shots: 1.5"),
        ({"positive_beta": -1.0}, "positive_beta: -1.0; allowed are numbers of at least 0"),
        ({"negative_alpha": float("nan")}, "negative_alpha: nan"),
        ({"positive_beta": "x"}, "positive_beta: 'x'; allowed are numbers"),
        ({"entropy_low": "a"}, "entropy_low: 'a'; allowed are numbers"),
        ({"entropy_low": 0.6}, "entropy_low, entropy_high: 0.6, 0.5; the first must be below"),
        ({"mask_high": 0.01}, "mask_low, mask_high: 0.03, 0.01"),
    ],
)
def test_bad_options(task: Task, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TDA(task, **options)


def test_predict_uses_the_state_and_leaves_it(task: Task) -> None:
    method, other = TDA(task), TDA(task)
    start = method.predict(Z)[1]
    run(method, Z[:48]), run(other, Z[:48])
    z, logits = method.predict(Z[48:])
    torch.testing.assert_close(z, Z[48:])
    torch.testing.assert_close(torch.cat([method.predict(row[None])[1] for row in Z[48:]]), logits)
    assert not torch.allclose(logits, start[48:], atol=0.1)
    assert torch.equal(method(Z[48:])[1], other(Z[48:])[1])
