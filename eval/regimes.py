"""Accuracy in every regime: what a method gains over zero-shot where the test set is not a whole, balanced domain.

    python eval/regimes.py EMBEDDINGS.safetensors… [--method NAME…] [--domain NAME…] [--seeds 3] [--output PAGE.md]

EMBEDDINGS are files of stored embeddings (clip_tca/datasets/embedding_set.py). Labels serve for drawing the test sets
and for scoring only. The regimes:

whole          the domain as it is
few classes    images of 2 or 3 classes of up to 19, of every 6.5th class of more (10 of 65), all prompts kept
long tail      class sizes fall from 50 to 1 in proportion, classes in random order
one class 80%  four of five images are of one class
5 per class    five images of each class
n = 50         fifty random images
random stream  batches of 64 in random order, each predicted after the adapter has seen it and never later ones
sorted stream  the same, class after class
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clip_tca import LinearClassifier, ZeroShotClassifier
from clip_tca.adapters.registry import ADAPTERS
from clip_tca.datasets.embedding_set import load_embeddings

BATCH = 64
HOPELESS = 99.0
"""Zero-shot accuracy from which a domain is left out: there is nothing to gain."""


@dataclass
class Case:
    """One test set: the images of a regime, in the order in which they come.

    Attributes:
        regime: Its name.
        source: File and domain.
        classifier: g.
        z: ``(n, d)`` embeddings.
        y: ``(n,)`` labels, for scoring.
        stream: Whether they come in batches.
    """

    regime: str
    source: tuple[str, str]
    classifier: LinearClassifier
    z: Tensor
    y: Tensor
    stream: bool = False


def drawn(y: Tensor, wanted: Tensor, generator: torch.Generator) -> Tensor:
    """Indices of at most ``wanted[c]`` random images of each class, in random order."""
    order = torch.randperm(len(y), generator=generator)
    order = order[y[order].argsort(stable=True)]
    sizes = torch.bincount(y, minlength=len(wanted))
    rank = torch.arange(len(y)) - (sizes.cumsum(0) - sizes)[y[order]]
    index = order[rank < wanted[y[order]]]
    return index[torch.randperm(len(index), generator=generator)]


def fitting(shares: Tensor, sizes: Tensor) -> Tensor:
    """Class counts in proportion to ``shares``, as many as ``sizes`` allow for all but the smallest classes.

    Half of the classes may be smaller than their share asks; else one rare class would decide the size of all.
    """
    present = shares > 0
    scale = (sizes[present] / shares[present]).sort().values
    return (shares * scale[len(scale) // 2]).ceil().long()


def draws(y: Tensor, c: int, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Every subset of a domain with labels ``y`` of ``c`` classes: its regime and the indices of its images."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.bincount(y, minlength=c)
    order = torch.randperm(c, generator=generator)
    some = order[: 2 + seed % 2 if c < 20 else round(c / 6.5)]
    yield "few classes", drawn(y, sizes * torch.zeros(c, dtype=torch.int64).scatter(0, some, 1), generator)
    tail = torch.zeros(c).scatter(0, order, 50 ** -torch.linspace(0, 1, c))
    yield "long tail", drawn(y, fitting(tail, sizes), generator)
    major = sizes.argsort(descending=True)[seed % max(1, c // 2)]
    most = torch.full((c,), float(sizes[major]) / 4 / (c - 1)).ceil().long()
    most[major] = sizes[major]
    yield "one class 80%", drawn(y, most, generator)
    yield "5 per class", drawn(y, torch.full((c,), 5), generator)
    yield "n = 50", torch.randperm(len(y), generator=generator)[:50]


def cases(paths: list[str], domains: list[str] | None = None, seeds: int = 3) -> Iterator[Case]:
    """Every test set of the files, or of some of their domains."""
    for path in paths:
        data = load_embeddings(path)
        g = ZeroShotClassifier(data.text, data.scale)
        for name, (z, y) in data.domains.items():
            if (domains and name not in domains) or accuracy(g.predict(z), y) >= HOPELESS:
                continue
            yield from domain_cases((Path(path).stem, name), g, z, y, seeds)


def domain_cases(source: tuple[str, str], g: LinearClassifier, z: Tensor, y: Tensor, seeds: int) -> Iterator[Case]:
    """Every test set of one domain."""
    yield Case("whole", source, g, z, y)
    for seed in range(seeds):
        for regime, index in draws(y, g.n_classes, seed):
            yield Case(regime, source, g, z[index], y[index])
    for seed in range(seeds):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        yield Case("random stream", source, g, z[order], y[order], stream=True)
        place = torch.randperm(g.n_classes, generator=torch.Generator().manual_seed(seed))
        index = order[place[y[order]].argsort(stable=True)]
        yield Case("sorted stream", source, g, z[index], y[index], stream=True)


def accuracy(predicted: Tensor, y: Tensor) -> float:
    """In percent."""
    return 100 * (predicted == y).to(torch.float64).mean().item()


def predictions(method: str, case: Case) -> Tensor:
    """What an adapter, by its name, predicts for a case."""
    adapter = ADAPTERS[method].build(case.classifier)
    if not case.stream:
        labels = {"labels": case.y} if ADAPTERS[method].oracle else {}
        return torch.as_tensor(adapter.fit(case.z, **labels).predict(case.z))
    return torch.cat([torch.as_tensor(adapter.partial_fit(b).predict(b)) for b in case.z.split(BATCH)])


Gains = dict[tuple[str, str], list[tuple[float, int]]]


def gains(found: list[Case], predict: Callable[[Case], Tensor]) -> Gains:
    """Gain over zero-shot and number of images of every case, by regime and file."""
    result: Gains = {}
    for case in found:
        gain = accuracy(predict(case), case.y) - accuracy(torch.as_tensor(case.classifier.predict(case.z)), case.y)
        result.setdefault((case.regime, case.source[0]), []).append((gain, len(case.y)))
    return result


def row(name: str, found: Gains) -> str:
    """Mean gain of each regime (files weigh the same), worst case in brackets; then their mean and worst ones."""
    regimes: dict[str, list[list[tuple[float, int]]]] = {}
    for (regime, _), values in found.items():
        regimes.setdefault(regime, []).append(values)
    means = {
        regime: sum(sum(gain for gain, _ in values) / len(values) for values in files) / len(files)
        for regime, files in regimes.items()
    }
    every = [pair for values in found.values() for pair in values]
    cells = [f"{means[r]:+.1f} ({min(gain for v in files for gain, _ in v):+.1f})" for r, files in regimes.items()]
    large = min((gain for gain, n in every if n >= 200), default=float("nan"))
    tail = f"{sum(means.values()) / len(means):+.2f} | {min(gain for gain, _ in every):+.1f} | {large:+.1f}"
    return f"| {name} | " + " | ".join(cells) + f" | {tail} |"


def table(found: list[Case], methods: dict[str, Callable[[Case], Tensor]]) -> str:
    """One row for each method, one column for each regime."""
    regimes = list(dict.fromkeys(case.regime for case in found))
    head = "| method | " + " | ".join(regimes) + " | mean | worst | worst, n ≥ 200 |\n" + "|---" * (len(regimes) + 4)
    return "\n".join([head + "|", *(row(name, gains(found, predict)) for name, predict in methods.items())])
