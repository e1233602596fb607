"""T3A: the original's own outputs, and what holds for its support sets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.methods.base import Task
from clip_tca.methods.t3a import T3A, most_certain

SCALE = 30.0
STORED = load_file(Path(__file__).parent / "references" / "t3a.safetensors")
"""Texts, embeddings, and the outputs of github.com/matsuolab/T3A (its class T3A) on them in batches of 32."""
Z = STORED["embeddings"]


@pytest.fixture
def task() -> Task:
    return Task(ZeroShotClassifier(STORED["text"], SCALE))


def run(method: T3A, z: Tensor = Z, size: int = 32) -> Tensor:
    return torch.cat([method(batch)[1] for batch in z.split(size)])


def zero_shot() -> Tensor:
    return SCALE * Z @ torch.nn.functional.normalize(STORED["text"].mean(dim=0), dim=1).T


@pytest.mark.parametrize("k", [1, 3, 100])
def test_logits_are_the_original_cosines_times_the_scale(task: Task, k: int) -> None:
    torch.testing.assert_close(run(T3A(task, filter_k=k)), SCALE * STORED[f"k{k}"], atol=1e-4, rtol=0)


def test_single_images_as_the_original_takes_them(task: Task) -> None:
    torch.testing.assert_close(run(T3A(task, filter_k=3), size=1), SCALE * STORED["k3.batch1"], atol=1e-4, rtol=0)


def test_adaptation_changes_predictions(task: Task) -> None:
    assert (run(T3A(task)).argmax(dim=1) != zero_shot().argmax(dim=1)).any()


def test_one_support_is_zero_shot_where_texts_are_the_most_certain(task: Task) -> None:
    torch.testing.assert_close(run(T3A(task, filter_k=1)), zero_shot(), atol=1e-4, rtol=0)


def test_supports_do_not_depend_on_the_batches(task: Task) -> None:
    together, single = T3A(task, filter_k=4), T3A(task, filter_k=4)
    last = run(together, size=len(Z))[-1]
    torch.testing.assert_close(run(single, size=1)[-1], last)
    assert torch.equal(together.supports_, single.supports_)
    assert torch.equal(together.labels_, single.labels_)


def test_sets_hold_the_most_certain_of_each_class(task: Task) -> None:
    method = T3A(task, filter_k=4)
    run(method)
    everything = T3A(task, filter_k=None)
    run(everything)
    assert len(everything.supports_) == 6 + len(Z)
    for c in range(6):
        kept = method.entropy_[method.labels_ == c].sort().values
        assert torch.equal(kept, everything.entropy_[everything.labels_ == c].sort().values[:4])


def test_of_equal_rows_the_first_come_stay() -> None:
    labels, entropy = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([0.5, 0.1, 0.5, 0.5, 0.0])
    assert most_certain(labels, entropy, 2).tolist() == [0, 1, 2, 4]
    assert most_certain(labels, entropy, 1).tolist() == [0, 4]


def test_reset_forgets(task: Task) -> None:
    method = T3A(task, filter_k=3)
    first = run(method)
    assert not torch.equal(run(method), first)
    method.reset()
    assert torch.equal(run(method), first)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_dtypes(task: Task, dtype: torch.dtype) -> None:
    z, logits = T3A(task, filter_k=3)((2 * Z).to(dtype))
    assert z.dtype == logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(len(Z), dtype=z.dtype))
    expected = T3A(task, filter_k=3)(Z)[1]
    torch.testing.assert_close(logits.float(), expected, atol=0.5 if dtype == torch.float16 else 1e-4, rtol=0)


def test_inside_and_outside_of_inference_mode(task: Task) -> None:
    with torch.inference_mode():
        method = T3A(task, filter_k=3)
        half = method(Z[:48].clone())
    both = torch.cat([half[1], method(Z[48:])[1]])
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in half)
    torch.testing.assert_close(both, run(T3A(task, filter_k=3), size=48))


@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_bad_options(task: Task, value: int) -> None:
    with pytest.raises(ValueError, match=r"filter_k: .*; allowed are None or whole numbers of at least 1"):
        T3A(task, filter_k=value)


def test_embeddings_of_another_model(task: Task) -> None:
    with pytest.raises(ValueError, match="dimension 5, but the classifier has 24"):
        T3A(task)(torch.ones(2, 5))


def test_predict_uses_the_state_and_leaves_it(task: Task) -> None:
    method, other = T3A(task), T3A(task)
    start = method.predict(Z)[1]
    run(method, Z[:48]), run(other, Z[:48])
    z, logits = method.predict(Z[48:])
    torch.testing.assert_close(z, Z[48:])
    torch.testing.assert_close(torch.cat([method.predict(row[None])[1] for row in Z[48:]]), logits)
    assert not torch.allclose(logits, start[48:], atol=0.1)
    assert torch.equal(method(Z[48:])[1], other(Z[48:])[1])
