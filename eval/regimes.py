"""Accuracy in every regime: what a method gains over zero-shot where the test set is not a whole, balanced domain.

    python eval/regimes.py EMBEDDINGS.safetensors… [--method NAME…] [--domain NAME…] [--seeds 3] [--output PAGE.md]

EMBEDDINGS are files of stored embeddings (clip_tca/data/embeddings.py). Labels serve for drawing the test sets
and for scoring only. The regimes:

whole          the domain as it is
few classes    images of 2 or 3 classes of up to 19, of every 6.5th class of more (10 of 65); all prompts are kept;
               at least five draws
long tail      class sizes fall from 50 to 1 in proportion, classes in random order, the first of them whole
one class 80%  four of five images are of one class
5 per class    five images of each class
n = 50         fifty random images
64 of 1-4      batches of 64 images of one to four classes, each a test set of its own (the mean of four batches)
64 of 2-10     the same with two to ten classes
random stream  batches of 64 in random order, each predicted after the adapter has seen it and never later ones
sorted stream  the same, class after class

--method takes adapters and base methods on embeddings. A base method that is transductive is given each test set as a
whole, and in the streams is solved for each batch; any other sees batches of 64 everywhere, in random order where the
regime has none.

Without --method the page has the evidence behind the defaults too: what other options give, with the true class shares
as an upper bound, calibration, how far predictions depend on chance, and retrieval.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from page import arguments, show, side_by_side
from torch import Tensor

from clip_tca import MLPTCA, ConditionalTCA, LinearClassifier, LinearTCA
from clip_tca.adapters.conditional import Constants, fit_conditional
from clip_tca.data.embeddings import load_embeddings
from clip_tca.methods.base import Method, Task
from clip_tca.methods.registry import ADAPTERS, BASES, base_method
from clip_tca.studies.frame import accuracy

METHODS = ("linear-tca", "conditional-tca")
BATCH = 64
ON_EMBEDDINGS = (*ADAPTERS, *[name for name in BASES if base_method(name).sees == "embeddings"])
SMALL_BATCHES = {"64 of 1-4": (1, 4), "64 of 2-10": (2, 10)}
BATCHES = 4
"""Small batches of each kind, for each seed."""
FEW_CLASSES_SEEDS = 5
"""Draws of a few classes, at least: which classes are drawn matters more than anything else."""
NOTHING_TO_GAIN = 99.0
"""Zero-shot accuracy from which a domain is left out."""

SHARES: tuple[object, ...] = ("estimated", "uniform", "predicted")
OPTIONS: dict[str, tuple[type[LinearTCA | ConditionalTCA], dict[str, object]]] = {
    **{f"LinearTCA, shares {name}": (LinearTCA, {"shares": name}) for name in SHARES},
    "MLPTCA, 2 layers": (MLPTCA, {"layers": 2}),
    "LinearTCA, k = 10": (LinearTCA, {"k": 10}),
    "LinearTCA, k = 50": (LinearTCA, {"k": 50}),
    "LinearTCA, entropy": (LinearTCA, {"uncertainty": "entropy"}),
    "LinearTCA, gradient": (LinearTCA, {"solver": "gradient"}),
    "LinearTCA, mean only": (LinearTCA, {"solver": "mean"}),
    **{f"ConditionalTCA, shares {name}": (ConditionalTCA, {"shares": name}) for name in SHARES},
    "ConditionalTCA, anchor 0.5": (ConditionalTCA, {"anchor": 0.5}),
    "ConditionalTCA, anchor 2": (ConditionalTCA, {"anchor": 2.0}),
    "ConditionalTCA, 4 rounds": (ConditionalTCA, {"rounds": 4}),
    "ConditionalTCA, 16 rounds": (ConditionalTCA, {"rounds": 16}),
}


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


def draws(y: Tensor, c: int, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Every subset of a domain with labels ``y`` of ``c`` classes: its regime and the indices of its images."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.bincount(y, minlength=c)
    order = torch.randperm(c, generator=generator)
    some = order[: 2 + seed % 2 if c < 20 else round(c / 6.5)]
    yield "few classes", drawn(y, sizes * torch.zeros(c, dtype=torch.int64).scatter(0, some, 1), generator)
    tail = torch.zeros(c).scatter(0, order, 50 ** -torch.linspace(0, 1, c))
    yield "long tail", drawn(y, (tail * sizes[order[0]]).ceil().long(), generator)
    major = sizes.argsort(descending=True)[seed % max(1, c // 2)]
    most = torch.full((c,), float(sizes[major]) / 4 / (c - 1)).ceil().long()
    most[major] = sizes[major]
    yield "one class 80%", drawn(y, most, generator)
    yield "5 per class", drawn(y, torch.full((c,), 5), generator)
    yield "n = 50", torch.randperm(len(y), generator=generator)[:50]
    present = sizes.nonzero()[:, 0]
    for regime, (least, most) in SMALL_BATCHES.items():
        for _ in range(BATCHES):
            count = int(torch.randint(least, most + 1, (), generator=generator))
            index = torch.isin(y, present[torch.randperm(len(present), generator=generator)[:count]]).nonzero()[:, 0]
            yield regime, index[torch.randperm(len(index), generator=generator)[:BATCH]]


def cases(paths: list[str], domains: list[str] | None = None, seeds: int = 3) -> Iterator[Case]:
    """Every test set of the files, or of some of their domains."""
    for path in paths:
        data = load_embeddings(path)
        g = data.classifier()
        for name, (z, y) in data.domains.items():
            if (domains and name not in domains) or accuracy(g.predict(z), y) >= NOTHING_TO_GAIN:
                continue
            yield from domain_cases((Path(path).stem, name), g, z, y, seeds)


def domain_cases(source: tuple[str, str], g: LinearClassifier, z: Tensor, y: Tensor, seeds: int) -> Iterator[Case]:
    """Every test set of one domain."""
    yield Case("whole", source, g, z, y)
    for seed in range(max(seeds, FEW_CLASSES_SEEDS)):
        for regime, index in draws(y, g.n_classes, seed):
            if seed < seeds or regime == "few classes":
                yield Case(regime, source, g, z[index], y[index])
    for seed in range(seeds):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        yield Case("random stream", source, g, z[order], y[order], stream=True)
        place = torch.randperm(g.n_classes, generator=torch.Generator().manual_seed(seed))
        index = order[place[y[order]].argsort(stable=True)]
        yield Case("sorted stream", source, g, z[index], y[index], stream=True)


def predictions(method: str, case: Case) -> Tensor:
    """What an adapter or a base method on embeddings, by its name, predicts for a case."""
    if method not in ADAPTERS:
        return base_predictions(base_method(method), case)
    adapter = ADAPTERS[method].build(case.classifier)
    if not case.stream:
        labels = {"labels": case.y} if ADAPTERS[method].oracle else {}
        return torch.as_tensor(adapter.fit(case.z, **labels).predict(case.z))
    return torch.cat([torch.as_tensor(adapter.partial_fit(b).predict(b)) for b in case.z.split(BATCH)])


def base_predictions(kind: type[Method], case: Case) -> Tensor:
    """What a base method on embeddings predicts: the whole case at once if it is transductive, else in batches."""
    method = kind(Task(case.classifier))  # type: ignore[call-arg]
    n = len(case.z)
    if kind.nature == "transductive" and not case.stream:
        return method(case.z)[1].argmax(dim=1)
    order = torch.arange(n) if case.stream else torch.randperm(n, generator=torch.Generator().manual_seed(0))
    seen = torch.cat([method(batch)[1].argmax(dim=1) for batch in case.z[order].split(BATCH)])
    return torch.empty_like(seen).scatter_(0, order, seen)


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
    """One row for each method, one column for each regime; methods are measured side by side."""
    regimes = list(dict.fromkeys(case.regime for case in found))
    head = "| method | " + " | ".join(regimes) + " | mean | worst | worst, n ≥ 200 |\n" + "|---" * (len(regimes) + 4)
    measured = side_by_side(list(methods), lambda name: row(name, gains(found, methods[name])))
    return "\n".join([head + "|", *(measured[name][0] for name in methods)])


def with_options(kind: type[LinearTCA | ConditionalTCA], options: dict[str, object], case: Case) -> Tensor:
    """What an adapter with these options predicts for a case that is no stream."""
    return torch.as_tensor(kind(case.classifier, **options).fit(case.z).predict(case.z))


def with_true_shares(kind: type[LinearTCA | ConditionalTCA], case: Case) -> Tensor:
    """An oracle: an adapter that is told the true class shares."""
    return with_options(kind, {"shares": torch.bincount(case.y, minlength=case.classifier.n_classes)}, case)


def calibration_error(p: Tensor, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error of the probabilities ``p`` ``(n, c)``, in points."""
    confidence, predicted = p.max(dim=1)
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(bins, dtype=torch.float64)
    gap.index_add_(0, place, (predicted == y).double() - confidence.double())
    return 100 * float(gap.abs().sum()) / len(y)


def calibration(found: list[Case]) -> list[str]:
    """A row for each regime: calibration error before and after ConditionalTCA, mean of the cases."""
    errors: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = {}
    for case in found:
        adapted = ConditionalTCA(case.classifier).fit(case.z).predict_proba(case.z)
        both = case.classifier.predict_proba(case.classifier.prepared(case.z.float())), torch.as_tensor(adapted)
        pair = calibration_error(both[0], case.y), calibration_error(both[1], case.y)
        errors.setdefault(case.regime, {}).setdefault(case.source, []).append(pair)
    lines = ["| regime | g | ConditionalTCA |", "|---|---:|---:|"]
    for regime, domains in errors.items():
        means = [[sum(values) / len(values) for values in zip(*pairs, strict=True)] for pairs in domains.values()]
        before, after = (sum(values) / len(values) for values in zip(*means, strict=True))
        lines.append(f"| {regime} | {before:.1f} | {after:.1f} |")
    return lines


def stability(found: list[Case]) -> list[str]:
    """Share of predictions on whole domains that differ in another order, after noise, and with other neighbours."""
    moved: dict[str, list[float]] = {}
    for case in found:
        z, g = case.classifier.prepared(case.z.float()), case.classifier
        before = ConditionalTCA(g).fit(z).predict(z)
        order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
        noisy = z + 1e-5 * torch.randn(z.shape, generator=torch.Generator().manual_seed(0))
        fitted = fit_conditional(z, g.log_probabilities(z), constants=Constants(sample=1024))
        other = fitted.anchor * g.log_probabilities(z) + z.double() @ fitted.weight.T + fitted.bias
        after = {
            "rows in another order": ConditionalTCA(g).fit(z[order]).predict(z),
            "noise of 1e-5 in every number": ConditionalTCA(g).fit(noisy).predict(noisy),
            "neighbours among 1,024 other rows": other.argmax(dim=1),
        }
        for name, predicted in after.items():
            moved.setdefault(name, []).append(100 * float((torch.as_tensor(predicted) != before).double().mean()))
    lines = ["| change | mean | most |", "|---|---:|---:|"]
    return lines + [f"| {name} | {sum(of) / len(of):.2f} | {max(of):.2f} |" for name, of in moved.items()]


def precision(z: Tensor, y: Tensor, neighbours: int = 10) -> float:
    """Share of the ten nearest images, by cosine, that are of the same class."""
    z = torch.nn.functional.normalize(z.float(), dim=1)
    similarity = (z @ z.T).fill_diagonal_(-2)
    return (y[similarity.topk(neighbours).indices] == y[:, None]).double().mean().item()


def retrieval(found: list[Case]) -> list[str]:
    """A row for each whole domain: image-to-image precision at 10, as it is and after each adapter."""
    lines = ["| domain | as it is | LinearTCA | ConditionalTCA |", "|---|---|---|---|"]
    for case in found:
        moved = [kind(case.classifier).fit(case.z).transform(case.z) for kind in (LinearTCA, ConditionalTCA)]
        figures = [f"{precision(torch.as_tensor(z), case.y):.3f}" for z in (case.z, *moved)]
        lines.append(f"| {' '.join(case.source)} | " + " | ".join(figures) + " |")
    return lines


def zero_shot_line(found: list[Case]) -> str:
    """Zero-shot accuracy of every whole domain."""
    whole = [case for case in found if case.regime == "whole"]
    correct = [accuracy(torch.as_tensor(case.classifier.predict(case.z)), case.y) for case in whole]
    return ", ".join(f"{' '.join(case.source)} {value:.1f}" for case, value in zip(whole, correct, strict=True))


def page(paths: list[str], methods: list[str] | None, domains: list[str] | None, seeds: int) -> str:
    """The whole page, or the table of ``methods`` alone."""
    found = list(cases(paths, domains, seeds))
    if methods:
        return table(found, {name: partial(predictions, name) for name in methods})
    words = [*(Path(p).name for p in paths), *(f"--domain {name}" for name in domains or ()), f"--seeds {seeds}"]
    at_once, whole = [c for c in found if not c.stream], [c for c in found if c.regime == "whole"]
    adapters = {"LinearTCA": LinearTCA, "ConditionalTCA": ConditionalTCA}
    return "\n".join(
        [
            "# What the defaults give, and why they are what they are",
            "",
            f"Printed by `python eval/regimes.py {' '.join(words)} --output",
            "eval/defaults.md`. Points of accuracy gained over zero-shot: mean of the cases (data sets weigh alike),",
            "the worst case in brackets. The regimes are described in [regimes.py](regimes.py); methods see no label.",
            "PACS, OfficeHome and VLCS are from DINOv2 ViT-S/14 with a linear projection into the text space of",
            "MiniLM-L6, those that end in _demo from the bundled model; the others are of real CLIPs.",
            "[clip/](clip/README.md) has more sets of CLIP, [ablation.md](ablation.md) what each constant of",
            "ConditionalTCA is worth. Zero-shot:",
            f"{zero_shot_line(found)}.",
            "",
            table(found, {name: partial(predictions, name) for name in METHODS}),
            "",
            "## With class shares that are known, and with other options",
            "",
            "If you know how frequent the classes are, pass `shares=`: no other option gains as much.",
            "The ORACLE rows are told the true shares.",
            "",
            table(
                at_once,
                {
                    **{f"ORACLE: {name}, true shares": partial(with_true_shares, a) for name, a in adapters.items()},
                    **{name: partial(with_options, kind, options) for name, (kind, options) in OPTIONS.items()},
                },
            ),
            "",
            "## Calibration",
            "",
            "Expected calibration error in points (15 bins), mean of the domains.",
            "",
            *calibration(at_once),
            "",
            "## What chance changes",
            "",
            "Predictions of ConditionalTCA on whole domains that differ, in percent.",
            "",
            *stability(whole),
            "",
            "## Retrieval",
            "",
            "Image-to-image precision at 10 on whole domains, after `transform`.",
            "",
            *retrieval(whole),
            "",
        ]
    )


def main() -> None:
    """Print or write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--method", action="append", choices=ON_EMBEDDINGS, help="print the table of these alone")
    options = parser.parse_args()
    logging.getLogger("clip_tca").setLevel(logging.ERROR)
    show(page(options.embeddings, options.method, options.domain, options.seeds), options.output)


if __name__ == "__main__":
    main()
