"""Which pictures a person should look at, so that few of the others are wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clip_tca.core.checks import check_number

if TYPE_CHECKING:
    import pandas as pd


def for_review(table: pd.DataFrame, most_wrong: float) -> pd.Series:
    """Whether each picture is for a person, so that at most the share ``most_wrong`` of the rest is expected wrong.

    The rest are the surest: as many as their mean chance to be wrong allows.
    """
    check_number("review_below", most_wrong, 0, 1)
    wrong = 1 - sureness(table)
    by_sureness = np.argsort(wrong, kind="stable")
    expected = np.cumsum(wrong[by_sureness]) / np.arange(1, len(wrong) + 1)
    kept = by_sureness[: int((expected <= most_wrong).sum())]  # the mean of sorted chances only grows
    review = table["changed"].copy()
    review[:] = True
    review.iloc[kept] = False
    return review.rename("review")


def sureness(table: pd.DataFrame) -> np.ndarray:
    """The chance ``(n,)`` that each label is right, as far as confidences tell."""
    sure: np.ndarray = table["confidence"].to_numpy()
    return sure
