"""The evaluation: a data set in, a record out (:class:`clip_tca.results.schema.EvaluationRecord`).

Everything that changes from run to run is in the record's ``cost``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from tqdm import tqdm

from clip_tca.adapters.base import class_log, silenced
from clip_tca.adapters.diagnosis import diagnose
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_whole, one_of
from clip_tca.core.device import choose_device
from clip_tca.core.processes import current
from clip_tca.core.provenance import commit, peak_memory, versions
from clip_tca.evaluation.base_runs import BaseOutput, BaseRuns
from clip_tca.evaluation.cost import Cost, plain_cost
from clip_tca.evaluation.examples import changed
from clip_tca.evaluation.inputs import Inputs
from clip_tca.evaluation.method_spec import MethodSpec, method_specs
from clip_tca.evaluation.protocols import divisor, for_setting, order, predict, predicted_classes
from clip_tca.evaluation.source_forgetting import check_forgetting, measure_forgetting
from clip_tca.methods.base import UnsuitableModelError
from clip_tca.methods.registry import DEFAULT_METHODS, EVERY
from clip_tca.results.schema import (
    PLAIN_CLIP,
    PROTOCOLS,
    SCHEMA_VERSION,
    SETTINGS,
    EvaluationRecord,
    MethodCost,
    OnRequest,
    Protocol,
    ResultRow,
    Setting,
)

log = logging.getLogger("clip_tca")


def evaluate(
    dataset: str,
    *,
    methods: Sequence[str] = DEFAULT_METHODS,
    options: dict[str, Any] | None = None,
    setting: Setting = "transductive",
    protocol: Protocol = "full",
    batch_size: int = 128,
    seeds: int = 1,
    profile: bool = False,
    forgetting: str | None = None,
    examples: int = 0,
    **inputs: Any,
) -> EvaluationRecord:
    """Measure zero-shot and adapted accuracy on each domain of a data set, as ``clip-tca eval`` does.

    Several processes (see :mod:`clip_tca.core.processes`) share the encoding, and the domains and seeds; the first one
    returns the record, the others an empty dictionary.

    Args:
        dataset: As in :class:`clip_tca.evaluation.inputs.Inputs`.
        methods: Names, as in :data:`clip_tca.methods.registry.METHODS`; ``all`` is every method that uses no labels and
            can run with the model, ``rivals`` the default ones and those published since on embeddings.
        options: Options of the methods, such as ``{"k": 20}``; each goes to the methods that have it.
        setting: ``transductive``, ``online`` or ``episodic`` (see :mod:`clip_tca.evaluation.protocols`).
        protocol: ``full``, ``watt`` or ``kept``.
        batch_size: Images in a batch, in the settings and protocols that have batches.
        seeds: Number of shuffles.
        profile: Also measure the time and memory of plain CLIP on the same batches, as a reference for each method.
        forgetting: Also measure accuracy on this source-like domain after adapting to each of the others.
        examples: Also list up to this many images of each kind whose prediction changed, for each method and domain
            (see :mod:`clip_tca.evaluation.examples`).
        inputs: Data, model and prompts: the other fields of :class:`clip_tca.evaluation.inputs.Inputs`. Class names
            are ``raw`` by default in the WATT protocol.

    Returns:
        A dictionary, ready for JSON and for :func:`clip_tca.results.rendering.render`.
    """
    one_of("setting", setting, SETTINGS)
    one_of("protocol", protocol, tuple(PROTOCOLS))
    check_whole("batch_size", batch_size)
    specs = [for_setting(spec, setting, batch_size) for spec in method_specs(methods, options or {})]
    oracle = next((spec.name for spec in specs if spec.uses_labels), None)
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
        forgetting = check_forgetting(specs, list(embedded.data.domains), forgetting)
    if profile and embedded.pictures is None:
        raise ValueError(f"profile: {dataset} holds embeddings only, and plain CLIP is timed on images; leave it out")
    about, device = embedded.about, choose_device(source.device)
    classifier = embedded.data.classifier(device)
    forget, at_once = setting == "episodic", setting == "transductive"
    runs = BaseRuns(embedded, device, batch_size, source.workers, source.progress, forget, at_once)
    specs = _suitable(specs, runs, methods) if EVERY in methods else specs
    processes = current()
    tasks = [(domain, seed) for domain in embedded.data.domains for seed in range(seeds)]
    share = tasks[processes.rank :: processes.size]
    with silenced(class_log):
        measured = processes.together(lambda: _measure(specs, classifier, runs, setting, protocol, share))
    results = _merged(processes.gather(measured), tasks)
    if not processes.first:
        return cast("EvaluationRecord", {})
    on_request: OnRequest = {}
    if examples:
        on_request["examples"] = changed(results.predictions, classifier, embedded, (protocol, batch_size), examples)
    if forgetting is not None:
        with silenced(class_log):
            on_request["forgetting"] = measure_forgetting(specs, classifier, runs, forgetting)
    costs = {PLAIN_CLIP: plain_cost(runs, protocol), **results.costs} if profile else results.costs
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": about["dataset"],
        "protocol": protocol,
        "setting": setting,
        "batch_size": batch_size,
        "seeds": list(range(seeds)),
        "data": about["data"],
        "model": about["model"],
        "prompts": about["prompts"],
        "methods": [spec.describe(classifier) for spec in specs],
        "rows": results.rows,
        **on_request,
        "versions": versions(),
        "commit": commit(),
        "cost": {
            **about["cost"],
            "methods": {name: cast("MethodCost", asdict(cost)) for name, cost in costs.items()},
            "peak_memory_bytes": peak_memory(device),
        },
    }


@dataclass
class Results:
    """What was measured: rows of the record, predicted classes ``(n,)`` by method, domain and seed, and costs."""

    rows: list[ResultRow] = field(default_factory=list)
    predictions: dict[tuple[str, str, int], Tensor] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)


def _suitable(specs: list[MethodSpec], runs: BaseRuns, named: Sequence[str]) -> list[MethodSpec]:
    """Those of all methods that can run with the model; an error if one that can't was ``named``."""
    suitable = []
    for spec in specs:
        try:
            if spec.base is not None:
                runs.make(spec.base, spec.base_options)
            suitable.append(spec)
        except UnsuitableModelError as error:
            if spec.name in named:
                raise
            if current().first:
                log.warning("%s is left out: %s", spec.name, error)
    return suitable


def _measure(
    specs: list[MethodSpec],
    classifier: LinearClassifier,
    runs: BaseRuns,
    setting: Setting,
    protocol: Protocol,
    tasks: list[tuple[str, int]],
) -> Results:
    """Every method on each domain and seed of ``tasks``."""
    batch, classes = runs.batch, runs.embedded.about["data"]["classes"]
    results = Results(costs={spec.name: Cost() for spec in specs})
    hidden = None if runs.progress and current().first else True
    with tqdm(total=len(specs) * len(tasks), desc="adapting", disable=hidden, leave=False) as bar:
        for domain, seed in tasks:
            embeddings, domain_labels = runs.embedded.data.domains[domain]
            images = len(domain_labels)
            seen = order(images, protocol, batch, seed)
            if not len(seen):
                raise ValueError(
                    f"{domain}: {images} images make no batch of {batch}, so protocol {protocol!r} keeps none; "
                    "use a smaller --batch-size, or --protocol full"
                )
            z, labels = embeddings[seen].to(classifier.device), domain_labels[seen].to(classifier.device)
            outputs: dict[str, BaseOutput] = {}
            for spec in specs:
                base = None
                if spec.base is not None:  # NAME and NAME+tca share one run
                    if spec.base not in outputs:
                        outputs[spec.base] = runs.run(spec.base, spec.base_options, domain, seen)
                    base = outputs[spec.base]
                method_z, logits = (z, None) if base is None else (base.z, base.logits)
                prediction = predict(spec, classifier, method_z, labels, setting, batch, logits)
                predicted = prediction.classes.cpu()
                divided_by = divisor(images, len(seen), protocol)
                row = _row(spec, domain, seed, predicted, labels.cpu(), classes, divided_by)
                if prediction.adapter is not None:
                    before = predicted_classes(classifier, method_z, logits)
                    row["diagnosis"] = diagnose(prediction.adapter, before, prediction.classes)
                results.rows.append(row)
                results.predictions[spec.name, domain, seed] = predicted
                results.costs[spec.name] += Cost.of(prediction.clock, base, len(seen))
                bar.update()
    return results


def _merged(parts: list[Results], tasks: list[tuple[str, int]]) -> Results:
    """The results of all processes, rows in the order of ``tasks``."""
    merged = Results()
    for part in parts:
        merged.rows += part.rows
        merged.predictions |= part.predictions
        for name, cost in part.costs.items():
            merged.costs[name] = merged.costs.get(name, Cost()) + cost
    merged.rows.sort(key=lambda row: tasks.index((row["domain"], row["seed"])))
    return merged


def _row(
    spec: MethodSpec, domain: str, seed: int, predicted: Tensor, labels: Tensor, classes: list[str], divided_by: int
) -> ResultRow:
    pairs = torch.bincount(labels * len(classes) + predicted, minlength=len(classes) ** 2)
    confusion = pairs.view(len(classes), len(classes))
    correct, images = confusion.diagonal().tolist(), confusion.sum(dim=1).tolist()
    return {
        "method": spec.name,
        "domain": domain,
        "seed": seed,
        "uses_labels": spec.uses_labels,
        "correct": sum(correct),
        "images": len(labels),
        "divisor": divided_by,
        "accuracy": 100 * sum(correct) / divided_by,
        "per_class": {
            name: {"correct": c, "images": n, "accuracy": 100 * c / n if n else None}
            for name, c, n in zip(classes, correct, images, strict=True)
        },
        "confusion": confusion.tolist(),
    }
