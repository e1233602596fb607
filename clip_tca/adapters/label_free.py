"""A score to choose options without labels, for example ``GridSearchCV(…, scoring=label_free_score)`` of scikit-learn.

An image and its nearest neighbours mostly belong to one class, so good predictions of neighbours agree. The score is
the mutual information, in nats, of the predicted classes of an image and of one of its neighbours,

    I(ŷ; ŷ′) = Σ_ab P(a, b) log (P(a, b) / P(a)P(b)).

Predictions that ignore neighbours score low. Predictions of one class for everything score zero, however confident they
are. docs/python.md shows how well the score ranks options, and where it fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clip_tca.adapters.statistics import nearest
from clip_tca.core.tensors import like, to_tensor, unit

NEIGHBOURS = 5
ROWS = 8192
"""The most rows that are used, evenly spread."""


def label_free_score(estimator: Any, z: Any, y: object = None) -> float:  # noqa: ARG001 (scikit-learn gives it)
    """Mutual information of the predicted classes of neighbouring images, in nats: 0 to log c, higher is better.

    Args:
        estimator: A fitted adapter, or a pipeline that ends with one.
        z: ``(n, d)`` embeddings, preferably not those it was fitted to. Neighbours are the nearest by cosine.
        y: Ignored; scikit-learn passes it.
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
