"""The paper's PACS table with ResNet-18, on stored features of such networks: what reproduces, and what does not.

    python eval/paper/resnet18.py DIR [--output FILE.md]

DIR holds ``pacs_resnet18_DOMAIN.safetensors`` for the four domains, each with the features of a ResNet-18 that was
fine-tuned on the other three, its head and held-out source features (clip_tca/data/embeddings.py). Labels score;
rows marked ORACLE use them, or source data, for more than that. The paper's figures are in reported.json.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from clip_tca import MLPTCA, ConditionalTCA, LinearClassifier, LinearTCA
from clip_tca.adapters.base import Adapter
from clip_tca.adapters.linear import gradient
from clip_tca.adapters.statistics import moments
from clip_tca.core.files import write_text
from clip_tca.data.arrays import SafetensorsFile
from clip_tca.data.embeddings import EmbeddingSet, load_embeddings
from clip_tca.methods.base import Task
from clip_tca.methods.registry import PAPER, PUBLIC_CODE
from clip_tca.methods.weights import T3A
from clip_tca.studies.frame import accuracy, shuffled
from clip_tca.studies.paper import predict_aligned

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
REPORTED = Path(__file__).with_name("reported.json")
BATCH = 128
PUBLIC_PSEUDO_SOURCE = {name: value for name, value in PUBLIC_CODE.items() if name != "solver"}
"""Options of the public code that an MLP has too."""

Predict = Callable[[EmbeddingSet], Tensor]


def parts(data: EmbeddingSet) -> tuple[LinearClassifier, Tensor, Tensor, Tensor]:
    """g, features ``(n, d)`` and labels ``(n,)`` of the target, and features of the source."""
    if data.source is None:
        raise ValueError("source: no source.features in the file; the run with source statistics needs them")
    (z, y), source = data.domains["target"], data.source[0]
    return data.classifier(), z.float(), y, source.float()


def by(adapter: Callable[..., Adapter], **options: object) -> Predict:
    """An adapter without labels."""

    def predict(data: EmbeddingSet) -> Tensor:
        g, z, _, _ = parts(data)
        return torch.as_tensor(adapter(g, **options).fit(z).predict(z))

    return predict


def leaked(adapter: Callable[..., Adapter], **options: object) -> Predict:
    """An adapter that is given the true labels, as the public code gives them."""

    def predict(data: EmbeddingSet) -> Tensor:
        g, z, y, _ = parts(data)
        return torch.as_tensor(adapter(g, **options).fit(z, labels=y).predict(z))

    return predict


def true_shares(adapter: Callable[..., Adapter]) -> Predict:
    """An adapter that is told the true class shares, and no label."""

    def predict(data: EmbeddingSet) -> Tensor:
        g, z, y, _ = parts(data)
        return torch.as_tensor(adapter(g, shares=torch.bincount(y, minlength=g.n_classes)).fit(z).predict(z))

    return predict


def t3a(filter_k: int | None) -> Predict:
    """T3A in batches of 128 in a seeded order."""

    def predict(data: EmbeddingSet) -> Tensor:
        g, z, y, _ = parts(data)
        method, order = T3A(Task(g), filter_k=filter_k), shuffled(len(y)).to(z.device)
        found = torch.cat([method(batch)[1].argmax(dim=1) for batch in z[order].split(BATCH)])
        return torch.empty_like(found).scatter(0, order, found)

    return predict


def bias_shift(data: EmbeddingSet) -> Tensor:
    """g with its bias shifted until every class is predicted as often as it is true; no feature moves."""
    g, z, y, _ = parts(data)
    logits, bias = torch.as_tensor(g.logits(z)).double(), torch.zeros(g.n_classes, dtype=torch.float64)
    wanted, size = torch.bincount(y, minlength=g.n_classes) + 0.5, 1.0
    for _ in range(400):
        found = torch.bincount((logits + bias).argmax(dim=1), minlength=g.n_classes) + 0.5
        bias += size * (wanted / found).log()
        size *= 0.99
    return (logits + bias).argmax(dim=1)


def source_by_gradient(data: EmbeddingSet) -> Tensor:
    """The public code's alignment with mean and covariance of the source in place of the pseudo-source's."""
    g, z, _, source = parts(data)
    here, there = moments(z), moments(source)
    w = gradient(here.covariance, there.covariance)
    return torch.as_tensor(g.predict((z.double() - here.mean) @ w + there.mean))


def source_by_monge(data: EmbeddingSet) -> Tensor:
    """LinearTCA's own map with mean and covariance of the source."""
    g, z, _, source = parts(data)
    return predict_aligned(g, z, source)


ROWS: dict[str, tuple[str | None, Predict]] = {
    "T3A, M = 20": ("T3A", t3a(20)),
    "T3A, M = 100": ("T3A", t3a(100)),
    "T3A, all": ("T3A", t3a(None)),
    "ORACLE: LinearTCA by the public code, k = 20": ("LinearTCA", leaked(LinearTCA, **PUBLIC_CODE)),
    "LinearTCA by the public code, shares as predicted": (
        "LinearTCA",
        by(LinearTCA, k=20, uncertainty="entropy", solver="gradient", shares="predicted"),
    ),
    "LinearTCA by the public code, equal shares": (
        "LinearTCA",
        by(LinearTCA, k=20, uncertainty="entropy", solver="gradient", shares="uniform"),
    ),
    "LinearTCA as the paper prints it, k = 20 overall": ("LinearTCA", by(LinearTCA, **PAPER)),
    "LinearTCA, our defaults (estimated shares)": ("LinearTCA", by(LinearTCA)),
    "LinearTCA, equal shares given": ("LinearTCA", by(LinearTCA, shares="uniform")),
    "ORACLE: LinearTCA, true shares given": ("LinearTCA", true_shares(LinearTCA)),
    "ORACLE: bias shifted to the true shares, no feature moved": (None, bias_shift),
    "MLP-2, our defaults": ("MLP-2", by(MLPTCA, layers=2)),
    "MLP-3, our defaults": ("MLP-3", by(MLPTCA, layers=3)),
    "ORACLE: MLP-2, the public code's pseudo-source": ("MLP-2", leaked(MLPTCA, layers=2, **PUBLIC_PSEUDO_SOURCE)),
    "ORACLE: MLP-3, the public code's pseudo-source": ("MLP-3", leaked(MLPTCA, layers=3, **PUBLIC_PSEUDO_SOURCE)),
    "ConditionalTCA, our defaults": (None, by(ConditionalTCA)),
    "ORACLE: ConditionalTCA, true shares given": (None, true_shares(ConditionalTCA)),
    "ORACLE: true source statistics, gradient": ("LinearTCA, true source statistics", source_by_gradient),
    "ORACLE: true source statistics, Monge map": ("LinearTCA, true source statistics", source_by_monge),
}
"""What is measured, beside which row of the paper."""


def cells(values: list[float | None]) -> str:
    """Gains as table cells."""
    return " | ".join("" if value is None else f"{value:+.2f}" for value in values)


def page(folder: Path) -> str:
    """Both tables, and how the networks were trained."""
    files = {domain: folder / f"pacs_resnet18_{domain}.safetensors" for domain in DOMAINS}
    sets = {domain: load_embeddings(file) for domain, file in files.items()}
    truth = {domain: data.domains["target"][1] for domain, data in sets.items()}
    base = [accuracy(torch.as_tensor(parts(data)[0].predict(parts(data)[1])), truth[d]) for d, data in sets.items()]
    reported = json.loads(REPORTED.read_text(encoding="utf-8"))["rows"]
    source = reported["SOURCE"]["accuracy"]
    head = "| " + " | ".join(["", *DOMAINS, "mean", "paper's mean"]) + " |\n" + "|---" * 7 + "|"
    lines = ["Gain over the source model, in points of accuracy.", "", head]
    lines.append(f"| SOURCE, accuracy | {' | '.join(f'{a:.2f}' for a in [*base, fmean(base)])} | {source[-1]:.2f} |")
    for name, (row, predict) in ROWS.items():
        gains = [accuracy(predict(sets[d]), truth[d]) - before for d, before in zip(DOMAINS, base, strict=True)]
        paper = "" if row is None else f"{reported[row]['accuracy'][-1] - source[-1]:+.2f}"
        lines.append(f"| {name} | {cells([*gains, fmean(gains)])} | {paper} |")
    lines += [
        "",
        "The paper's own figures, as gains over its source model.",
        "",
        "| " + " | ".join(["", *DOMAINS, "mean", "where"]) + " |",
    ]
    lines += [
        "|---" * 7 + "|",
        f"| SOURCE, accuracy | {' | '.join(f'{a:.2f}' for a in source)} | {reported['SOURCE']['source']} |",
    ]
    for name, entry in list(reported.items())[1:]:
        gains = [None if a is None else a - b for a, b in zip(entry["accuracy"], source, strict=True)]
        lines.append(f"| {name} | {cells(gains)} | {entry['source']} |")
    lines += ["", "How the networks were trained, as their files say:", "", *training(list(files.values()))]
    return "\n".join(lines) + "\n"


def training(files: list[Path]) -> list[str]:
    """What is known of the networks; the paper gives no epochs, picture size or learning rate of its source models."""
    found = [SafetensorsFile(file).metadata for file in files]
    return [
        f"* {name.replace('_', ' ')}: {'; '.join(dict.fromkeys(str(entry.get(name, 'not said')) for entry in found))}"
        for name in ("backbone", "training", "image_size", "preprocess", "epochs_chosen", "selection", "seed")
    ]


def main() -> None:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of pacs_resnet18_DOMAIN.safetensors")
    parser.add_argument("--output", type=Path, help="write the tables here instead of printing them")
    options = parser.parse_args()
    logging.getLogger("clip_tca").setLevel(logging.ERROR)
    text = page(options.folder)
    if options.output:
        write_text(options.output, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
