"""The JSON record that an evaluation writes: :class:`EvaluationRecord`, its parts, and the names that stand in it.

A record is a plain dictionary, which :mod:`clip_tca.results.record` checks against these types when it reads one.
Importing this module needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, get_args

from msgspec import Meta
from typing_extensions import NotRequired

from clip_tca.core.checks import choices
from clip_tca.explanation import Diagnosis
from clip_tca.methods.registry import Nature

SCHEMA_VERSION = 1

Natural = Annotated[int, Meta(ge=0, le=2**53)]
Number = Annotated[float, Meta(ge=-(2.0**63), le=2.0**63)]  # finite

PLAIN_CLIP = "plain CLIP"  # the model without adaptation, in tables of cost

Setting = Literal["transductive", "online", "episodic"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)

Protocol = Literal["full", "watt", "kept"]
# Protocols, and what each divides the number of correct predictions by.
PROTOCOLS: dict[Protocol, str] = {"full": "all images", "watt": "all images, last batch unseen", "kept": "images seen"}

StreamKind = Literal["iid", "sorted", "dirichlet"]
STREAMS: tuple[StreamKind, ...] = get_args(StreamKind)

FORMATS = ("table", "json", "csv", "markdown", "latex")


@dataclass(frozen=True)
class Metric:
    """A measure: title, digits to print, whether more is better, and whether it is of a method, not of its domains."""

    title: str
    digits: int = 2
    higher: bool = True
    overall: bool = False


METRICS = {
    "accuracy": Metric("accuracy, %"),
    "macro_accuracy": Metric("macro accuracy, %"),
    "macro_f1": Metric("macro F1, %"),
    "worst_class": Metric("worst class, %"),
    "nll": Metric("NLL", 4, higher=False),
    "ece": Metric("ECE, %", higher=False),
    "adaptive_ece": Metric("adaptive ECE, %", higher=False),
    "seconds": Metric("ms/image", 3, higher=False, overall=True),
    "memory": Metric("KB/image", 1, higher=False, overall=True),
    "peak_memory": Metric("peak memory, MB", 0, higher=False, overall=True),
}
"""The measures that a table can show, by the names that ``--metric`` takes and the record has."""


def check_metrics(names: str | Sequence[str]) -> list[str]:
    """Names of measures without duplicates; ``macro-f1`` is ``macro_f1``. ValueError names one that is unknown."""
    listed = [names] if isinstance(names, str) else names
    return choices("metric", [name.strip().replace("-", "_") for name in listed], tuple(METRICS)) if listed else []


class DomainInfo(TypedDict):
    """A domain: number of images; of image files also the images of each class and a hash of the file list."""

    images: Natural
    per_class: NotRequired[list[Natural]]
    files_sha256: NotRequired[str]


class DataInfo(TypedDict):
    """The data set."""

    name: NotRequired[str]
    origin: dict[str, Any]  # its ``kind`` and what else identifies it (path, hub id, revision, seed …)
    classes: list[str]  # in the order of the labels
    domains: dict[str, DomainInfo]
    differences: list[str]  # from the published counts
    ignored: list[str]  # files and folders that were not used
    left_out: Natural  # images that could not be read


class ModelInfo(TypedDict):
    """The encoder."""

    model: str
    pretrained: str | None  # tag or file of the weights
    weights: str  # their SHA-256
    precision: str
    device: str
    preprocessing: NotRequired[dict[str, Any]]
    scale: NotRequired[Number]
    head: NotRequired[Natural]  # outputs of the model's own head, if that classifies in place of prompts


class PromptInfo(TypedDict):
    """The prompts."""

    name: str
    templates: list[str]
    descriptions: NotRequired[Natural]  # how many, in place of templates
    class_names: str  # which of them filled the templates
    classes: NotRequired[list[str]]
    texts_sha256: NotRequired[str]
    embeddings_sha256: NotRequired[str]


class EncodingCost(TypedDict):
    """Seconds of encoding, and images that were not in the embedding store."""

    encoding_seconds: Number
    encoded_images: Natural


class InputRecord(TypedDict):
    """The inputs."""

    dataset: str
    data: DataInfo
    model: ModelInfo | None  # None where a file of embeddings has none
    prompts: PromptInfo | None
    cost: EncodingCost


class BaseMethodInfo(TypedDict):
    """A base method with all its parameters."""

    name: str
    parameters: dict[str, Any]


class MethodInfo(BaseMethodInfo):
    """A method: the parameters of its adapter, and its base method."""

    uses_labels: bool  # an oracle
    base: NotRequired[BaseMethodInfo]
    nature: NotRequired[Nature]  # how the base method sees the test set
    tuned_on_test: NotRequired[str]  # what its authors chose by the accuracy on test data


class ClassScore(TypedDict):
    """Images of a true class and how many were right; accuracy in percent is None where there are none."""

    correct: Natural
    images: Natural
    accuracy: Number | None


class CalibrationBins(TypedDict):
    """Confidences in 15 bins of equal width: images, mean confidence and accuracy (%) of each, None where empty."""

    count: list[Natural]
    confidence: list[Number | None]
    accuracy: list[Number | None]


class ResultRow(TypedDict):
    """One method on one domain with one seed: counts and accuracy (%), in all and by class."""

    method: str
    domain: str
    seed: Natural
    uses_labels: bool
    correct: Natural
    images: Natural
    divisor: Natural  # by the protocol
    accuracy: Number
    per_class: dict[str, ClassScore]
    confusion: list[list[Natural]]  # rows are true classes, columns predicted ones
    changed: NotRequired[Natural]  # predictions that are not zero-shot's
    diagnosis: NotRequired[Diagnosis]  # of a transductive adapter
    metrics: dict[str, Number | None]  # the other measures, of the images seen
    calibration: CalibrationBins


class ExampleImage(TypedDict):
    """An image whose prediction changed."""

    position: Natural  # in its domain
    true: str
    before: str
    after: str
    name: NotRequired[str]  # of an image file
    thumbnail: NotRequired[str | None]  # a small JPEG in base64, where the file can still be decoded


class ExampleCounts(TypedDict):
    """Changed predictions of each kind."""

    fixed: Natural
    broken: Natural
    still_wrong: Natural


class ExampleGroup(TypedDict):
    """Changed predictions of one method on one domain: all are counted, some are listed."""

    method: str
    domain: str
    counts: ExampleCounts
    fixed: list[ExampleImage]
    broken: list[ExampleImage]
    still_wrong: list[ExampleImage]


class Examples(TypedDict):
    """Changed predictions of the shuffle ``seed``, at most ``limit`` of each kind, against the method ``before``."""

    limit: Natural
    seed: Natural
    before: str
    groups: list[ExampleGroup]


class MethodCost(TypedDict):
    """Time and memory of one method over all domains and seeds; see :class:`clip_tca.evaluation.cost.Cost`."""

    adapting_seconds: Number
    predicting_seconds: Number
    base_seconds: Number
    base_memory_bytes: Natural | None
    memory_bytes: Natural | None
    memory_bytes_per_image: Number | None
    images: Natural
    embeds: bool


class RunCost(EncodingCost):
    """Everything in a record that changes from run to run."""

    methods: dict[str, MethodCost]
    peak_memory_bytes: dict[str, Natural | None]


class StreamInfo(TypedDict):
    """How images were drawn, see :mod:`clip_tca.evaluation.streams`."""

    kind: StreamKind
    gamma: Number | None
    classes_present: list[Natural] | None  # the fewest and the most: of the whole set transductive, else of each batch
    long_tail: Number | None
    mix_domains: bool


class EvaluationRecord(TypedDict):
    """One evaluation, with a row for each method, domain and seed; ``examples`` only if requested."""

    schema_version: Natural
    dataset: str
    protocol: Protocol
    setting: Setting
    batch_size: Natural
    seeds: list[Natural]
    stream: StreamInfo
    data: DataInfo
    model: ModelInfo | None
    prompts: PromptInfo | None
    methods: list[MethodInfo]
    rows: list[ResultRow]
    examples: NotRequired[Examples]
    versions: dict[str, str]
    commit: str | None
    cost: RunCost
