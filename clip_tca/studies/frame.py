"""What all studies share: their data, the run, the record, its table and its figure.

A record is JSON. Its ``results`` are a tidy table, a list of rows; ``finding`` is the same as lines of text. Only
``cost`` differs from run to run.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import textwrap
import time
from abc import ABC
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pandas as pd
from torch import Tensor

from clip_tca.adapters.base import log as adapters_log
from clip_tca.adapters.base import silenced
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import install
from clip_tca.core.files import atomic
from clip_tca.core.machine import choose_device, commit, versions
from clip_tca.core.progress import tracked
from clip_tca.data.embeddings import SOURCE
from clip_tca.data.registry import domain_named
from clip_tca.evaluation.inputs import Embedded, Inputs
from clip_tca.evaluation.streams import order
from clip_tca.results.schema import SCHEMA_VERSION
from clip_tca.studies import study_class
from clip_tca.studies.figure_style import STYLE, dots, legend_below, lines, panels, sizes_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("clip_tca")


@dataclass(frozen=True)
class Subject:
    """The data set and the classifier that a study measures."""

    embedded: Embedded
    classifier: LinearClassifier  # on the device to compute on
    reference: str | None  # the source-like domain, which may be the file's own source data
    progress: bool = False

    @property
    def shifted(self) -> list[str]:
        return [name for name in self.embedded.data.domains if name != self.reference]

    def domain(self, name: str) -> tuple[Tensor, Tensor]:
        """Embeddings ``(n, d)`` as g takes them and labels ``(n,)`` (for scoring), on the device of g."""
        z, y = self.embedded.data.domains[name]
        return self.classifier.prepared(z.to(self.classifier.device)), y.to(self.classifier.device)

    def source(self) -> tuple[Tensor, Tensor]:
        """Embeddings and labels of the reference domain, which stands for the source."""
        return self.domain(str(self.reference))


@dataclass(kw_only=True)
class Study(ABC):
    """One study. Its fields are its options, which ``__post_init__`` checks before any work."""

    summary: ClassVar[str]
    paper: ClassVar[str]  # the figure or table of the paper that it reproduces
    needs_data: ClassVar[bool] = True  # False: makes its own
    needs_reference: ClassVar[bool] = False

    # The figure, in columns of the table. A row without ``x`` (or method, where there is no x) is a level.
    x: ClassVar[tuple[str, str] | None] = None  # column and label of the axis; None: dots, a row for each method
    y: ClassVar[tuple[tuple[str, str], ...]] = (("accuracy", "accuracy (%)"),)  # columns and their units
    panel: ClassVar[str | None] = "domain"  # a panel for each value, or for each of ``y``
    line: ClassVar[tuple[str, ...]] = ("method",)
    log: ClassVar[bool] = False

    def measure(self, subject: Subject) -> list[dict[str, Any]]:
        """Rows of JSON values: everything that a figure and a reader need. Here: domain by domain."""
        shifted = tracked(subject.shifted, len(subject.shifted), "measuring", "domain", subject.progress)
        return [
            {"domain": name, **row} for name in shifted for row in self.measure_domain(subject, *subject.domain(name))
        ]

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> list[dict[str, Any]]:
        """The rows of one domain, with embeddings ``z`` ``(n, d)`` and labels ``y`` ``(n,)`` for scoring."""
        raise NotImplementedError

    @classmethod
    def draw(cls, rows: list[dict[str, Any]], figure: Figure) -> None:
        """Draw the rows of :meth:`measure`, and nothing else."""
        frame = pd.DataFrame(rows)
        frame["line"] = [", ".join(filter(None, names)) for names in frame[list(cls.line)].fillna("").to_numpy()]
        parts = [("", frame)] if cls.panel is None else frame.dropna(subset=cls.panel).groupby(cls.panel, sort=False)
        shown = [(name or y, part, y, unit) for name, part in parts for y, unit in cls.y]
        titles, columns = [title for title, *_ in shown], 3 if len(cls.y) == 1 else 2
        if cls.x is None:
            height = 0.9 + 0.36 * frame["method"].nunique()
            axes = panels(figure, titles, height, min(columns, len(shown)), sharey=True)
        else:
            axes = panels(figure, titles, 3.1, columns)
        for axis, (_, part, y, unit) in zip(axes, shown, strict=True):
            if cls.x is None:
                dots(axis, part, y, unit)
                continue
            x, name = cls.x
            lines(axis, part, x, y, unit)
            axis.set_xlabel(name)
            if cls.log:
                sizes_axis(axis, sorted(part[x].dropna().astype(int).unique()), name)
        legend_below(figure, axes)


def as_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The table as text."""
    frame = pd.DataFrame(rows).drop(columns="points", errors="ignore")
    text = [name for name in frame if any(isinstance(value, str) for value in frame[name])]
    numbers = [name for name in frame if name not in text]
    cells = frame[text + numbers].dropna(how="all", subset=numbers).convert_dtypes().astype(object)
    table = cells.apply(lambda column: column.map(_cell)).to_string(index=False)
    return [line.rstrip() for line in table.splitlines()]


def _cell(value: Any) -> str:
    return "" if pd.isna(value) else f"{value:.4g}" if isinstance(value, float) else str(value)


def run_study(
    name: str,
    dataset: str | None = None,
    *,
    reference: str | None = None,
    options: dict[str, Any] | None = None,
    **inputs: Any,
) -> dict[str, Any]:
    """Measure one study: the record that ``clip-tca study`` writes.

    ``dataset`` and ``inputs`` are those of :class:`clip_tca.evaluation.inputs.Inputs`, ``options`` those of the study.
    Without a ``reference`` it is the file's source data or the domain ``photo``, if there are any.
    """
    kind, options = study_class(name), options or {}
    allowed = [option.name for option in fields(kind)]
    if unknown := [option for option in options if option not in allowed]:
        raise ValueError(f"option: study {name} has no {unknown[0]!r}; allowed are {', '.join(allowed) or 'none'}")
    study = kind(**options)
    about: Mapping[str, Any] = {"dataset": None, "data": None, "model": None, "prompts": None, "cost": {}}
    subject = None
    if study.needs_data:
        if dataset is None:
            raise ValueError(f"dataset: {name} measures on a data set; name one, such as demo")
        source = Inputs(dataset, **inputs)
        embedded = source.embed()
        about = embedded.about
        if embedded.data.source is not None:
            embedded.data.domains[SOURCE] = embedded.data.source
        domain = _choose_reference(name, study, list(embedded.data.domains), reference)
        classifier = embedded.data.classifier(choose_device(source.device))
        subject = Subject(embedded, classifier, domain, source.progress)
    elif dataset is not None or reference is not None:
        log.warning("%s makes its own data: %s is ignored", name, dataset or reference)
    began = time.perf_counter()
    with silenced(adapters_log):  # studies use few embeddings on purpose
        results = study.measure(cast(Subject, subject))
    seconds = time.perf_counter() - began
    return {
        "schema_version": SCHEMA_VERSION,
        "study": name,
        "title": study.summary,
        "paper": study.paper,
        **{key: about[key] for key in ("dataset", "data", "model", "prompts")},
        "reference": None if subject is None else subject.reference,
        "options": asdict(study),
        "results": results,
        "finding": as_lines(results),
        "versions": versions(),
        "commit": commit(),
        "cost": {**about["cost"], "seconds": seconds},
    }


def _choose_reference(name: str, study: Study, domains: list[str], reference: str | None) -> str | None:
    if len(domains) == 1 and (study.needs_reference or reference is not None):
        raise ValueError(f"reference: {domains[0]!r} is the only domain; another is needed to compare with it")
    if reference is not None:
        return domain_named(reference, domains, "reference")
    reference = next((default for default in (SOURCE, "photo") if default in domains and len(domains) > 1), None)
    if reference is None and study.needs_reference:
        raise ValueError(f"reference: study {name} needs a source-like domain; name one of {', '.join(domains)}")
    return reference


def check_matplotlib() -> None:
    """Fail before the measurement, with the command to install matplotlib, if it is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError(f"figures need matplotlib; {install('plot')}")


def output_files(prefix: str | Path) -> dict[str, Path]:
    """The files of a prefix, by format; a suffix such as ``.svg`` is removed from the prefix."""
    text = str(prefix)
    if text.endswith(("/", "\\")):
        raise ValueError(f"output: {text} is a folder; name a prefix in it, such as {text}study")
    for suffix in (".json", ".svg", ".png"):
        text = text.removesuffix(suffix)
    return {form: Path(f"{text}.{form}") for form in ("json", "svg", "png")}


def save_study(record: dict[str, Any], prefix: str | Path) -> list[Path]:
    """Write ``PREFIX.json`` and, drawn from the record alone, ``PREFIX.svg`` and ``PREFIX.png``: all or none."""
    check_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    files = output_files(prefix)
    where = f" ({record['dataset']})" if record["dataset"] else ""
    title, text = f"{record['title']}{where}", json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    about: dict[str, Any] = {"Title": title, "Description": record["paper"]}
    with ExitStack() as stack:
        parts = {form: stack.enter_context(atomic(path)) for form, path in files.items()}
        parts["json"].write_text(f"{text}\n", encoding="utf-8")
        stack.enter_context(rc_context(cast(Any, STYLE)))
        figure = Figure(layout="constrained")
        study_class(record["study"]).draw(json.loads(text)["results"], figure)
        heading = textwrap.fill(title, int(figure.get_size_inches()[0] * 10))
        figure.suptitle(heading, x=0.01, ha="left", fontsize=12, fontweight="bold")
        figure.savefig(parts["svg"], format="svg", metadata={**about, "Date": None, "Creator": "clip-tca"})
        figure.savefig(parts["png"], format="png", dpi=144, metadata={**about, "Software": "clip-tca"})
    return list(files.values())


def shuffled(images: int, seed: int = 0) -> Tensor:
    """All images in a seeded order."""
    return order(images, "full", 1, seed)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Percent of correct predictions."""
    return 100 * int((predicted == labels).sum()) / len(labels)
