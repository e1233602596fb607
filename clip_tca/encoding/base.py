"""The encoder contract: what a model of any library offers, so that it can embed images and texts.

:mod:`clip_tca.encoding.open_clip`, ``backbone`` (torchvision, timm) and ``transformers`` beside it meet the contract;
:func:`make_encoder` chooses by the model's name. Nothing else in the package asks which library it is.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor
from typing_extensions import Self

from clip_tca.classifier import LinearClassifier
from clip_tca.core.machine import choose_device, choose_precision
from clip_tca.core.remote import is_url, locate
from clip_tca.core.text_towers import encode_texts
from clip_tca.encoding import onednn

if TYPE_CHECKING:
    from clip_tca.encoding.store import Store

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Identity:
    """What decides the embeddings of an image, apart from the image."""

    model: str
    pretrained: str  # tag or file name of the weights
    weights: str  # SHA-256 of the weights file, or of the loaded weights where there is no single file
    configuration: str  # hash of the architecture's
    preprocessing: dict[str, Any]  # size, crop, interpolation, mean and standard deviation
    precision: str
    scale: float  # exp of the model's logit scale; 1 for a model with its own head
    bias: float = 0.0  # the model's logit bias (SigLIP)


class Encoder(ABC):
    """f: from images, and from texts if there is a text tower, to embeddings. Nothing is loaded before it is needed.

    ``fp16`` and ``bf16`` run by autocast; on a CPU ``bf16`` is for images, and texts are encoded in float32.
    """

    def __init__(self, device: str = "auto", precision: str = "auto") -> None:
        self.device = choose_device(device)
        self.precision = choose_precision(precision, self.device)

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

    def to(self, device: torch.device) -> Self:
        self.device = device
        self.model.to(device)
        self.__dict__.pop("_image_model", None)
        return self

    @cached_property
    def _image_model(self) -> Any:
        # the model, or on a CPU a copy that is about twice as fast (benchmarks/README.md)
        if self._half_on_cpu:
            return copy.deepcopy(self.model).bfloat16()  # autocast would convert the weights for every batch
        if self.precision == "fp32" and onednn.gains(self.device):
            return onednn.with_onednn(self.model)
        return self.model

    @property
    def _half_on_cpu(self) -> bool:
        return self.precision == "bf16" and self.device.type == "cpu"

    @torch.inference_mode()
    def encode_images(self, batch: Tensor) -> Tensor:
        """Embeddings ``(n, d)`` of preprocessed images ``(n, 3, height, width)``, in float32."""
        layout = torch.channels_last if self.device.type == "cuda" else torch.preserve_format
        batch = batch.to(self.device, non_blocking=True, memory_format=layout)
        with self._autocast():
            z: Tensor = self._image_model.encode_image(batch.bfloat16() if self._half_on_cpu else batch)
        return z.float()

    @property
    def head(self) -> LinearClassifier | None:
        """g, of a model that brings its own linear head; None where prompts build it."""
        return None

    @property
    def _text_tower(self) -> tuple[Any, Any]:
        # the module and the tokenizer that encode texts
        raise ValueError(f"model: {self.identity.model} has no text tower; give a classifier instead of prompts")

    def encode_texts(self, texts: list[str]) -> Tensor:
        """Embeddings ``(n, d)`` of texts, in float32; only for a model with a text tower."""
        module, tokenizer = self._text_tower
        with self._autocast():
            return encode_texts(module, tokenizer, texts)

    @property
    def tokenizer(self) -> Callable[[list[str]], Tensor]:
        """Texts → tokens ``(n, length)``; only for a model with a text tower."""
        return self._text_tower[1]  # type: ignore[no-any-return]

    @property
    def scale(self) -> float:
        return self.identity.scale

    @property
    def bias(self) -> float:
        return self.identity.bias

    def _autocast(self) -> torch.autocast:
        dtype = None if self._half_on_cpu else _DTYPES.get(self.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)


def make_encoder(
    model: str, pretrained: str | None = None, device: str = "auto", precision: str = "auto", store: Store | None = None
) -> Encoder:
    """The encoder of a model: ``LIBRARY:NAME``, or a name of open_clip.

    ``pretrained`` None is the default of the library; weights in an object store are copied to this machine once. A
    ``store`` keeps the identity of a model of open_clip, which then need not be loaded to know it.
    """
    from clip_tca.core.files import copied
    from clip_tca.core.folders import default_root
    from clip_tca.encoding.backbone import TimmEncoder, TorchvisionEncoder
    from clip_tca.encoding.open_clip import PRETRAINED, OpenClipEncoder
    from clip_tca.encoding.transformers import TransformersEncoder

    if pretrained is not None and is_url(pretrained):
        path = locate(pretrained)
        pretrained = str(path if isinstance(path, Path) else copied(path, default_root() / "weights"))
    library, colon, name = model.partition(":")
    if not colon or library in ("hf-hub", "local-dir"):
        return OpenClipEncoder(model, pretrained or PRETRAINED, device, precision, store)
    kinds: dict[str, Callable[..., Encoder]] = {
        "torchvision": TorchvisionEncoder,
        "timm": TimmEncoder,
        "transformers": TransformersEncoder,
    }
    if library not in kinds:
        raise ValueError(
            f"model: {model!r}: unknown prefix {library!r}; allowed are torchvision:, timm:, transformers:, hf-hub:, "
            "local-dir: and names of open_clip"
        )
    return kinds[library](name, pretrained, device, precision)
