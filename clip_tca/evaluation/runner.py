"""The evaluation: a data set in, a record out. Everything that changes from run to run is in its ``cost``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clip_tca.adapters.base import class_log, silenced, warnings_about
from clip_tca.adapters.diagnosis import diagnose
from clip_tca.core.checks import check_whole, one_of
from clip_tca.core.machine import choose_device, commit, peak_memory, versions
from clip_tca.core.progress import Progress
from clip_tca.core.remote import Location, locate
from clip_tca.evaluation.base_runs import BaseOutput, BaseRuns
from clip_tca.evaluation.cost import Cost, PeakMemory, method_cost
from clip_tca.evaluation.examples import changed
from clip_tca.evaluation.inputs import Embedded, Inputs
from clip_tca.evaluation.measures import Scores, result_row
from clip_tca.evaluation.method_spec import MethodSpec, class_scores, for_setting, method_specs, predict
from clip_tca.evaluation.streams import Draw, Stream, divisor
from clip_tca.methods.base import UnsuitableModelError
from clip_tca.methods.registry import DEFAULT_METHODS, EVERY, base_method
from clip_tca.results.predictions import check_table, prediction_table, write_table
from clip_tca.results.schema import (
    PLAIN_CLIP,
    PROTOCOLS,
    SCHEMA_VERSION,
    SETTINGS,
    EvaluationRecord,
    MethodCost,
    Protocol,
    ResultRow,
    Setting,
)

if TYPE_CHECKING:
    import pandas as pd

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
    profile: bool = False,
    examples: int = 0,
    predictions: str | Location | None = None,
    on_domain: Callable[[str, dict[str, float]], None] | None = None,
    **inputs: Any,
) -> EvaluationRecord:
    """Measure zero-shot and adapted accuracy on each domain of a data set, as ``clip-tca eval`` does.

    Examples:
        >>> record = evaluate("folder", data_dir="pictures", model="demo")
        >>> print(render(record))

    Args:
        dataset: ``demo``, ``folder``, the name of a benchmark, or a file of embeddings, as for ``--dataset``.
        methods: Names of methods, as ``clip-tca methods`` lists them. ``all`` are all methods that use no labels and
            can run with the model. ``rivals`` are the default methods and newer published ones that work on embeddings.
        options: Options of the methods, such as ``{"k": 20}``. Each option is passed to the methods that have it.
        setting: ``transductive`` (one fit on a domain), ``online`` (batch after batch), ``episodic`` (each alone).
        protocol: ``full`` (every image), ``watt`` (last batch unseen, divided by all), ``kept`` (divided by the rest).
        batch_size: Images in a batch, in the settings and protocols that have batches.
        seeds: Number of runs, each with its own shuffle or draw.
        stream: ``iid``, ``sorted`` or ``dirichlet:GAMMA``, in the settings that have batches.
        classes_present: Number of classes in each batch (transductive: in the domain): K, or ``"A-B"``.
        long_tail: Ratio of images of the most frequent class to the rarest.
        mix_domains: Show one stream over all domains. Results are still listed by domain.
        profile: Also measure the time and memory of plain CLIP on the same batches, as a reference for each method.
        examples: Also keep up to this many changed images of each kind (corrected, newly wrong, still wrong), for each
            method and domain.
        predictions: Also write every prediction of the first run to this file (CSV, Parquet or JSON): method, domain,
            the columns of :func:`clip_tca.label`, and the true label.
        on_domain: Called with the name of each domain and the accuracy (%) of each method as soon as they are known.
        inputs: Data, model and prompts, with the names of the options of ``clip-tca eval``: ``data_dir``, ``model``,
            ``pretrained``, ``device``, ``precision``, ``prompts``, ``class_names``, ``workers`` and so on
            (:class:`clip_tca.evaluation.inputs.Inputs`). In the WATT protocol ``class_names`` is ``raw`` by default.

    Returns:
        The record, a dictionary that can be saved as JSON and printed by :func:`clip_tca.render`.
    """
    one_of("setting", setting, SETTINGS)
    one_of("protocol", protocol, tuple(PROTOCOLS))
    check_whole("batch_size", batch_size)
    specs = [for_setting(spec, setting, batch_size) for spec in method_specs(methods, options or {})]
    drawing = Stream.of(stream, classes_present, long_tail, mix_domains)
    drawing.check(setting, protocol)
    oracle = next((spec.name for spec in specs if spec.uses_labels), None)
    if oracle is not None and setting != "transductive":
        raise ValueError(
            f"method: {oracle} counts the true labels of the whole test set (an oracle), so it can't run {setting}; "
            "use --setting transductive, or leave it out"
        )
    check_whole("seeds", seeds)
    check_whole("examples", examples, 0)
    if predictions is not None:
        check_table(locate(predictions))
    if protocol == "watt":
        inputs.setdefault("class_names", "raw")
    source = Inputs(dataset, **inputs)
    device = choose_device(source.device)
    begun: list[Measurement] = []

    def begin(embedded: Embedded) -> Measurement:
        drawing.check_classes(len(embedded.about["data"]["classes"]))
        if profile and embedded.pictures is None:
            why = "holds embeddings only, and plain CLIP is timed on images; leave it out"
            raise ValueError(f"profile: {dataset} {why}")
        runs = BaseRuns(
            embedded.mixed() if mix_domains else embedded, device, batch_size, source.workers, source.progress, setting
        )
        suitable = _suitable(specs, runs, methods) if EVERY in methods else specs
        ranges = _ranges(embedded) if mix_domains else None
        return Measurement(suitable, runs, drawing, protocol, ranges, predictions is not None, on_domain)

    def arrived(embedded: Embedded, domain: str) -> None:
        begun.extend([] if begun else [begin(embedded)])
        begun[0].run(domain, seeds)

    # a method that changes the model may run only when every image is embedded
    early = not mix_domains and not any(spec.base and base_method(spec.base).sees == "images" for spec in specs)
    with silenced(class_log):
        embedded = source.embed(arrived if early else None)
        measurement = begun[0] if begun else begin(embedded)
        for domain in () if early else measurement.runs.embedded.data.domains:
            measurement.run(domain, seeds)
    measurement.sort()
    about, runs, specs = embedded.about, measurement.runs, measurement.specs
    peaks = peak_memory(device)
    peaks["resident"] = max(peaks["resident"] or 0, PeakMemory.of_process) or None
    record: EvaluationRecord = {
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
        "methods": [spec.describe(runs.classifier) for spec in specs],
        "rows": measurement.rows,
        "versions": versions(),
        "commit": commit(),
        "cost": {**about["cost"], "methods": measurement.method_costs(profile), "peak_memory_bytes": peaks},
    }
    if predictions is not None:
        write_table(locate(predictions), measurement.table(embedded))
    if examples:
        record["examples"] = changed(measurement.predictions, runs.classifier, embedded, examples)
    return record


@dataclass
class Measurement:
    """Runs every method on what is drawn of each domain, or of the mixture of all."""

    specs: list[MethodSpec]
    runs: BaseRuns
    stream: Stream
    protocol: Protocol
    ranges: dict[str, range] | None = None  # where in the mixture each domain is
    keep_logits: bool = False
    on_domain: Callable[[str, dict[str, float]], None] | None = None
    rows: list[ResultRow] = field(default_factory=list, init=False)
    costs: dict[str, list[Cost]] = field(default_factory=dict, init=False)
    # Of seed 0 by method and domain: classes (n,), −1 where an image was not seen, and logits (n, c).
    predictions: dict[tuple[str, str], Tensor] = field(default_factory=dict, init=False)
    logits: dict[tuple[str, str], Tensor] = field(default_factory=dict, init=False)

    def run(self, domain: str, seeds: int) -> None:
        with Progress(len(self.specs) * seeds, f"adapting {domain}", "run", self.runs.progress) as progress:
            for seed in range(seeds):
                draw = self._draw(domain, seed)
                outputs: dict[str, BaseOutput] = {}
                for spec in self.specs:
                    if spec.base is not None and spec.base not in outputs:  # NAME and NAME+tca share one run
                        base = self.runs.run(spec.base, spec.base_options, domain, draw.seen, draw.sizes)
                        outputs[spec.base] = base
                    self._add(spec, domain, seed, draw, outputs.get(spec.base or ""))
                    progress.update()
        if self.on_domain is not None:
            for name in self.ranges or [domain]:
                rows = [row for row in self.rows if row["domain"] == name]
                methods = dict.fromkeys(row["method"] for row in rows)
                self.on_domain(name, {m: fmean(row["accuracy"] for row in rows if row["method"] == m) for m in methods})

    def sort(self) -> None:
        domains = list(self.ranges or self.runs.embedded.data.domains)
        self.rows.sort(key=lambda row: (domains.index(row["domain"]), row["seed"]))

    def method_costs(self, profile: bool) -> dict[str, MethodCost]:
        costs = self.costs
        if profile:
            plain = []
            for domain in self.runs.embedded.data.domains:
                draw = self._draw(domain, 0)
                base = self.runs.run(PLAIN_CLIP, {}, domain, draw.seen, draw.sizes)
                plain.append(Cost(len(draw.seen), base_seconds=base.seconds, base_memory=base.memory, embeds=True))
            costs = {PLAIN_CLIP: plain, **costs}
        return {name: method_cost(parts) for name, parts in costs.items()}

    def _draw(self, domain: str, seed: int) -> Draw:
        runs, labels = self.runs, self.runs.embedded.data.domains[domain][1]
        draw = self.stream.draw(labels, seed, runs.setting, self.protocol, runs.batch)
        for name, indices in (self.ranges or {domain: range(len(labels))}).items():
            if not bool(_within(draw.drawn, indices).any()):
                raise ValueError(f"{name}: no image was drawn of it; draw more classes, or leave out --mix-domains")
            if not bool(_within(draw.seen, indices).any()):
                raise ValueError(
                    f"{name}: {len(draw.drawn)} images make no batch of {runs.batch}, so protocol {self.protocol!r} "
                    "keeps none; use a smaller --batch-size, or --protocol full"
                )
        return draw

    def _add(self, spec: MethodSpec, domain: str, seed: int, draw: Draw, base: BaseOutput | None) -> None:
        """Add what one method did on one draw: a row for each domain in it."""
        g, (embeddings, all_labels) = self.runs.classifier, self.runs.embedded.data.domains[domain]
        labels = all_labels[draw.seen]
        z, logits = (embeddings[draw.seen].to(g.device), None) if base is None else (base.z, base.logits)
        with PeakMemory(g.device) as memory, warnings_about(domain):
            prediction = predict(spec, g, z, labels.to(g.device), self.runs.setting, draw.sizes, logits)
        cost = Cost(len(labels), prediction.adapting, prediction.predicting, memory.peak)
        if base is not None:
            cost = replace(cost, base_seconds=base.seconds, base_memory=base.memory, embeds=base.embeds)
        self.costs.setdefault(spec.name, []).append(cost)
        scores, adapter = Scores.of(prediction.logits, labels), prediction.adapter
        predicted = torch.full((len(all_labels),), -1)
        predicted[draw.seen] = scores.predicted
        all_logits = torch.zeros((len(all_labels), g.n_classes)) if self.keep_logits and seed == 0 else None
        if all_logits is not None:
            all_logits[draw.seen] = prediction.logits.float().cpu()
        before = None if adapter is None else class_scores(g, z, logits).argmax(dim=1).cpu()
        zero_shot = class_scores(g, embeddings[draw.seen].to(g.device), None).argmax(dim=1).cpu()
        classes = self.runs.embedded.about["data"]["classes"]
        for name, indices in (self.ranges or {domain: range(len(all_labels))}).items():
            inside = _within(draw.seen, indices)
            divided_by = divisor(int(_within(draw.drawn, indices).sum()), int(inside.sum()), self.protocol)
            row = result_row(spec, name, seed, scores[inside], labels[inside], classes, divided_by)
            row["changed"] = int((scores.predicted[inside] != zero_shot[inside]).sum())
            if adapter is not None and before is not None:
                row["diagnosis"] = diagnose(adapter, before[inside], scores.predicted[inside])
            self.rows.append(row)
            if seed == 0:
                self.predictions[spec.name, name] = predicted[indices.start : indices.stop]
            if all_logits is not None:
                self.logits[spec.name, name] = all_logits[indices.start : indices.stop]

    def table(self, embedded: Embedded) -> pd.DataFrame:
        """The predictions of seed 0, a row for each method and image that it saw, with the true labels."""
        import pandas as pd

        g, names, pictures = self.runs.classifier, embedded.about["data"]["classes"], embedded.pictures
        parts = []
        for (method, domain), after in self.logits.items():
            z, labels = embedded.data.domains[domain]
            files = list(map(str, range(len(labels)))) if pictures is None else pictures.domains[domain].names
            part = prediction_table(files, class_scores(g, z.to(g.device), None).cpu(), after, names)
            part["true"] = [names[label] for label in labels.tolist()]
            part.insert(0, "method", method)
            part.insert(1, "domain", domain)
            parts.append(part[(self.predictions[method, domain] >= 0).numpy()])
        return pd.concat(parts, ignore_index=True)


def _within(images: Tensor, indices: range) -> Tensor:
    return (images >= indices.start) & (images < indices.stop)


def _ranges(embedded: Embedded) -> dict[str, range]:
    ends = accumulate((len(labels) for _, labels in embedded.data.domains.values()), initial=0)
    return {name: range(*bounds) for name, bounds in zip(embedded.data.domains, pairwise(ends), strict=True)}


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
            log.warning("%s is left out: %s", spec.name, error)
    return suitable
