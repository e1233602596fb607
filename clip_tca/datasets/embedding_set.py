"""Embeddings that already exist: class texts, and for each domain the embeddings of its images and their labels."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from clip_tca.files import write_tensors


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


def load(path: str | Path, text: str = "text.watt") -> EmbeddingSet:
    """Read a safetensors file with ``DOMAIN.embeddings``, ``DOMAIN.labels``, ``text.NAME`` and metadata ``scale``."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file; give a safetensors file of stored embeddings")
    try:
        with safe_open(str(path), "pt") as file:
            names = [name.removesuffix(".embeddings") for name in file.keys() if name.endswith(".embeddings")]  # noqa: SIM118
            domains = {n: (file.get_tensor(f"{n}.embeddings"), file.get_tensor(f"{n}.labels").long()) for n in names}
            metadata = file.metadata()
            classes = json.loads(metadata.get("classes", "null"))
            about = json.loads(metadata.get("about", "{}"))
            return EmbeddingSet(file.get_tensor(text), float(metadata["scale"]), domains, classes, about)
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: not stored embeddings ({error}); it needs DOMAIN.embeddings, DOMAIN.labels, {text} and a scale"
        ) from None
