"""Labels for pictures that have none: encode, classify by prompts, adapt, and tell what changed.

This is an evaluation without the scoring: the same inputs, methods and embedding store, and no true labels at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from clip_tca.adapters.base import class_log, silenced
from clip_tca.adapters.diagnosis import diagnose
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_number, check_whole
from clip_tca.core.machine import choose_device
from clip_tca.core.progress import Progress
from clip_tca.data.hub import demo_set
from clip_tca.data.pictures import ImageSet
from clip_tca.data.prompts import given_classes
from clip_tca.data.unlabelled import DEMO, load_pictures
from clip_tca.encoding.base import make_encoder
from clip_tca.encoding.embedder import Embedder
from clip_tca.encoding.open_clip import MODEL
from clip_tca.encoding.store import Store
from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.inputs import Embedded, Inputs
from clip_tca.evaluation.method_spec import MethodSpec, class_scores, method_specs, predict
from clip_tca.evaluation.streams import order
from clip_tca.explanation import Verdict, verdict
from clip_tca.methods.registry import DEFAULT
from clip_tca.results.predictions import prediction_table

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("clip_tca")

BATCH = 128  # pictures at a time, for the methods that see batches
FEW = 50  # pictures below which little can be learned from them


@dataclass(frozen=True)
class Unlabelled(Inputs):
    """Pictures without labels, with the model and the prompts to embed them."""

    pictures: Any = None  # as in load_pictures
    classes: dict[str, str] = field(default_factory=dict)  # readable names by names, as in given_classes
    by_domain: bool = False  # subfolders are domains, each adapted to by itself

    @property
    def is_local(self) -> bool:
        return self.hub_id is None

    def check(self) -> None:
        if self.pictures is not None and self.hub_id is not None:
            raise ValueError(f"hub id: {self.hub_id}, but pictures are given too; give one of them")
        if self.pictures is None and self.hub_id is None:
            raise ValueError("pictures: none given; name a folder, files, an archive, or a data set by --hub-id ID")

    def load(self) -> ImageSet:
        with Progress(None, "reading the pictures", "image", self.progress):
            source = self.hub_id, self.revision, self.image_column, self.domain_column
            data = load_pictures(self.pictures, self.by_domain, *source, progress=self.progress)
        data.classes = list(self.classes)
        return data

    def embed(self, arrived: Callable[[Embedded, str], None] | None = None) -> Embedded:
        check_whole("workers", self.workers, 0, also=None)
        return self._encoded(arrived)

    def _readable(self, raw: list[str], head: LinearClassifier | None) -> list[str]:
        return [self.classes[name] for name in raw]


@dataclass(frozen=True)
class Labelling:
    """The result of labelling."""

    table: pd.DataFrame  # as label returns it
    classes: list[str]
    method: str
    trust: dict[str, Verdict]  # by domain; empty for a method that has no verdict
    embedded: Embedded

    @property
    def proposed(self) -> pd.Series:
        return self.table["proposal" if "proposal" in self.table else "label"]

    @property
    def pictures(self) -> ImageSet:
        return cast("ImageSet", self.embedded.pictures)  # they were encoded from pictures


def run_labelling(
    pictures: Any = None,
    classes: str | Sequence[str] | None = None,
    *,
    method: str = DEFAULT,
    options: dict[str, Any] | None = None,
    top: int = 0,
    review_below: float | None = None,
    **inputs: Any,
) -> Labelling:
    """Label pictures as :func:`label` does, and keep what a page or a summary needs."""
    import pandas as pd

    (spec,) = method_specs([method], options or {})
    if spec.uses_labels:
        raise ValueError(f"method: {method} uses true labels, and there are none here; {DEFAULT} needs none")
    check_whole("top", top, 0)
    if pictures == DEMO or pictures == [DEMO]:
        classes, inputs = demo_set().classes if classes is None else classes, {"model": "demo", **inputs}
    if classes is None:
        raise ValueError('classes: none given; name what the pictures may show, such as "dog, cat, horse"')
    names = given_classes(classes)
    source = Unlabelled("pictures", pictures=pictures, classes=names, **inputs)
    embedded = source.embed()
    runs = BaseRuns(embedded, choose_device(source.device), BATCH, source.workers, source.progress)
    tables: list[pd.DataFrame] = []
    sure: list[np.ndarray] = []
    trust: dict[str, Verdict] = {}
    encoded = cast("ImageSet", embedded.pictures)
    with silenced(class_log):
        for domain, (z, _) in embedded.data.domains.items():
            before, after, verdicts = _predicted(spec, runs, domain, len(z))
            part = prediction_table(encoded.domains[domain].names, before, after, list(names), top)
            if source.by_domain:
                part.insert(1, "domain", domain)
            tables.append(part)
            sure.append(sureness(before, after))
            trust |= verdicts
    table = pd.concat(tables, ignore_index=True)
    if review_below is not None:
        table["proposal"], table["review"] = table["label"], for_review(np.concatenate(sure), review_below)
        table["label"] = table["label"].where(~table["review"], "")
    return Labelling(table, list(names), method, trust, embedded)


def _predicted(spec: MethodSpec, runs: BaseRuns, domain: str, images: int) -> tuple[Tensor, Tensor, dict[str, Verdict]]:
    """Logits ``(n, c)`` of zero-shot and of a method, and the verdict on an adapter."""
    g, seen = runs.classifier, order(images, "full", BATCH, 0)  # a folder is often sorted by what it shows
    z = runs.embedded.data.domains[domain][0][seen].to(g.device)
    zero_shot = class_scores(g, z, None)
    logits = None
    if spec.base is not None:
        base = runs.run(spec.base, spec.base_options, domain, seen)
        z, logits = base.z, base.logits
    unknown = torch.zeros(images, dtype=torch.long, device=g.device)  # no method looks at labels but an oracle
    prediction = predict(spec, g, z, unknown, "transductive", BATCH, logits)
    trust = {}
    if prediction.adapter is not None and spec.base is None and images > 1:
        trust[domain] = verdict(diagnose(prediction.adapter, zero_shot.argmax(dim=1), prediction.classes))
    back = torch.empty_like(seen)
    back[seen] = torch.arange(images)
    return zero_shot.cpu()[back], prediction.logits.cpu()[back], trust


def sureness(before: Tensor, after: Tensor) -> np.ndarray:
    """The chance ``(n,)`` that the label after adaptation is right, by the logits ``(n, c)`` before and after.

    Softmax confidence is too high where the model is weak, so both predictions have to be sure: it is the product of
    both probabilities of the label. It was chosen among eight rules on the labelled sets of eval/ask.md.
    """
    confidence, label = after.double().softmax(dim=1).max(dim=1)
    sure: np.ndarray = (confidence * before.double().softmax(dim=1).gather(1, label[:, None])[:, 0]).cpu().numpy()
    return sure


def for_review(sure: np.ndarray, most_wrong: float) -> np.ndarray:
    """Whether each picture ``(n,)`` is for a person, so that at most ``most_wrong`` of the rest is expected wrong."""
    check_number("review_below", most_wrong, 0, 1)
    wrong = 1 - sure
    surest = np.argsort(wrong, kind="stable")
    expected = np.cumsum(wrong[surest]) / np.arange(1, len(wrong) + 1)  # it only grows
    review = np.ones(len(wrong), dtype=bool)
    review[surest[: int((expected <= most_wrong + 1e-12).sum())]] = False
    return review


def label(pictures: Any, classes: str | Sequence[str] | None = None, **options: Any) -> pd.DataFrame:
    """Label pictures with CLIP and adapt the labels to these pictures, like ``clip-tca label``.

    Args:
        pictures: A folder, file, glob pattern, archive, Parquet file, URL of an object store, PIL image or 8-bit
            array, or a list of these. ``"demo"`` stands for the bundled pictures. Use None together with ``hub_id``.
        classes: Names of the classes: a list, a string such as ``"dog, cat, horse"``, or a file with one class per
            line. Optional for ``"demo"``.
        options: Keyword arguments:

            * ``model``, ``pretrained``, ``device``, ``precision``, ``prompts``, ``skip_bad``, ``cache``, ``workers``,
              ``hub_id``, ``revision``, ``image_column`` and ``domain_column``: the same as the options of the command.
            * ``method``: name of the method, by default ``"conditional-tca"``.
            * ``options``: dictionary of options of the method, such as ``{"shares": {"dog": 0.9, "cat": 0.1}}``.
            * ``by_domain``: if True, each subfolder is a domain and is adapted separately.
            * ``top``: number of most probable classes to return for each picture.
            * ``review_below``: largest expected share of wrong labels, such as 0.05. Pictures that are too uncertain
              get no label.

    Returns:
        A DataFrame with one row per picture and the columns ``file``, ``label``, ``confidence``, ``zero_shot``,
        ``zero_shot_confidence``, ``changed`` and ``runner_up``. ``by_domain`` adds ``domain``. ``top`` adds
        ``label_1``, ``confidence_1`` and so on. ``review_below`` adds ``review`` (True for a picture without a label)
        and ``proposal`` (the label it would get). ``table.attrs["verdict"]`` is a dictionary with the verdict on each
        domain, which is found without labels.
    """
    labelling = run_labelling(pictures, classes, **options)
    labelling.table.attrs["verdict"] = dict(labelling.trust)
    return labelling.table


def encode(
    pictures: Any,
    model: str | None = None,
    *,
    pretrained: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    cache: bool = True,
    workers: int | None = None,
) -> np.ndarray:
    """Compute the image embeddings of pictures.

    Args:
        pictures: The same as in :func:`label`.
        model: Name of the model, as in ``--model``. The default is CLIP ViT-B/16 with OpenAI's weights, or the bundled
            model for the pictures ``"demo"``.
        pretrained: Tag or file of the weights. The default depends on the model.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:N"`` or ``"mps"``.
        precision: ``"auto"``, ``"fp32"``, ``"fp16"`` or ``"bf16"``.
        cache: Whether to store embeddings on disk and read those already stored.
        workers: Number of processes that decode pictures, or of threads on a CPU. By default, the number of cores, at
            most 8.

    Returns:
        Array of shape ``(n, d)`` in float32, with one row per picture, in the order of ``label(…)["file"]``. The
        embeddings are not scaled to unit length.
    """
    data = load_pictures(pictures)
    store = Store() if cache else None
    model = model or ("demo" if pictures == DEMO else MODEL)
    encoder = make_encoder(model, pretrained, device, precision, store)
    (z,) = Embedder(encoder, store, workers=workers).pictures(data).values()
    rows: np.ndarray = z.numpy()
    return rows
