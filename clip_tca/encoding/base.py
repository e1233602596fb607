"""The encoder contract: what a model of any library offers, so that it can embed images and texts.

:mod:`clip_tca.encoding.open_clip`, ``torchvision``, ``timm`` and ``transformers`` beside it meet the contract for their
libraries; :func:`clip_tca.encoding.registry.make_encoder` chooses by the model's name. Nothing else in the package asks
which library it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from clip_tca.classifier import LinearClassifier

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Identity:
    """What decides the embeddings of an image, apart from the image.

    Attributes:
        model: Name of the architecture.
        pretrained: Tag or file name of the weights.
        weights: SHA-256 of the weights file, or of the loaded weights where there is no single file.
        configuration: Hash of the architecture's configuration.
        preprocessing: Size, crop, interpolation, mean and standard deviation.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        scale: exp of the model's logit scale; 1 for a model with its own head.
        bias: The model's logit bias (SigLIP); 0 for others.
    """

    model: str
    pretrained: str
    weights: str
    configuration: str
    preprocessing: dict[str, Any]
    precision: str
    scale: float
    bias: float = 0.0


class Encoder(ABC):
    """f: from images, and from texts if there is a text tower, to embeddings; ``fp16`` and ``bf16`` run by autocast."""

    device: torch.device
    precision: str

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """What the embeddings depend on; the store keeps them under it."""

    @property
    @abstractmethod
    def model(self) -> Any:
        """The torch module, in evaluation mode: ``encode_image``, and ``visual``, the image tower to adapt."""

    @property
    @abstractmethod
    def transform(self) -> Callable[[Image.Image], Tensor]:
        """Preprocessing: RGB image → ``(3, height, width)``. Must be picklable, for worker processes."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension d of the embeddings."""

    @torch.inference_mode()
    def encode_images(self, batch: Tensor) -> Tensor:
        """Embeddings ``(n, d)`` of preprocessed images ``(n, 3, height, width)``, in float32."""
        with self._autocast():
            z: Tensor = self.model.encode_image(batch.to(self.device, non_blocking=True))
        return z.float()

    @property
    def head(self) -> LinearClassifier | None:
        """g, of a model that brings its own linear head; None where prompts build it."""
        return None

    def encode_texts(self, texts: list[str]) -> Tensor:
        """Embeddings ``(n, d)`` of texts, in float32; only for a model with a text tower."""
        raise ValueError(f"model: {self.identity.model} has no text tower; give a classifier instead of prompts")

    @property
    def tokenizer(self) -> Callable[[list[str]], Tensor]:
        """Texts → tokens ``(n, length)``; only for a model with a text tower."""
        raise ValueError(f"model: {self.identity.model} has no text tower, and so no tokenizer")

    @property
    def scale(self) -> float:
        """Logit scale."""
        return self.identity.scale

    @property
    def bias(self) -> float:
        """Logit bias."""
        return self.identity.bias

    def _autocast(self) -> torch.autocast:
        dtype = _DTYPES.get(self.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)
