"""The encoder for image-text models of transformers: ``transformers:OWNER/NAME`` or ``transformers:FOLDER``.

CLIP, SigLIP and others with an image and a text tower in one space. SigLIP's sigmoid head is a g with a bias.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from clip_tca.core.checks import install, one_line
from clip_tca.core.conversion import pooled
from clip_tca.core.errors import CorruptFileError
from clip_tca.core.text_towers import bias_of, scale_of, tokens
from clip_tca.encoding.base import Encoder, Identity
from clip_tca.encoding.checkpoint import downloads, fingerprint
from clip_tca.encoding.store import digest

log = logging.getLogger("clip_tca")

NEEDED = ("get_image_features", "get_text_features", "vision_model", "logit_scale")  # of an image-text model


class ImageTextModel(nn.Module):
    """A model of transformers, with the names that methods on the image tower and on text use."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    @property
    def visual(self) -> Any:
        return self.inner.vision_model

    def encode_image(self, batch: Tensor) -> Tensor:
        return pooled(self.inner.get_image_features(pixel_values=batch))  # type: ignore[no-any-return]

    def encode_text(self, tokens: Tensor, **masks: Tensor) -> Tensor:
        return pooled(self.inner.get_text_features(input_ids=tokens, **masks))  # type: ignore[no-any-return]


class TransformersEncoder(Encoder):
    """An image-text model of transformers with its image processor and its tokenizer.

    ``model`` is its name on the hub, or a folder as ``save_pretrained`` writes it; ``pretrained`` must be None, as the
    weights are beside the configuration.
    """

    def __init__(
        self, model: str, pretrained: str | None = None, device: str = "auto", precision: str = "auto"
    ) -> None:
        if pretrained is not None:
            raise ValueError(
                f"pretrained: {pretrained!r}, but transformers:{model} has its weights beside its configuration; leave "
                "it out, or name another folder"
            )
        self._folder = Path(model).absolute() if Path(model).is_dir() else None
        if self._folder is None and (model.count("/") != 1 or model.startswith((".", "/", "~"))):
            raise ValueError(f"model: transformers:{model}: no such folder; give one, or OWNER/NAME on the hub")
        self.name = f"transformers:{self._folder.name if self._folder else model}"
        self._location = str(self._folder or model)
        super().__init__(device, precision)

    def _load(self, kind: str) -> Any:
        try:
            import transformers
        except ImportError:
            raise ValueError(
                f"model: {self.name} needs transformers, which is not installed; {install('transformers')}"
            ) from None
        load = getattr(transformers, kind).from_pretrained
        with _no_progress_bar(transformers.utils.logging):
            if self._folder is None:
                with downloads(self.name, instead="a local folder as --model transformers:FOLDER"):
                    return load(self._location)
            try:
                return load(self._location, local_files_only=True)
            except Exception as error:
                raise CorruptFileError(
                    f"model: {self._folder}: not an image-text model of transformers, or damaged ({one_line(error)}); "
                    "it needs what save_pretrained writes of model, image processor and tokenizer"
                ) from error

    @cached_property
    @torch.inference_mode(False)  # base methods need weights that can take gradients, whoever asks for them first
    def model(self) -> ImageTextModel:
        log.info("loading %s", self.name)
        inner = self._load("AutoModel")
        if missing := [name for name in NEEDED if not hasattr(inner, name)]:
            raise ValueError(
                f"model: {self.name} is a {type(inner).__name__}, which has no {missing[0]}; a model with an image and "
                "a text tower in one space is needed, such as CLIP or SigLIP"
            )
        inner.vision_model.preprocess_cfg = {"mean": self._processor.image_mean, "std": self._processor.image_std}
        return ImageTextModel(inner.float()).to(self.device).eval().requires_grad_(False)

    @cached_property
    def identity(self) -> Identity:
        inner = self.model.inner
        return Identity(
            model=self.name,
            pretrained="",
            weights=fingerprint(inner),
            configuration=digest(_plain(inner.config.to_dict())),
            preprocessing=_plain(self._processor.to_dict()),
            precision=self.precision,
            scale=scale_of(inner),
            bias=bias_of(inner),
        )

    @cached_property
    def _processor(self) -> Any:
        return self._load("AutoImageProcessor")

    @cached_property
    def _text_tower(self) -> tuple[Any, Any]:
        return self.model.inner, self._load("AutoTokenizer")

    @property
    def transform(self) -> Callable[[Image.Image], Tensor]:
        return partial(_pixels, self._processor)

    @property
    def tokenizer(self) -> Callable[[list[str]], Tensor]:
        return lambda texts: tokens(*self._text_tower, texts)["input_ids"]


def _pixels(processor: Any, image: Image.Image) -> Tensor:
    pixels: Tensor = processor(images=image, return_tensors="pt")["pixel_values"]
    return pixels[0]


@contextmanager
def _no_progress_bar(settings: Any) -> Iterator[None]:
    # transformers' own progress bar appears in pipes too
    enabled = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            settings.enable_progress_bar()


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    # settings as JSON has them, without the path they were read from
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return {name: value for name, value in plain.items() if name not in ("_name_or_path", "transformers_version")}
