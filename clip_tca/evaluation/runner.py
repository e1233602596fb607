"""The evaluation: a data set in, a record out (:class:`clip_tca.results.schema.EvaluationRecord`).

Everything that changes from run to run is in the record's ``cost``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import Any, cast

from clip_tca.adapters.base import class_log, silenced
from clip_tca.core.checks import check_whole, one_of
from clip_tca.core.device import choose_device
from clip_tca.core.processes import current
from clip_tca.core.provenance import commit, peak_memory, versions
from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.cost import plain_cost
from clip_tca.evaluation.examples import changed
from clip_tca.evaluation.inputs import Inputs
from clip_tca.evaluation.measurement import Measurement, Results
from clip_tca.evaluation.method_spec import MethodSpec, method_specs
from clip_tca.evaluation.mixed_domains import mixed, places
from clip_tca.evaluation.protocols import for_setting
from clip_tca.evaluation.source_forgetting import check_forgetting, measure_forgetting
from clip_tca.evaluation.streams import Draw, Stream
from clip_tca.evaluation.unknown_classes import hide
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
    stream: str = "iid",
    classes_present: int | str | None = None,
    long_tail: float | None = None,
    mix_domains: bool = False,
    unknown_classes: int | str | Sequence[str] | None = None,
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
        seeds: Number of runs, each with its own shuffle or draw.
        stream: ``iid``, ``sorted`` or ``dirichlet:GAMMA``, in the settings that have batches (this and the next three:
            :mod:`clip_tca.evaluation.streams`).
        classes_present: Classes of each batch (of the whole domain in the transductive setting): K, or ``"A-B"``.
        long_tail: How many times more images the most frequent class has than the rarest.
        mix_domains: One stream over all domains; rows are still by domain.
        unknown_classes: Classes to hide from the prompts, by name (in one string, between commas) or that many.
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
    drawing = Stream.of(stream, classes_present, long_tail, mix_domains)
    drawing.check(setting, protocol)
    _check_oracles(specs, setting, unknown_classes is not None)
    if forgetting is not None and not (drawing.is_plain and unknown_classes is None):
        raise ValueError(
            "forgetting: is measured on whole domains; leave out the options of streams and unknown classes"
        )
    check_whole("seeds", seeds)
    check_whole("examples", examples, 0)
    if protocol == "watt":
        inputs.setdefault("class_names", "raw")
    source = Inputs(dataset, **inputs)
    embedded = source.embed()
    drawing.check_classes(len(embedded.about["data"]["classes"]))
    embedded = embedded if unknown_classes is None else hide(embedded, unknown_classes)
    if forgetting is not None:
        forgetting = check_forgetting(specs, list(embedded.data.domains), forgetting)
    if profile and embedded.pictures is None:
        raise ValueError(f"profile: {dataset} holds embeddings only, and plain CLIP is timed on images; leave it out")
    about, device = embedded.about, choose_device(source.device)
    classifier = embedded.data.classifier(device)
    shown = mixed(embedded) if mix_domains else embedded
    forget, at_once = setting == "episodic", setting == "transductive"
    runs = BaseRuns(shown, device, batch_size, source.workers, source.progress, forget, at_once)
    specs = _suitable(specs, runs, methods) if EVERY in methods else specs
    processes = current()
    tasks = list(product(shown.data.domains, range(seeds)))
    share = tasks[processes.rank :: processes.size]

    def draw(domain: str, seed: int) -> Draw:
        return drawing.draw(shown.data.domains[domain][1], seed, setting, protocol, batch_size)

    measurement = Measurement(
        specs, classifier, runs, setting, protocol, draw, places(embedded) if mix_domains else None
    )
    with silenced(class_log):
        measured = processes.together(lambda: measurement.of(share))
    results = Results.merged(processes.gather(measured), list(product(embedded.data.domains, range(seeds))))
    if not processes.first:
        return cast("EvaluationRecord", {})
    on_request: OnRequest = {}
    if examples:
        on_request["examples"] = changed(results.predictions, classifier, embedded, examples)
    if forgetting is not None:
        with silenced(class_log):
            on_request["forgetting"] = measure_forgetting(specs, classifier, runs, forgetting)
    costs = results.costs
    if profile:
        costs = {PLAIN_CLIP: plain_cost(runs, {domain: draw(domain, 0) for domain in shown.data.domains}), **costs}
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": about["dataset"],
        "protocol": protocol,
        "setting": setting,
        "batch_size": batch_size,
        "seeds": list(range(seeds)),
        "stream": drawing.record(),
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


def _check_oracles(specs: list[MethodSpec], setting: Setting, has_unknown: bool) -> None:
    """Raise ValueError if an oracle can't run."""
    oracle = next((spec.name for spec in specs if spec.uses_labels), None)
    if oracle is None:
        return
    if setting != "transductive":
        raise ValueError(
            f"method: {oracle} counts the true labels of the whole test set (an oracle), so it can't run {setting}; "
            "use --setting transductive, or leave it out"
        )
    if has_unknown:
        raise ValueError(
            f"method: {oracle} counts true labels (an oracle), and unknown classes have none; leave it out"
        )


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
