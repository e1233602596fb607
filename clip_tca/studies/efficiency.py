"""Efficiency: seconds and memory of each method, compared with plain CLIP if there are images.

A base method on the image tower embeds the images itself; everything else comes on top of plain CLIP. Methods on images
get ``pictures`` images of each domain, the others the whole domain; a method's zero-shot accuracy is on the same
images. Each method first runs on one batch as a warm-up. Memory is the peak beyond the memory in use before: exact on
CUDA; on a CPU sampled from the resident memory, which does not grow when freed memory is used again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from torch import Tensor

from clip_tca.core.checks import check_whole, choices
from clip_tca.evaluation.base_runs import BaseOutput, BaseRuns
from clip_tca.evaluation.cost import Cost
from clip_tca.evaluation.memory import PeakMemory
from clip_tca.evaluation.method_spec import MethodSpec, method_specs
from clip_tca.evaluation.protocols import Clock, order, predict
from clip_tca.methods.registry import base_method
from clip_tca.results.schema import PLAIN_CLIP
from clip_tca.studies.base import Figure, Study, Subject
from clip_tca.studies.figure_style import COLOURS, GREY, decades, dots, panels, value
from clip_tca.studies.measured_methods import ADAPTING, STORED
from clip_tca.studies.scores import accuracy


@dataclass(kw_only=True, eq=False, repr=False)
class Efficiency(Study):
    """Milliseconds for each image, and extra memory, by method.

    Methods on images get ``pictures`` images of each domain, ``batch_size`` at a time.
    """

    name = "efficiency"
    summary = "What does adaptation cost?"
    paper = "Efficiency, tables 2 and 3, figure 1b"

    methods: str | list[str] | tuple[str, ...] = STORED
    batch_size: int = 128
    pictures: int = 256

    def __post_init__(self) -> None:
        self.methods = choices("methods", self.methods, ADAPTING)
        check_whole("batch_size", self.batch_size)
        check_whole("pictures", self.pictures)

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Time, memory and accuracy of every method; plain CLIP's time and memory if there are images."""
        device = subject.classifier.device
        bases = BaseRuns(subject.embedded, device, self.batch_size, None, subject.progress)
        specs = subject.tracked(method_specs(self.methods, {}), "measuring", "method")
        methods = {method.name: self._method(method, subject, bases) for method in specs}
        plain = None if subject.embedded.pictures is None else self._plain(subject, bases)
        return {"device": device.type, "batch_size": self.batch_size, "plain_clip": plain, "methods": methods}

    def _plain(self, subject: Subject, bases: BaseRuns) -> dict[str, Any]:
        spent = Cost()
        for i, (domain, (_, y)) in enumerate(subject.shifted.items()):
            seen = self._seen(len(y), True)
            if i == 0:
                bases.run(PLAIN_CLIP, {}, domain, seen[: self.batch_size])
            spent += Cost.of(Clock(), bases.run(PLAIN_CLIP, {}, domain, seen), len(seen))
        return _summary(spent)

    def _method(self, method: MethodSpec, subject: Subject, bases: BaseRuns) -> dict[str, Any]:
        spent, peaks, right, before = Cost(), [], [], []
        for i, (domain, (_, y)) in enumerate(subject.shifted.items()):
            seen = self._seen(len(y), method.base is not None and base_method(method.base).sees == "images")
            if i == 0:  # warm-up
                _run(method, subject, bases, domain, seen[: max(2, self.batch_size)])
            clock, base, peak, score, zero_shot = _run(method, subject, bases, domain, seen)
            spent += Cost.of(clock, base, len(seen))
            peaks.append(peak)
            right.append(score)
            before.append(zero_shot)
        return {**_summary(spent, *peaks), "accuracy": fmean(right), "zero_shot": fmean(before)}

    def _seen(self, images: int, pictures: bool) -> Tensor:
        indices = order(images, "full", self.batch_size, 0)
        return indices[: self.pictures] if pictures else indices

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """Time on a logarithmic axis, memory beside it."""
        plain = {PLAIN_CLIP: results["plain_clip"]} if results["plain_clip"] else {}
        rows = {**plain, **results["methods"]}
        titles = [f"Time ({results['device']})", f"Extra memory{' (sampled)' if results['device'] == 'cpu' else ''}"]
        time, memory = panels(figure, titles, 0.9 + 0.34 * len(rows), 2, sharey=True)
        for panel in (time, memory):
            dots(panel, [f"{name}*" if row["embeds"] else name for name, row in rows.items()])
        columns = {time: ("ms_per_image", 1.0, "{:.3g}"), memory: ("memory_bytes", 1e-6, "{:.0f}")}
        for panel, (key, unit, form) in columns.items():
            for i, (name, row) in enumerate(rows.items()):
                if row[key] is not None:
                    x = row[key] * unit
                    colour = GREY if name == PLAIN_CLIP else COLOURS[0]
                    panel.plot(x, i, "o", color=colour, markersize=8, clip_on=False, zorder=3)
                    value(panel, form.format(x), x, i, beside=True)
            panel.margins(x=0.18)
        decades(time)
        memory.set_xlim(left=0)
        time.set_xlabel("milliseconds an image, logarithmic")
        memory.set_xlabel("MB at most beyond what was there")
        note = "* embeds the images itself; the others come on top of embedding."
        figure.supxlabel(note if results["plain_clip"] else _WITHOUT, fontsize=9, color=GREY)

    def describe(self, results: dict[str, Any]) -> list[str]:
        """The cost of each method, cheapest first."""
        plain = results["plain_clip"]
        lines = [
            f"Plain CLIP: {plain['ms_per_image']:.3g} ms an image ({results['device']}, decoding included)."
            if plain
            else _WITHOUT
        ]
        for name, row in sorted(results["methods"].items(), key=lambda item: item[1]["ms_per_image"]):
            memory = "" if row["memory_bytes"] is None else f", {row['memory_bytes'] / 1e6:.0f} MB more memory"
            share = ""
            if plain:
                part = row["ms_per_image"] / plain["ms_per_image"]
                share = f" ({part:.1f} × plain CLIP)" if row["embeds"] else f" (+{100 * part:.2g} % of plain CLIP)"
            gain = row["accuracy"] - row["zero_shot"]
            lines.append(
                f"{name}: {row['ms_per_image']:.3g} ms an image{share}{memory}; accuracy {row['accuracy']:.2f} % "
                f"({gain:+.2f}, {row['images']} images)."
            )
        if results["device"] == "cpu":
            lines.append("Memory on a CPU is sampled; what was freed before and is used again does not show.")
        return lines


_WITHOUT = "Stored embeddings, no pictures: what adaptation adds, without the cost of embedding."


def _run(
    method: MethodSpec, subject: Subject, bases: BaseRuns, domain: str, seen: Tensor
) -> tuple[Clock, BaseOutput | None, int | None, float, float]:
    """Time, base method, memory, accuracy and zero-shot accuracy of a method on the images ``seen`` of a domain."""
    z, y = (subject.on_device(part[seen]) for part in subject.embedded.data.domains[domain])
    base = None if method.base is None else bases.run(method.base, method.base_options, domain, seen)
    given = (z, None) if base is None else (base.z, base.logits)
    with PeakMemory(bases.device) as memory:
        prediction = predict(method, subject.classifier, given[0], y, "transductive", bases.batch, given[1])
    zero_shot = accuracy(subject.classifier.predict(z), y)
    return prediction.clock, base, memory.peak, accuracy(prediction.classes, y), zero_shot


def _summary(spent: Cost, *peaks: int | None) -> dict[str, Any]:
    seconds = spent.adapting_seconds + spent.predicting_seconds + spent.base_seconds
    most = max((peak for peak in (*peaks, spent.base_memory_bytes) if peak is not None), default=None)
    return {**asdict(spent), "ms_per_image": 1000 * seconds / spent.images, "memory_bytes": most}
