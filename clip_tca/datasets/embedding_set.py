"""Embeddings that already exist: class texts, and for each domain the embeddings of its images and their labels."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.files import write_tensors
from clip_tca.core.tensors import check_labels, check_rows, to_tensor


@dataclass
class EmbeddingSet:
    """A data set without its pictures.

    Attributes:
        text: ``(c, d)`` or ``(templates, c, d)`` text embeddings of the classes.
        scale: Logit scale of the model.
        domains: For each domain the embeddings ``(n, d)`` and, for scoring only, the labels ``(n,)``.
        classes: Names of the classes, if they are known.
        about: Model and prompts that it came from, if they are known; kept in the file.
    """

    text: Tensor
    scale: float
    domains: dict[str, tuple[Tensor, Tensor]]
    classes: list[str] | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path, text: str = "text.single") -> None:
        """Write what :func:`load` reads, with the text embeddings under the name ``text``."""
        tensors = {text: self.text.contiguous()}
        for name, (z, y) in self.domains.items():
            tensors |= {f"{name}.embeddings": z.contiguous(), f"{name}.labels": y.contiguous()}
        kept = {"classes": self.classes, "about": self.about}
        write_tensors(Path(path), tensors, {"scale": str(self.scale), **{k: json.dumps(v) for k, v in kept.items()}})


def load(path: str | Path, text: str | None = None) -> EmbeddingSet:
    """Read a safetensors file with ``DOMAIN.embeddings``, ``DOMAIN.labels``, ``text.NAME`` and metadata ``scale``.

    ``text`` chooses among several texts; None takes the only one, or else ``text.watt``.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file; give a safetensors file of stored embeddings")
    try:
        with safe_open(str(path), "pt") as file:
            names = [name.removesuffix(".embeddings") for name in file.keys() if name.endswith(".embeddings")]  # noqa: SIM118
            texts = [name for name in file.keys() if name.startswith("text.")]  # noqa: SIM118
            text = text or (texts[0] if len(texts) == 1 else "text.watt")
            domains = {n: (file.get_tensor(f"{n}.embeddings"), file.get_tensor(f"{n}.labels").long()) for n in names}
            metadata = file.metadata()
            classes = json.loads(metadata.get("classes", "null"))
            about = json.loads(metadata.get("about", "{}"))
            chosen = file.get_tensor(text if text in texts else texts[0])
            found = EmbeddingSet(chosen, float(metadata["scale"]), domains, classes, about)
        check(found)
    except (SafetensorError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: not stored embeddings ({error}); it needs DOMAIN.embeddings, DOMAIN.labels, text.NAME and a scale"
        ) from None
    if text not in texts:
        raise ValueError(f"{path}: no {text}, but {', '.join(texts)}; choose one of those by --prompts")
    return found


def check(data: EmbeddingSet) -> None:
    """Raise ValueError or TypeError where texts, embeddings, labels and names do not fit each other."""
    known = ZeroShotClassifier(data.text, data.scale)
    if data.classes is not None and [str(name) for name in data.classes] != data.classes:
        raise ValueError(f"classes: {data.classes!r}; a list of names is needed")
    if data.classes is not None and len(data.classes) != known.n_classes:
        raise ValueError(f"classes: {len(data.classes)} names, but the texts have {known.n_classes}")
    if not data.domains:
        raise ValueError("no domain in it")
    for name, (z, y) in data.domains.items():
        check_rows(to_tensor(z, name), known.dim, name)
        check_labels(y, len(z), known.n_classes, y.device)
    if any(not isinstance(data.about.get(key) or {}, dict) for key in ("model", "prompts")):
        raise ValueError(f"about: {data.about!r}; model and prompts are tables")
