"""Which pictures a person should look at, so that few of the others are wrong.

Confidences are too sure of themselves where the model is weak. The chance that a label is right is taken as the product
of its two probabilities, before and after adaptation: both have to be sure. It was chosen among eight rules by looking
at the labelled sets of eval/ask.md, which says how well it holds there. Rules that ask neighbours too held more often
where a tenth may be wrong, but kept no label at all where less may be.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from clip_tca.core.checks import check_number


def sureness(before: Tensor, after: Tensor) -> np.ndarray:
    """The chance ``(n,)`` that the label after adaptation is right, by the logits ``(n, c)`` before and after."""
    confidence, label = after.double().softmax(dim=1).max(dim=1)
    sure: np.ndarray = (confidence * before.double().softmax(dim=1).gather(1, label[:, None])[:, 0]).cpu().numpy()
    return sure


def for_review(sure: np.ndarray, most_wrong: float) -> np.ndarray:
    """Whether each picture ``(n,)`` is for a person, so that at most ``most_wrong`` of the rest is expected wrong.

    The rest are the surest: as many as their mean chance to be wrong allows.
    """
    check_number("review_below", most_wrong, 0, 1)
    wrong = 1 - sure
    surest = np.argsort(wrong, kind="stable")
    expected = np.cumsum(wrong[surest]) / np.arange(1, len(wrong) + 1)  # it only grows
    review = np.ones(len(wrong), dtype=bool)
    review[surest[: int((expected <= most_wrong + 1e-12).sum())]] = False
    return review
