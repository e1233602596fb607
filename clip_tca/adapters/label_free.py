"""A score for choosing options without labels, such as by scikit-learn's ``GridSearchCV(…, scoring=label_free_score)``.

An image and its nearest neighbours are mostly of one class, so good predictions tell something about each other: the
score is the mutual information, in nats, of the predicted classes of an image and of a neighbour of it,

    I(ŷ; ŷ′) = Σ_ab P(a, b) log (P(a, b) / P(a)P(b)).

Predictions that ignore what is near get little of it, and predictions of one class for everything get none, however
sure they are. docs/python.md says how well it ranks options, and where it does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clip_tca.adapters.conditional import nearest
from clip_tca.core.tensors import like, to_tensor, unit

NEIGHBOURS = 5
ROWS = 8192
"""Evenly spread rows that are looked at, at most."""


def label_free_score(estimator: Any, z: Any, y: object = None) -> float:  # noqa: ARG001 (scikit-learn gives it)
    """How much the predicted classes of neighbours tell about each other, in nats: from 0 to log c, more is better.

    Args:
        estimator: Anything fitted with ``predict``: an adapter, or a pipeline that ends with one.
        z: ``(n, d)`` embeddings, best such that it was not fitted to; neighbours are the nearest by cosine.
        y: Ignored; scikit-learn gives it.
    """
    rows = to_tensor(z)
    rows = rows[:: max(1, -(-len(rows) // ROWS))]
    if len(rows) < 2:
        raise ValueError(f"embeddings: {len(rows)} row; neighbours need at least 2")
    classes, number = np.unique(np.asarray(estimator.predict(like(rows, z))), return_inverse=True)
    pairs = number[:, None] * len(classes) + number[nearest(unit(rows), NEIGHBOURS).cpu().numpy()]
    joint = np.bincount(pairs.reshape(-1), minlength=len(classes) ** 2).reshape(len(classes), -1)
    joint = (joint + joint.T) / (2 * joint.sum())
    alone = joint.sum(axis=0)
    a, b = np.nonzero(joint)
    return max(0.0, float(np.sum(joint[a, b] * np.log(joint[a, b] / (alone[a] * alone[b])))))
