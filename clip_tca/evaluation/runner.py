"""The main job: a data set in, an honest record out.

The record is JSON: ``schema_version``, ``dataset``, ``protocol``, ``setting``, ``batch_size``, ``seeds``; ``data``
(origin, counts, hash of the file list, differences from the published counts, bad images left out), ``model``,
``prompts``, ``methods`` (all parameters, whether labels are used); ``rows``, one for each method, domain and seed, with
accuracy by class, the ``confusion`` matrix (rows true, columns predicted) and the ``diagnosis`` of a transductive
adapter; ``examples`` if asked for; ``versions``, ``commit`` and ``cost``. Everything that changes from run to run is in
``cost``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.checks import check_whole, one_of
from clip_tca.core.device import choose_device
from clip_tca.core.processes import current
from clip_tca.core.provenance import commit, peak_memory, versions
from clip_tca.evaluation.base_runs import Bases, Pairs
from clip_tca.evaluation.cost import Cost, plain_cost
from clip_tca.evaluation.examples import changed
from clip_tca.evaluation.inputs import Inputs
from clip_tca.evaluation.method_choice import Choice, choose
from clip_tca.evaluation.protocols import divisor, for_setting, order, predict
from clip_tca.evaluation.source_forgetting import check_forgetting, measure_forgetting
from clip_tca.methods.registry import DEFAULT_METHODS
from clip_tca.results.names import PLAIN, PROTOCOLS, SCHEMA, SETTINGS


def evaluate(
    dataset: str,
    *,
    methods: Sequence[str] = DEFAULT_METHODS,
    options: dict[str, Any] | None = None,
    setting: str = "transductive",
    protocol: str = "full",
    batch_size: int = 128,
    seeds: int = 1,
    profile: bool = False,
    forgetting: str | None = None,
    examples: int = 0,
    **inputs: Any,
) -> dict[str, Any]:
    """Zero-shot and adapted accuracy for each domain of a data set: the record that ``clip-tca eval`` prints.

    Several processes (see :mod:`clip_tca.core.processes`) share the encoding, and the domains and seeds; the first one
    returns the record, the others an empty one.

    Args:
        dataset: As in :class:`clip_tca.evaluation.inputs.Inputs`.
        methods: Names, as in :data:`clip_tca.methods.registry.METHODS`.
        options: Options of the methods, such as ``{"k": 20}``; each goes to the methods that have it.
        setting: ``transductive``, ``online`` or ``episodic`` (see :mod:`clip_tca.evaluation.protocols`).
        protocol: ``full``, ``watt`` or ``kept``.
        batch_size: Of the settings and protocols that have batches.
        seeds: Number of shuffles.
        profile: Also measure plain CLIP on the same batches, and what every method costs against it.
        forgetting: Also measure this source-like domain after adapting to each of the others.
        examples: Also keep up to this many images of each kind whose prediction changed, for each method and domain
            (see :mod:`clip_tca.evaluation.examples`).
        inputs: Data, model and prompts: the other fields of :class:`clip_tca.evaluation.inputs.Inputs`. Class names
            are ``raw`` by default in the WATT protocol.
    """
    one_of("setting", setting, SETTINGS)
    one_of("protocol", protocol, tuple(PROTOCOLS))
    check_whole("batch_size", batch_size)
    chosen = [for_setting(method, setting, batch_size) for method in choose(methods, options or {})]
    oracle = next((method.name for method in chosen if method.uses_labels), None)
    if setting != "transductive" and oracle is not None:
        raise ValueError(
            f"method: {oracle} counts the true labels of the whole test set (an oracle), so it can't run {setting}; "
            "use --setting transductive, or leave it out"
        )
    check_whole("seeds", seeds)
    check_whole("examples", examples, 0)
    if protocol == "watt":
        inputs.setdefault("class_names", "raw")
    source = Inputs(dataset, **inputs)
    embedded = source.embed()
    if forgetting is not None:
        forgetting = check_forgetting(chosen, list(embedded.data.domains), forgetting)
    if profile and embedded.pictures is None:
        raise ValueError(f"profile: {dataset} holds embeddings only, and plain CLIP is timed on images; leave it out")
    about, device = embedded.about, choose_device(source.device)
    classifier = ZeroShotClassifier(embedded.data.text.to(device), embedded.data.scale)
    bases = Bases(embedded, device, batch_size, source.workers, source.progress, setting == "episodic")
    work, processes = [(domain, seed) for domain in embedded.data.domains for seed in range(seeds)], current()
    mine = work[processes.rank :: processes.size]
    done = processes.together(
        lambda: _rows(chosen, classifier, bases, about["data"]["classes"], (setting, protocol), mine)
    )
    rows, cost = _joined(processes.gather(done), work)
    if not processes.first:
        return {}
    predictions = {(row["method"], row["domain"], row["seed"]): row.pop("predicted") for row in rows}
    extra: dict[str, Any] = {}
    if examples:
        extra["examples"] = changed(predictions, classifier, embedded, (protocol, batch_size), examples)
    if forgetting is not None:
        extra["forgetting"] = measure_forgetting(chosen, classifier, bases, forgetting)
    if profile:
        cost = {PLAIN: plain_cost(bases, protocol), **cost}
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
        **extra,
        "versions": versions(),
        "commit": commit(),
        "cost": {**about["cost"], "methods": cost, "peak_memory_bytes": peak_memory(device)},
    }


def _rows(
    methods: list[Choice],
    classifier: ZeroShotClassifier,
    bases: Bases,
    classes: list[str],
    how: tuple[str, str],
    work: list[tuple[str, int]],
) -> tuple[list[dict[str, Any]], dict[str, Cost]]:
    """Rows for every method on each domain and seed of ``work``, and what each method cost."""
    (setting, protocol), batch, data = how, bases.batch, bases.embedded.data
    rows, cost = [], {method.name: Cost() for method in methods}
    hidden = None if bases.progress and current().first else True
    with tqdm(total=len(methods) * len(work), desc="adapting", disable=hidden, leave=False) as bar:
        for domain, seed in work:
            embeddings, truth = data.domains[domain]
            seen = order(len(truth), protocol, batch, seed)
            if not len(seen):
                raise ValueError(
                    f"{domain}: {len(truth)} images make no batch of {batch}, so protocol {protocol!r} keeps none; "
                    "use a smaller --batch-size, or --protocol full"
                )
            z, labels = embeddings[seen].to(classifier.device), truth[seen].to(classifier.device)
            pairs: dict[str, Pairs] = {}
            for method in methods:
                base = None
                if method.base is not None:  # NAME and NAME+tca share one run
                    if method.base not in pairs:
                        pairs[method.base] = bases.run(method.base, method.base_options, domain, seen)
                    base = pairs[method.base]
                given = (z, None) if base is None else (base.z, base.logits)
                notes: dict[str, Any] = {}
                predicted, clock = predict(method, classifier, given[0], labels, setting, batch, given[1], notes)
                cost[method.name] += Cost.of(clock, base, len(seen))
                row = _row(predicted.cpu(), labels.cpu(), classes, divisor(len(truth), len(seen), protocol))
                told = {"method": method.name, "domain": domain, "seed": seed, "uses_labels": method.uses_labels}
                rows.append({**told, **row, **notes})
                bar.update()
    return rows, cost


def _joined(
    found: list[tuple[list[dict[str, Any]], dict[str, Cost]]], work: list[tuple[str, int]]
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The rows of all processes in the order of ``work``, and their cost together."""
    rows = [row for mine, _ in found for row in mine]
    cost = {name: sum((cost[name] for _, cost in found), Cost()) for name in (found[0][1] if found else ())}
    in_order = sorted(rows, key=lambda row: work.index((row["domain"], row["seed"])))
    return in_order, {name: asdict(spent) for name, spent in cost.items()}


def _row(predicted: Tensor, labels: Tensor, classes: list[str], divided_by: int) -> dict[str, Any]:
    hit = predicted == labels
    images = torch.bincount(labels, minlength=len(classes)).tolist()
    correct = torch.bincount(labels[hit], minlength=len(classes)).tolist()
    pairs = torch.bincount(labels * len(classes) + predicted, minlength=len(classes) ** 2)
    return {
        "correct": sum(correct),
        "images": len(labels),
        "divisor": divided_by,
        "accuracy": 100 * sum(correct) / divided_by,
        "predicted": predicted,  # for examples; not part of the record
        "per_class": {
            name: {"correct": c, "images": n, "accuracy": 100 * c / n if n else None}
            for name, c, n in zip(classes, correct, images, strict=True)
        },
        "confusion": pairs.view(len(classes), len(classes)).tolist(),
    }
