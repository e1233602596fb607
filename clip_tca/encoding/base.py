"""The encoder contract: what a model of any library offers, so that it can embed images and texts.

:mod:`clip_tca.encoding.open_clip` meets it for open_clip. An encoder of another library (transformers, torchvision) is
another subclass of :class:`Encoder`; nothing else in the package asks which library it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor


@dataclass(frozen=True)
class Identity:
    """What decides the embeddings of an image, apart from the image.

    Attributes:
        model: Name of the architecture.
        pretrained: Tag or file name of the weights.
        weights: SHA-256 of the weights file.
        configuration: Hash of the architecture's configuration.
        preprocessing: Size, crop, interpolation, mean and standard deviation.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        scale: exp of the model's logit scale.
    """

    model: str
    pretrained: str
    weights: str
    configuration: str
    preprocessing: dict[str, Any]
    precision: str
    scale: float


class Encoder(ABC):
    """f: from images, and from texts if there is a text tower, to embeddings; in ``fp32``, ``fp16`` or ``bf16``."""

    device: torch.device
    precision: str

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """What the embeddings depend on; the store keeps them under it."""

    @property
    @abstractmethod
    def model(self) -> Any:
        """The torch module. Methods on the image tower use its ``visual`` and ``encode_image``."""

    @property
    @abstractmethod
    def transform(self) -> Callable[[Image.Image], Tensor]:
        """Preprocessing: RGB image → ``(3, height, width)``. Must be picklable, for worker processes."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension d of the embeddings."""

    @abstractmethod
    def encode_images(self, batch: Tensor) -> Tensor:
        """Embeddings ``(n, d)`` of preprocessed images ``(n, 3, height, width)``, in float32."""

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
