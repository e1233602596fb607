"""How well ``label_free_score`` ranks settings of the adapters, against their accuracy: the table of docs/python.md.

    python eval/label_free.py FILE.safetensors…

Each of 33 settings is fitted to two thirds of a domain and scored on the last third, three times, as ``GridSearchCV``
does it. Labels only count what was right. Prints, for each domain, the rank correlation (Spearman's) of score and
accuracy over the settings, and the accuracy of the setting with the best score, beside that of others.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clip_tca import ConditionalTCA, LinearClassifier, LinearTCA, label_free_score, load_embeddings

FOLDS, MOST = 3, 1500
DEFAULTS = ("linear estimated auto monge", "conditional estimated 1.0")


def settings(g: LinearClassifier) -> dict[str, LinearTCA | ConditionalTCA]:
    """Adapters by name: sensible ones, and some that are known to be bad."""
    linear = {
        f"linear {shares} {k} {solver}": LinearTCA(g, shares=shares, k=k, solver=solver)
        for shares in ("estimated", "uniform", "predicted", "global")
        for k in (5, "auto", 80)
        for solver in ("monge", "mean")
        if (shares, k) != ("global", "auto")
    }
    conditional = {
        f"conditional {shares} {anchor}": ConditionalTCA(g, shares=shares, anchor=anchor)
        for shares in ("estimated", "uniform", "predicted")
        for anchor in (0.3, 1.0, 3.0)
    }
    rest = {f"linear global {k} coral": LinearTCA(g, shares="global", k=k, solver="coral") for k in (20, 320)}
    return {**linear, **rest, **conditional}


def ranks(values: list[float]) -> np.ndarray:
    """Ranks ``(n,)``; equal values share theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def row(name: str, g: LinearClassifier, z: Tensor, y: Tensor) -> str:
    """A line of the table."""
    keep = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:MOST]
    z, y, fold = z[keep], y[keep], torch.arange(len(keep)) % FOLDS
    scores, accuracies = {}, {}
    for setting, adapter in settings(g).items():
        told = []
        for out in range(FOLDS):
            adapter.fit(z[fold != out])
            told.append((label_free_score(adapter, z[fold == out]), adapter.score(z[fold == out], y[fold == out])))
        scores[setting], accuracies[setting] = np.mean(told, axis=0)
    correlation = np.corrcoef(ranks(list(scores.values())), ranks(list(accuracies.values())))[0, 1]
    zero_shot = float((g.predict(g.prepared(z)) == y).double().mean())
    values = [zero_shot, *(accuracies[default] for default in DEFAULTS)]
    values += [accuracies[max(scores, key=scores.__getitem__)], max(accuracies.values()), min(accuracies.values())]
    return f"| {name} | {correlation:+.2f} | " + " | ".join(f"{100 * value:.1f}" for value in values) + " |"


def main(paths: list[str]) -> None:
    """Print the table."""
    logging.getLogger("clip_tca").setLevel(logging.ERROR)  # about small folds and absent classes
    print("| domain | rank correlation | zero-shot | LinearTCA | ConditionalTCA | chosen | best | worst |")
    print("|---|---|---|---|---|---|---|---|")
    for path in paths:
        data = load_embeddings(path)
        for domain, (z, y) in data.domains.items():
            print(row(f"{Path(path).stem} {domain}", data.classifier(), z, y), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
