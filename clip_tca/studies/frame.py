"""What all studies share: their data, the run, the record, and the figure drawn from that record.

The record is JSON: ``schema_version``, ``study``, ``title``, ``paper``, ``dataset``, ``data``, ``model``, ``prompts``,
``reference``, ``options``, ``results``, ``finding``, ``versions``, ``commit`` and ``cost``. Only ``cost`` differs from
run to run.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import textwrap
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import Tensor

from clip_tca.adapters.base import log as adapters_log
from clip_tca.adapters.base import silenced
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import install
from clip_tca.core.device import choose_device
from clip_tca.core.files import atomic
from clip_tca.core.progress import tracked
from clip_tca.core.provenance import commit, versions
from clip_tca.datasets.embeddings import SOURCE
from clip_tca.datasets.registry import domain_named
from clip_tca.evaluation.inputs import Embedded, Inputs
from clip_tca.evaluation.streams import order
from clip_tca.results.schema import SCHEMA_VERSION
from clip_tca.studies import study_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("clip_tca")


@dataclass(frozen=True)
class Subject:
    """The data set and the classifier, on the device to compute on, that a study measures.

    ``reference`` is the source-like domain, which may be the file's own source data; None if none was named.
    """

    embedded: Embedded
    classifier: LinearClassifier
    reference: str | None
    progress: bool = False

    @property
    def shifted(self) -> list[str]:
        """Every domain but the reference."""
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
    """One study. Its fields are its options, which ``__post_init__`` checks before any work.

    Class attributes: ``summary`` (one line), ``paper`` (the figure or table of the paper that it reproduces),
    ``needs_data`` (False: makes its own), ``needs_reference``.
    """

    summary: ClassVar[str]
    paper: ClassVar[str]
    needs_data: ClassVar[bool] = True
    needs_reference: ClassVar[bool] = False

    def measure(self, subject: Subject) -> dict[str, Any]:
        """The results, as JSON values: everything that :meth:`draw` and a reader need. Here: domain by domain."""
        shifted = tracked(subject.shifted, len(subject.shifted), "measuring", "domain", subject.progress)
        domains = {name: self.measure_domain(subject, *subject.domain(name)) for name in shifted}
        return {"reference": subject.reference, "domains": domains}

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> dict[str, Any]:
        """The results of one domain, with embeddings ``z`` ``(n, d)`` and labels ``y`` ``(n,)`` for scoring."""
        raise NotImplementedError

    @staticmethod
    @abstractmethod
    def draw(results: dict[str, Any], figure: Figure) -> None:
        """Draw the results of :meth:`measure`, and nothing else."""

    @staticmethod
    @abstractmethod
    def describe(results: dict[str, Any]) -> list[str]:
        """The finding in a few lines with numbers, for the terminal and as the figure's alt text."""


def run_study(
    name: str,
    dataset: str | None = None,
    *,
    reference: str | None = None,
    options: dict[str, Any] | None = None,
    **inputs: Any,
) -> dict[str, Any]:
    """Measure one study: the record that ``clip-tca study`` writes.

    Args:
        name: As in :data:`clip_tca.studies.STUDIES`.
        dataset: As in :class:`clip_tca.evaluation.inputs.Inputs`; None for a study that makes its own data.
        reference: The source-like domain; None takes the file's source data or the domain ``photo``, if there are any.
        options: Options of the study, such as ``{"groups": 5}``.
        inputs: Data, model and prompts: the other fields of :class:`clip_tca.evaluation.inputs.Inputs`.
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
        "finding": study.describe(results),
        "versions": versions(),
        "commit": commit(),
        "cost": {**about["cost"], "seconds": seconds},
    }


def _choose_reference(name: str, study: Study, domains: list[str], given: str | None) -> str | None:
    """The source-like domain: as given, else source data or ``photo``, else None for a study that needs none."""
    if len(domains) == 1 and (study.needs_reference or given is not None):
        raise ValueError(f"reference: {domains[0]!r} is the only domain; another is needed to compare with it")
    if given is not None:
        return domain_named(given, domains, "reference")
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

    from clip_tca.studies.figure_style import STYLE

    files = output_files(prefix)
    where = f" ({record['dataset']})" if record["dataset"] else ""
    title, text = f"{record['title']}{where}", json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    about: dict[str, Any] = {"Title": title, "Description": " ".join(record["finding"])}
    with ExitStack() as stack:
        parts = {form: stack.enter_context(atomic(path)) for form, path in files.items()}
        parts["json"].write_text(f"{text}\n", encoding="utf-8")
        stack.enter_context(rc_context(cast(Any, STYLE)))
        figure = Figure(layout="constrained")
        study_class(record["study"]).draw(json.loads(text)["results"], figure)
        lines = textwrap.fill(title, int(figure.get_size_inches()[0] * 10))
        figure.suptitle(lines, x=0.01, ha="left", fontsize=12, fontweight="bold")
        figure.savefig(parts["svg"], format="svg", metadata={**about, "Date": None, "Creator": "clip-tca"})
        figure.savefig(parts["png"], format="png", dpi=144, metadata={**about, "Software": "clip-tca"})
    return list(files.values())


def shuffled(images: int, seed: int = 0) -> Tensor:
    """All images in a seeded order."""
    return order(images, "full", 1, seed)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Percent of correct predictions."""
    return 100 * int((predicted == labels).sum()) / len(labels)
