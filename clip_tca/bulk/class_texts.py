"""The zero-shot classifier of ``adapt``: from a file of text embeddings, or from class names and prompts to encode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.core.files import sha256
from clip_tca.core.remote import Location
from clip_tca.datasets.prompts import read_classes
from clip_tca.datasets.text_file import read_class_texts

if TYPE_CHECKING:
    from clip_tca.encoding.base import Encoder
    from clip_tca.encoding.store import Store


@dataclass(frozen=True)
class GivenClassifier:
    """The classifier, its class names if they are known, and where it came from, for the record."""

    classifier: LinearClassifier
    classes: list[str] | None
    about: dict[str, Any]
    kind: Literal["text", "head", "state"] = "text"

    def named(self, path: Location) -> GivenClassifier:
        """The same with the class names of a file, one a line."""
        names = list(read_classes(path).values())
        return replace(self, classifier=self.classifier.named(names), classes=names)


def read_texts(path: Location, name: str | None, scale: float | None, device: str) -> GivenClassifier:
    """Text embeddings ``(c, d)`` or ``(templates, c, d)`` from ``.npy``, ``.npz``, ``.safetensors`` or ``.pt``.

    Of the arrays only ``name`` is read; None looks for the usual names. A ``scale`` of None takes the file's, else 100.
    """
    texts = read_class_texts(path, name, ", or class names with --model")
    classifier = ZeroShotClassifier(texts.rows.to(device), texts.scale_for(scale), classes=texts.classes)
    about = {"file": path.name, "name": texts.name, "sha256": sha256(path), "scale": classifier.scale}
    return GivenClassifier(classifier, texts.classes, {**about, "classes": classifier.n_classes})


def encode_texts(path: Location, prompts: str, encoder: Encoder, store: Store, scale: float | None) -> GivenClassifier:
    """Class names, one a line as in :mod:`clip_tca.datasets.prompts`, put into prompts and encoded."""
    from clip_tca.datasets.prompts import load_prompts
    from clip_tca.encoding.embedder import Embedder

    classes = read_classes(path)
    names = list(classes.values())
    filled = load_prompts(prompts, names, raw=list(classes))
    text = Embedder(encoder, store).texts(filled)
    classifier = ZeroShotClassifier(text.to(encoder.device), scale or encoder.scale, bias=encoder.bias, classes=names)
    about = {
        "file": path.name,
        "classes": len(names),
        "scale": classifier.scale,
        "prompts": filled.name,
        "texts_sha256": filled.fingerprint(),
        "model": encoder.identity.model,
        "weights": encoder.identity.weights,
    }
    return GivenClassifier(classifier, names, about)
