"""The measurement: every method on each domain and seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clip_tca.adapters.diagnosis import diagnose
from clip_tca.classifier import LinearClassifier
from clip_tca.core.processes import current
from clip_tca.core.progress import Progress
from clip_tca.evaluation.base_runs import BaseOutput, BaseRuns
from clip_tca.evaluation.cost import Cost
from clip_tca.evaluation.measures import Scores
from clip_tca.evaluation.memory import PeakMemory
from clip_tca.evaluation.method_spec import MethodSpec
from clip_tca.evaluation.protocols import class_scores, divisor, predict
from clip_tca.evaluation.result_rows import result_row
from clip_tca.evaluation.streams import Draw
from clip_tca.results.schema import Protocol, ResultRow, Setting


@dataclass
class Results:
    """What was measured: rows of the record, costs, and the classes predicted of every image with seed 0.

    ``predictions`` ``(n,)`` are by method, domain and seed, in the order of the domain, −1 where an image was not seen.
    """

    rows: list[ResultRow] = field(default_factory=list)
    predictions: dict[tuple[str, str, int], Tensor] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)

    @classmethod
    def merged(cls, parts: list[Results], order: list[tuple[str, int]]) -> Results:
        """The results of all processes, rows in the ``order`` of domains and seeds."""
        merged = cls()
        for part in parts:
            merged.rows += part.rows
            merged.predictions |= part.predictions
            for name, cost in part.costs.items():
                merged.costs[name] = merged.costs.get(name, Cost()) + cost
        place = {key: i for i, key in enumerate(order)}
        merged.rows.sort(key=lambda row: place[row["domain"], row["seed"]])
        return merged


@dataclass(frozen=True)
class Sample:
    """What was drawn of a domain (or of a mixture) with one seed: embeddings ``(n, d)`` and labels ``(n,)`` as seen.

    ``places`` says where the images of each domain are, and ``all_labels`` are those of all images there.
    """

    domain: str
    seed: int
    draw: Draw
    z: Tensor
    labels: Tensor
    all_labels: Tensor
    places: dict[str, range]

    def drawn(self, place: range, classes: int) -> int:
        """How many images of the first ``classes`` classes were drawn there, seen or not."""
        drawn = self.draw.drawn
        return int((_within(drawn, place) & (self.all_labels[drawn] < classes)).sum())


@dataclass(frozen=True)
class Measurement:
    """Runs methods on what is drawn of a domain, or of the mixture that has domains in these ``places``."""

    specs: list[MethodSpec]
    classifier: LinearClassifier
    runs: BaseRuns
    setting: Setting
    protocol: Protocol
    draw: Callable[[str, int], Draw]
    places: dict[str, range] | None = None

    def of(self, tasks: list[tuple[str, int]]) -> Results:
        """Every method on each domain and seed of ``tasks``."""
        results = Results(costs={spec.name: Cost() for spec in self.specs})
        with Progress(len(self.specs) * len(tasks), "adapting", "run", self.runs.progress and current().first) as bar:
            for domain, seed in tasks:
                sample = self._sample(domain, seed)
                outputs: dict[str, BaseOutput] = {}
                for spec in self.specs:
                    base = None
                    if spec.base is not None:  # NAME and NAME+tca share one run
                        if spec.base not in outputs:
                            seen, sizes = sample.draw.seen, sample.draw.sizes
                            outputs[spec.base] = self.runs.run(spec.base, spec.base_options, domain, seen, sizes)
                        base = outputs[spec.base]
                    self._add(results, spec, sample, base)
                    bar.update()
        return results

    def _sample(self, domain: str, seed: int) -> Sample:
        """Draw images; ValueError if a domain has none to score."""
        embeddings, labels = self.runs.embedded.data.domains[domain]
        draw, places = self.draw(domain, seed), self.places or {domain: range(len(labels))}
        z = embeddings[draw.seen].to(self.classifier.device)
        sample = Sample(domain, seed, draw, z, labels[draw.seen], labels, places)
        for name, place in places.items():
            if bool((_within(draw.seen, place) & (sample.labels < self.classifier.n_classes)).any()):
                continue
            if sample.drawn(place, self.classifier.n_classes):
                raise ValueError(
                    f"{name}: {len(draw.drawn)} images make no batch of {self.runs.batch}, so protocol "
                    f"{self.protocol!r} keeps none; use a smaller --batch-size, or --protocol full"
                )
            raise ValueError(f"{name}: no image of a known class was drawn; draw more classes, or hide fewer")
        return sample

    def _add(self, results: Results, spec: MethodSpec, sample: Sample, base: BaseOutput | None) -> None:
        """Add what one method did on one sample: a row for each domain in it."""
        g, seen, labels = self.classifier, sample.draw.seen, sample.labels
        z, logits = (sample.z, None) if base is None else (base.z, base.logits)
        with PeakMemory(g.device) as memory:
            prediction = predict(spec, g, z, labels.to(g.device), self.setting, sample.draw.sizes, logits)
        results.costs[spec.name] += Cost.of(prediction.clock, base, len(labels), memory.peak)
        scores, adapter = Scores.of(prediction.logits, labels), prediction.adapter
        before = None if adapter is None else class_scores(g, z, logits).argmax(dim=1).cpu()
        classes = self.runs.embedded.about["data"]["classes"]
        for domain, place in sample.places.items():
            inside = _within(seen, place)
            known = inside & (labels < g.n_classes)
            divided_by = divisor(sample.drawn(place, g.n_classes), int(known.sum()), self.protocol)
            row = result_row(spec, domain, sample.seed, scores[inside], labels[inside], classes, divided_by)
            if adapter is not None and before is not None:
                row["diagnosis"] = diagnose(adapter, before[known], scores.predicted[known])
            results.rows.append(row)
            if sample.seed == 0:
                predicted = torch.full((len(place),), -1)
                predicted[seen[inside] - place.start] = scores.predicted[inside]
                results.predictions[spec.name, domain, 0] = predicted


def _within(indices: Tensor, place: range) -> Tensor:
    return (indices >= place.start) & (indices < place.stop)
