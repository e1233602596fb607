"""``clip-tca eval``: zero-shot and adapted accuracy for each domain of a data set."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clip_tca.adapter import Adapter
    from clip_tca.zero_shot import ZeroShotClassifier


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    command = commands.add_parser(
        "eval",
        help="accuracy before and after adaptation",
        description="Print zero-shot and adapted accuracy (%%) for each domain.",
    )
    command.add_argument(
        "--dataset",
        required=True,
        choices=["synthetic"],
        help="synthetic: made-up embeddings with a shift, drawn from --seed; needs no model and no download",
    )
    command.add_argument("--seed", type=int, default=0, help="seed of the synthetic set (default: %(default)s)")
    command.set_defaults(run=run)


def methods(classifier: ZeroShotClassifier) -> dict[str, Adapter]:
    """The adapters of the table, by the name in its first column."""
    from clip_tca import MLPTCA, ConditionalTCA, LinearTCA

    return {
        "linear-tca": LinearTCA(classifier),
        "mlp2-tca": MLPTCA(classifier, layers=2),
        "mlp3-tca": MLPTCA(classifier, layers=3),
        "conditional-tca": ConditionalTCA(classifier),
    }


def run(options: argparse.Namespace) -> int:
    """Adapt to every domain by itself and print the table."""
    import torch

    from clip_tca import ZeroShotClassifier
    from clip_tca.datasets.synthetic import synthetic

    data = synthetic(options.seed)
    classifier = ZeroShotClassifier(data.text, scale=data.scale)
    rows: dict[str, list[float]] = {}
    for z, y in data.domains.values():
        predictions = {"zero-shot": classifier.predict(z)}
        predictions |= {name: adapter.fit(z).predict(z) for name, adapter in methods(classifier).items()}
        for name, predicted in predictions.items():
            rows.setdefault(name, []).append(100 * (predicted == y).to(torch.float64).mean().item())
    print(f"Accuracy (%) on synthetic embeddings, seed {options.seed}; made up, not a benchmark.\n")
    print(table(list(data.domains), rows))
    return 0


def table(domains: list[str], rows: dict[str, list[float]]) -> str:
    """One line for each method: accuracy for each domain, their mean, and the gain of the mean over the first line."""
    width = max(map(len, rows))
    base = next(iter(rows.values()))
    lines = ["  ".join([f"{'method':{width}}", *[f"{name:>8}" for name in [*domains, "average", "gain"]]])]
    for name, values in rows.items():
        mean = sum(values) / len(values)
        gain = mean - sum(base) / len(base)
        cells = [f"{value:{max(8, len(domain))}.2f}" for value, domain in zip(values, domains, strict=True)]
        lines.append("  ".join([f"{name:{width}}", *cells, f"{mean:8.2f}", f"{gain:+8.2f}"]))
    return "\n".join(lines)
