"""The main job: a data set in, an honest record out.

The record is JSON: ``schema_version``, ``dataset``, ``protocol``, ``setting``, ``batch_size``, ``seeds``; ``data``
(origin, counts, hash of the file list, differences from the published counts, bad images left out), ``model``,
``prompts``, ``methods`` (all parameters, whether labels are used); ``rows``, one for each method, domain and seed;
``versions``, ``commit`` and ``cost``. Everything that changes from run to run is in ``cost``.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from clip_tca import __version__
from clip_tca.checks import one_of, whole
from clip_tca.datasets.embedding_set import EmbeddingSet
from clip_tca.encoder import choose_device
from clip_tca.evaluation.inputs import Inputs
from clip_tca.evaluation.methods import Method, choose
from clip_tca.evaluation.names import DEFAULT_METHODS, PROTOCOLS, SCHEMA, SETTINGS
from clip_tca.evaluation.protocols import divisor, order, predict
from clip_tca.zero_shot import ZeroShotClassifier


def evaluate(
    dataset: str,
    *,
    methods: Sequence[str] = DEFAULT_METHODS,
    options: dict[str, Any] | None = None,
    setting: str = "transductive",
    protocol: str = "full",
    batch_size: int = 128,
    seeds: int = 1,
    **inputs: Any,
) -> dict[str, Any]:
    """Zero-shot and adapted accuracy for each domain of a data set: the record that ``clip-tca eval`` prints.

    Args:
        dataset: As in :class:`clip_tca.evaluation.inputs.Inputs`.
        methods: Names, as in :data:`clip_tca.evaluation.names.METHODS`.
        options: Options of the methods, such as ``{"k": 20}``; each goes to the methods that have it.
        setting: ``transductive``, ``online`` or ``episodic`` (see :mod:`clip_tca.evaluation.protocols`).
        protocol: ``full``, ``watt`` or ``kept``.
        batch_size: Of the settings and protocols that have batches.
        seeds: Number of shuffles.
        inputs: Data, model and prompts: the other fields of :class:`clip_tca.evaluation.inputs.Inputs`. Class names
            are ``raw`` by default in the WATT protocol.
    """
    chosen = choose(methods, options or {})
    one_of("setting", setting, SETTINGS)
    one_of("protocol", protocol, tuple(PROTOCOLS))
    for name, number in {"batch_size": batch_size, "seeds": seeds}.items():
        if not whole(number, 1):
            raise ValueError(f"{name}: {number!r}; a whole number of at least 1 is needed")
    if protocol == "watt":
        inputs.setdefault("class_names", "raw")
    source = Inputs(dataset, **inputs)
    data, about = source.embed()
    device = choose_device(source.device)
    classifier = ZeroShotClassifier(data.text.to(device), data.scale)
    rows, cost = _rows(
        chosen, classifier, data, about["data"]["classes"], (setting, protocol, batch_size, seeds), source
    )
    return {
        "schema_version": SCHEMA,
        "dataset": about["dataset"],
        "protocol": protocol,
        "setting": setting,
        "batch_size": batch_size,
        "seeds": list(range(seeds)),
        "data": about["data"],
        "model": about["model"],
        "prompts": about["prompts"],
        "methods": [method.describe(classifier) for method in chosen],
        "rows": rows,
        "versions": _versions(),
        "commit": _commit(),
        "cost": {**about["cost"], "methods": cost, "peak_memory_bytes": _peak_memory(device)},
    }


def _rows(
    methods: list[Method],
    classifier: ZeroShotClassifier,
    data: EmbeddingSet,
    classes: list[str],
    how: tuple[str, str, int, int],
    source: Inputs,
) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:
    setting, protocol, batch, seeds = how
    rows = []
    cost = {method.name: {"adapting_seconds": 0.0, "predicting_seconds": 0.0} for method in methods}
    steps = len(methods) * len(data.domains) * seeds
    with tqdm(total=steps, desc="adapting", disable=None if source.progress else True, leave=False) as bar:
        for domain, (embeddings, truth) in data.domains.items():
            for seed in range(seeds):
                seen = order(len(truth), protocol, batch, seed)
                if not len(seen):
                    raise ValueError(
                        f"{domain}: {len(truth)} images make no batch of {batch}, so protocol {protocol!r} keeps none; "
                        "use a smaller --batch-size, or --protocol full"
                    )
                z, labels = embeddings[seen].to(classifier.text.device), truth[seen].to(classifier.text.device)
                for method in methods:
                    predicted, clock = predict(method, classifier, z, labels, setting, batch)
                    cost[method.name]["adapting_seconds"] += clock.adapting
                    cost[method.name]["predicting_seconds"] += clock.predicting
                    row = _row(predicted.cpu(), labels.cpu(), classes, divisor(len(truth), len(seen), protocol))
                    uses = method.describe(classifier)["uses_labels"]
                    rows.append({"method": method.name, "domain": domain, "seed": seed, "uses_labels": uses, **row})
                    bar.update()
    return rows, cost


def _row(predicted: Tensor, labels: Tensor, classes: list[str], divided_by: int) -> dict[str, Any]:
    hit = predicted == labels
    images = torch.bincount(labels, minlength=len(classes)).tolist()
    correct = torch.bincount(labels[hit], minlength=len(classes)).tolist()
    return {
        "correct": sum(correct),
        "images": len(labels),
        "divisor": divided_by,
        "accuracy": 100 * sum(correct) / divided_by,
        "per_class": {
            name: {"correct": c, "images": n, "accuracy": 100 * c / n if n else None}
            for name, c, n in zip(classes, correct, images, strict=True)
        },
    }


def _versions() -> dict[str, str]:
    packages = ("torch", "torchvision", "open_clip_torch", "datasets", "numpy", "pillow", "safetensors")
    return {"clip-tca": __version__, "python": platform.python_version(), **{name: version(name) for name in packages}}


def _commit() -> str | None:
    """Commit of the checkout that this package runs from, if it does."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None


def _peak_memory(device: torch.device) -> dict[str, int | None]:
    """Highest resident memory of this process, and highest memory on the GPU."""
    resident = None
    if sys.platform != "win32":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    on_device = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"resident": resident, "device": on_device}
