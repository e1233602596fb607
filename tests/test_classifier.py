from __future__ import annotations

import numpy as np
import pytest
import torch

from clip_tca import ZeroShotClassifier
from clip_tca.core.tensors import check_rows


def test_templates_are_normalised_averaged_and_normalised_again():
    text = torch.tensor([[[3.0, 0.0], [0.0, 2.0]], [[0.0, 1.0], [0.0, 5.0]]])
    g = ZeroShotClassifier(text)
    half = 0.5**0.5
    torch.testing.assert_close(g.text, torch.tensor([[half, half], [0.0, 1.0]]))


def test_logits_are_scaled_similarities():
    g = ZeroShotClassifier(np.array([[2.0, 0.0], [0.0, 3.0]]), scale=10)
    np.testing.assert_allclose(g.logits(np.array([[0.6, 0.8]])), [[6.0, 8.0]])
    assert g.predict(np.array([[0.6, 0.8]])).tolist() == [1]
    np.testing.assert_allclose(g.probabilities(np.array([[0.6, 0.8]])).sum(), 1.0)


def test_half_precision_rows_give_float32_logits():
    g = ZeroShotClassifier(torch.eye(3))
    assert g.logits(torch.eye(3).half()).dtype == torch.float32


@pytest.mark.parametrize(
    ("text", "scale", "says"),
    [
        (torch.ones(4), 1.0, r"got shape \(4,\)"),
        (torch.ones(1, 4), 1.0, "at least 2"),
        (torch.ones(3, 4), 0.0, "positive"),
        (torch.full((3, 4), float("nan")), 1.0, "3 of 3 rows"),
        (torch.ones(3, 0), 1.0, "empty"),
        (torch.eye(4)[[0, 1, 2]] * torch.tensor([[1.0], [0.0], [1.0]]), 1.0, "row 1 is all zeros"),
        (torch.ones(3, 4), None, "scale: None"),
    ],
)
def test_bad_texts_are_refused(text, scale, says):
    with pytest.raises(ValueError, match=says):
        ZeroShotClassifier(text, scale)


def test_whole_numbers_are_no_embeddings():
    with pytest.raises(TypeError, match="int64"):
        ZeroShotClassifier(torch.ones(3, 4, dtype=torch.int64))
    with pytest.raises(TypeError, match="list"):
        ZeroShotClassifier([[1.0, 0.0], [0.0, 1.0]])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_finite_rows_whose_sum_is_not_are_taken(dtype):
    check_rows(torch.full((4, 8), torch.finfo(dtype).max, dtype=dtype))
    both = torch.tensor([[1.0, 2.0], [float("inf"), -float("inf")], [3.0, float("nan")]], dtype=dtype)
    with pytest.raises(ValueError, match=r"2 of 3 rows hold NaN or infinity \(rows 1, 2\)"):
        check_rows(both)
