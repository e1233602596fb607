"""Options can be ranked without labels, by what the predictions of neighbours tell about each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import mutual_info_score
from sklearn.neighbors import NearestNeighbors

from clip_tca import ConditionalTCA, LinearTCA, label_free_score


def test_it_is_that_of_scikit_learn(shifted):
    adapter = ConditionalTCA(shifted.g).fit(shifted.z)
    unit = torch.nn.functional.normalize(shifted.z.double(), dim=1).numpy()
    near = NearestNeighbors(n_neighbors=6).fit(unit).kneighbors(unit, return_distance=False)[:, 1:]
    answers = adapter.predict(shifted.z).numpy()
    ours, theirs = np.repeat(answers, 5), answers[near].reshape(-1)
    both = mutual_info_score(np.r_[ours, theirs], np.r_[theirs, ours])  # a pair counts in both directions
    assert label_free_score(adapter, shifted.z) == pytest.approx(both, abs=1e-9)
    assert label_free_score(adapter, shifted.z, shifted.y.flip(0)) == label_free_score(adapter, shifted.z)


def test_it_ranks_options_on_real_embeddings_as_labels_do(pacs):
    """Over the domains with anything to gain; labels only count what was right."""
    options = [{"shares": shares, "k": k} for shares in ("estimated", "uniform", "global") for k in (5, 20, 80)]
    for domain in ("art_painting", "cartoon", "sketch"):
        z, y = (part[::2] for part in pacs.domains[domain])
        adapters = [LinearTCA(pacs.classifier(), **chosen) for chosen in options]
        adapters += [ConditionalTCA(pacs.classifier(), anchor=anchor) for anchor in (0.3, 1.0, 3.0)]
        scores = [label_free_score(adapter.fit(z[::2]), z[1::2]) for adapter in adapters]
        right = [adapter.score(z[1::2], y[1::2]) for adapter in adapters]
        assert spearmanr(scores, right).statistic > 0.8, domain
        assert right[int(np.argmax(scores))] > max(right) - 0.02, domain
