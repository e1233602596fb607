"""Runs a study on a data set: its record, and the figure drawn from that record.

The record is JSON: ``schema_version``, ``study``, ``title``, ``paper``, ``dataset``, ``data``, ``model``, ``prompts``,
``reference``, ``options``, ``results``, ``finding``, ``versions``, ``commit`` and ``cost``. Only ``cost`` differs from
run to run (and the results of ``efficiency``, which are times).
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import logging
import textwrap
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from clip_tca.adapters.base import log as adapters_log
from clip_tca.adapters.base import silenced
from clip_tca.core.device import choose_device
from clip_tca.core.files import atomic
from clip_tca.core.progress import Progress
from clip_tca.core.provenance import commit, versions
from clip_tca.datasets.embedding_set import SOURCE
from clip_tca.datasets.registry import domain_named
from clip_tca.evaluation.inputs import Inputs
from clip_tca.results.schema import SCHEMA_VERSION
from clip_tca.studies.base import Study, Subject
from clip_tca.studies.registry import study_class

log = logging.getLogger("clip_tca")

DEFAULT_REFERENCES = (SOURCE, "photo")
"""What stands for the source by default, the first of them that there is: source data in the file, or a domain."""

DPI = 144


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
        name: As in :data:`clip_tca.studies.registry.NAMES`.
        dataset: As in :class:`clip_tca.evaluation.inputs.Inputs`; None for a study that makes its own data.
        reference: The source-like domain; None takes the file's source data or the domain ``photo``, if there are any.
        options: Options of the study, such as ``{"groups": 5}``.
        inputs: Data, model and prompts: the other fields of :class:`clip_tca.evaluation.inputs.Inputs`.
    """
    study, all_options = build_study(name, options or {})
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
        domain = choose_reference(study, list(embedded.data.domains), reference)
        classifier = embedded.data.classifier(choose_device(source.device))
        subject = Subject(embedded, classifier, domain, source.progress)
    elif dataset is not None or reference is not None:
        log.warning("%s makes its own data: %s is ignored", name, dataset or reference)
    began = time.perf_counter()
    shown = Progress(None, f"study {name}", "step", bool(inputs.get("progress", False)))
    with shown, silenced(adapters_log):  # studies use few embeddings on purpose
        results = study.measure(cast(Subject, subject))
    seconds = time.perf_counter() - began
    return {
        "schema_version": SCHEMA_VERSION,
        "study": name,
        "title": study.summary,
        "paper": study.paper,
        **{key: about[key] for key in ("dataset", "data", "model", "prompts")},
        "reference": None if subject is None else subject.reference,
        "options": all_options,
        "results": results,
        "finding": study.describe(results),
        "versions": versions(),
        "commit": commit(),
        "cost": {**about["cost"], "seconds": seconds},
    }


def build_study(name: str, options: dict[str, Any]) -> tuple[Study, dict[str, Any]]:
    """A study, and all its options with their defaults."""
    kind = study_class(name)
    defaults = {
        option: parameter.default
        for option, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    if unknown := [option for option in options if option not in defaults]:
        allowed = ", ".join(defaults) or "none"
        raise ValueError(f"option: study {name} has no {unknown[0]!r}; allowed are {allowed}")
    return kind(**options), {**defaults, **options}


def choose_reference(study: Study, domains: list[str], given: str | None) -> str | None:
    """The source-like domain: as given, else source data or ``photo``, else None for a study that needs none."""
    if given is not None:
        given = domain_named(given, domains, "reference")
    reference = given or next((name for name in DEFAULT_REFERENCES if name in domains), None)
    if reference is None and study.needs_reference:
        raise ValueError(f"reference: study {study.name} needs a source-like domain; name one of {', '.join(domains)}")
    if reference is not None and len(domains) == 1:
        if study.needs_reference or given is not None:
            raise ValueError(f"reference: {reference!r} is the only domain; another is needed to compare with it")
        return None
    return reference


def check_matplotlib() -> None:
    """Fail before the measurement, with the command to install matplotlib, if it is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError('figures need matplotlib: pip install "clip-tca[plot]" (or write the record only)')


def output_files(prefix: str | Path, figure: bool = True) -> dict[str, Path]:
    """The files of a prefix, by format; a suffix such as ``.svg`` is removed from the prefix."""
    text = str(prefix)
    if text.endswith(("/", "\\")):
        raise ValueError(f"output: {text} is a folder; name a prefix in it, such as {text}study")
    for suffix in (".json", ".svg", ".png"):
        text = text.removesuffix(suffix)
    return {form: Path(f"{text}.{form}") for form in (("json", "svg", "png") if figure else ("json",))}


def save_study(record: dict[str, Any], prefix: str | Path, figure: bool = True) -> list[Path]:
    """Write ``PREFIX.json`` and, drawn from the record alone, ``PREFIX.svg`` and ``PREFIX.png``: all or none."""
    if figure:
        check_matplotlib()
    files = output_files(prefix, figure)
    with ExitStack() as stack:
        parts = {form: stack.enter_context(atomic(path)) for form, path in files.items()}
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        parts["json"].write_text(f"{text}\n", encoding="utf-8")
        if figure:
            _draw(record, {form: part for form, part in parts.items() if form != "json"})
    return list(files.values())


def _draw(record: dict[str, Any], parts: dict[str, Path]) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from clip_tca.studies.figure_style import STYLE

    study, _ = build_study(record["study"], record["options"])
    where = f" ({record['dataset']})" if record["dataset"] else ""
    title, alt = f"{record['title'][:1].upper()}{record['title'][1:]}{where}", " ".join(record["finding"])
    about: dict[str, dict[str, Any]] = {
        "svg": {"Title": title, "Description": alt, "Date": None, "Creator": "clip-tca"},
        "png": {"Title": title, "Description": alt, "Software": "clip-tca"},
    }
    style: Any = STYLE
    with rc_context(style):
        figure = Figure(layout="constrained")
        study.draw(json.loads(json.dumps(record["results"])), figure)
        if not figure.get_suptitle():  # the study has set none of its own
            lines = textwrap.fill(title, int(figure.get_size_inches()[0] * 10))
            figure.suptitle(lines, x=0.01, ha="left", fontsize=12, fontweight="bold")
        for form, part in parts.items():
            figure.savefig(part, format=form, dpi=DPI, metadata=about[form])
