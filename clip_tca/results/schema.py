"""The schema of the JSON record that an evaluation writes: :class:`EvaluationRecord` and its parts.

A record is a plain dictionary. :func:`clip_tca.evaluate` builds it once; :mod:`clip_tca.results.record` checks it
against these types when it reads one, so what consumes a record may rely on them. Importing this module needs no torch.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict, get_args

from typing_extensions import NotRequired

from clip_tca.explanation import Diagnosis
from clip_tca.methods.registry import Nature

SCHEMA_VERSION = 1

PLAIN_CLIP = "plain CLIP"
"""The model without adaptation, in tables of cost."""

Setting = Literal["transductive", "online", "episodic"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)

Protocol = Literal["full", "watt", "kept"]
PROTOCOLS: dict[Protocol, str] = {"full": "all images", "watt": "all images, last batch unseen", "kept": "images seen"}
"""Protocols, and what each divides the number of correct predictions by."""

StreamKind = Literal["iid", "sorted", "dirichlet"]
STREAMS: tuple[StreamKind, ...] = get_args(StreamKind)

FORMATS = ("table", "json", "csv", "markdown", "latex")
"""Output formats of records (:mod:`clip_tca.results.rendering`)."""

ExampleKind = Literal["fixed", "broken", "still_wrong"]


class DomainInfo(TypedDict):
    """A domain: number of images; of image files also the images of each class and a hash of the file list."""

    images: int
    per_class: NotRequired[list[int]]
    files_sha256: NotRequired[str]


class DataInfo(TypedDict):
    """The data set: classes in the order of the labels, domains, and how it differs from the published counts.

    ``origin`` has a ``kind`` and what else identifies it (path, hub id, revision, seed …). ``ignored`` are files
    and folders that were not used, ``left_out`` counts images that could not be read. Of ``unknown_classes``
    (``--unknown-classes``) there are images and no prompts; they are not among the ``classes``.
    """

    name: NotRequired[str]
    origin: dict[str, Any]
    classes: list[str]
    unknown_classes: NotRequired[list[str]]
    domains: dict[str, DomainInfo]
    differences: list[str]
    ignored: NotRequired[list[str]]
    left_out: int


class ModelInfo(TypedDict):
    """The encoder: architecture, tag or file of the weights, their SHA-256, precision and device.

    ``head``: number of outputs of the model's own head, if that classifies in place of prompts.
    """

    model: str
    pretrained: str | None
    weights: str
    precision: str
    device: str
    preprocessing: NotRequired[dict[str, Any]]
    scale: NotRequired[float]
    head: NotRequired[int]


class PromptInfo(TypedDict):
    """The prompts: name and templates, and which class names filled them; or how many ``descriptions`` there are."""

    name: str
    templates: list[str]
    descriptions: NotRequired[int]
    class_names: str
    classes: NotRequired[list[str]]
    texts_sha256: NotRequired[str]
    embeddings_sha256: NotRequired[str]


class EncodingCost(TypedDict):
    """Seconds of encoding, and images that were not in the embedding store."""

    encoding_seconds: float
    encoded_images: int


class InputRecord(TypedDict):
    """What the record says of the inputs; ``model`` and ``prompts`` are None where a file of embeddings has none."""

    dataset: str
    data: DataInfo
    model: ModelInfo | None
    prompts: PromptInfo | None
    cost: EncodingCost


class BaseMethodInfo(TypedDict):
    """A base method with all its parameters."""

    name: str
    parameters: dict[str, Any]


class MethodInfo(TypedDict):
    """A method: the parameters of its adapter, its base method, and whether it uses true labels (an oracle).

    With a base method, ``nature`` is how that sees the test set, and ``tuned_on_test`` what its authors chose by the
    accuracy on test data. Older records have neither.
    """

    name: str
    uses_labels: bool
    parameters: dict[str, Any]
    base: NotRequired[BaseMethodInfo]
    nature: NotRequired[Nature]
    tuned_on_test: NotRequired[str]


class ClassScore(TypedDict):
    """Images of a true class and how many were right; accuracy in percent is None where there are none."""

    correct: int
    images: int
    accuracy: float | None


class CalibrationBins(TypedDict):
    """Confidences in 15 bins of equal width: images, mean confidence and accuracy (%) of each, None where empty."""

    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


class ResultRow(TypedDict):
    """One method on one domain with one seed: counts and accuracy (%), in all and by class.

    ``divisor`` is what the protocol divides by. Rows of ``confusion`` are true classes, columns predicted ones (not in
    the oldest records). A transductive adapter has a ``diagnosis``. ``metrics`` are the other measures of
    :mod:`clip_tca.evaluation.measures`, of the images seen. Everything but ``unknown_auroc`` is of known classes.
    """

    method: str
    domain: str
    seed: int
    uses_labels: bool
    correct: int
    images: int
    divisor: int
    accuracy: float
    per_class: dict[str, ClassScore]
    confusion: NotRequired[list[list[int]]]
    diagnosis: NotRequired[Diagnosis]
    metrics: NotRequired[dict[str, float | None]]
    calibration: NotRequired[CalibrationBins]


class Thumbnail(TypedDict, total=False):
    """Name of an image file and, where it can still be decoded, a small JPEG of it in base64."""

    name: str
    thumbnail: str | None


class ExampleImage(Thumbnail):
    """An image whose prediction changed: its index in its domain, true class, class predicted before and after."""

    position: int
    true: str
    before: str
    after: str


class ExampleGroup(TypedDict):
    """Changed predictions of one method on one domain: all are counted, some are listed."""

    method: str
    domain: str
    counts: dict[ExampleKind, int]
    fixed: list[ExampleImage]
    broken: list[ExampleImage]
    still_wrong: list[ExampleImage]


class Examples(TypedDict):
    """Changed predictions of the shuffle ``seed``, at most ``limit`` of each kind, against the method ``before``."""

    limit: int
    seed: int
    before: str
    groups: list[ExampleGroup]


class ForgettingRow(TypedDict):
    """Accuracy (%) on the source-like domain with the state adapted to another domain, and without it."""

    method: str
    adapted_to: str
    domain: str
    images: int
    correct_with_state: int
    accuracy_with_state: float
    correct_without_state: int
    accuracy_without_state: float


class MethodCost(TypedDict):
    """Time and memory of one method over all domains and seeds; see :class:`clip_tca.evaluation.cost.Cost`."""

    adapting_seconds: float
    predicting_seconds: float
    base_seconds: float
    base_memory_bytes: int | None
    memory_bytes: NotRequired[int | None]
    memory_bytes_per_image: NotRequired[float | None]
    images: int
    embeds: bool


class RunCost(EncodingCost):
    """Everything in a record that changes from run to run."""

    methods: dict[str, MethodCost]
    peak_memory_bytes: dict[str, int | None]


class StreamInfo(TypedDict):
    """How images were drawn, see :mod:`clip_tca.evaluation.streams`.

    ``classes_present`` are the fewest and the most: of each batch online and episodic, of the whole set transductive.
    """

    kind: StreamKind
    gamma: float | None
    classes_present: list[int] | None
    long_tail: float | None
    mix_domains: bool


class OnRequest(TypedDict, total=False):
    """What is measured only if requested (``--examples``, ``--forgetting``)."""

    examples: Examples
    forgetting: list[ForgettingRow]


class EvaluationRecord(OnRequest):
    """One evaluation, with a row for each method, domain and seed."""

    schema_version: int
    dataset: str
    protocol: Protocol
    setting: Setting
    batch_size: int
    seeds: list[int]
    stream: NotRequired[StreamInfo]
    data: DataInfo
    model: ModelInfo | None
    prompts: PromptInfo | None
    methods: list[MethodInfo]
    rows: list[ResultRow]
    versions: dict[str, str]
    commit: str | None
    cost: RunCost
