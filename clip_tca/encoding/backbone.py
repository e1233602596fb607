"""A classification network as f and g: f is everything up to the last layer, g is that layer.

f gives raw features, not scaled to unit length; g is a :class:`clip_tca.LinearClassifier` with weight and bias. There
is no text tower, so there are no prompts.
"""

from __future__ import annotations

import difflib
import logging
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from clip_tca.classifier import LinearClassifier
from clip_tca.core.device import choose_device, choose_precision
from clip_tca.encoding import weights
from clip_tca.encoding.base import Encoder, Identity
from clip_tca.encoding.checkpoint import fingerprint, load_weights, read_checkpoint
from clip_tca.encoding.store import digest

log = logging.getLogger("clip_tca")


class Backbone(nn.Module):
    """A network without its last layer, with the names that methods on the image tower use."""

    def __init__(self, network: nn.Module, preprocessing: dict[str, Any]) -> None:
        """Take a network that ends in features."""
        super().__init__()
        tower: Any = network
        tower.preprocess_cfg = preprocessing  # with mean and standard deviation of pixels, as open_clip's towers say
        self.visual = tower

    def encode_image(self, batch: Tensor) -> Tensor:
        """Features ``(n, d)`` of preprocessed images."""
        features: Tensor = self.visual(batch)
        return features


class BackboneEncoder(Encoder):
    """A classification network of a library, with pretrained weights or a local checkpoint."""

    library: ClassVar[str]
    """Prefix of the model's name, and the library's distribution."""

    def __init__(
        self,
        model: str,
        pretrained: str | None = None,
        device: str = "auto",
        precision: str = "auto",
        trust_pickle: bool = False,
    ) -> None:
        """Choose a network; nothing is loaded yet.

        Args:
            model: The library's name of the architecture.
            pretrained: Tag of the library's weights, or a checkpoint (.safetensors, or .pth of tensors alone), which
                brings its own number of classes; None is the library's default tag.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
            precision: ``auto``, ``fp32``, ``fp16`` or ``bf16``.
            trust_pickle: Load a legacy checkpoint that is a pickle of any objects, which can run any code.
        """
        self.name = model
        self.device = choose_device(device)
        self.precision = choose_precision(precision, self.device)
        self.pretrained, self._trust_pickle = pretrained, trust_pickle
        tag = pretrained or "default"
        self._file = Path(tag) if Path(tag).is_file() and not tag.isidentifier() else None
        if self._file is None and (tag.endswith(weights.SUFFIXES) or "/" in tag):
            raise ValueError(f"pretrained: {tag}: no such file")

    # -- what a library says -------------------------------------------------------------------------------------------

    @abstractmethod
    def _build(self) -> nn.Module:
        """The network without pretrained weights; ValueError if there is no such model."""

    @abstractmethod
    def _download(self) -> tuple[nn.Module, Sequence[str] | None]:
        """The network with the library's weights, and the names of its classes; ValueError if that can't be had."""

    @abstractmethod
    def _last_layer(self, network: nn.Module) -> Any:
        """The layer that gives the logits, whatever its kind."""

    @abstractmethod
    def _preprocessing_of(self, network: nn.Module) -> dict[str, Any]:
        """What :attr:`transform` does, as JSON can hold it, with ``mean`` and ``std``."""

    # -- what follows --------------------------------------------------------------------------------------------------

    @property
    def _title(self) -> str:
        return f"{self.library}:{self.name}"

    @cached_property
    @torch.inference_mode(False)  # base methods need weights that can take gradients, whoever asks for them first
    def _parts(self) -> tuple[Backbone, LinearClassifier, str]:
        """f, g and the fingerprint of both."""
        log.info("loading %s with %s", self._title, self.pretrained or "its default weights")
        if self._file is None:
            network, classes = self._download()
        else:
            network = self._build()
            state, classes = read_checkpoint(self._file, self._trust_pickle)
            layer = self._linear(network)
            outputs = state.get(f"{_place(network, layer)}.weight")
            if outputs is not None and outputs.ndim == 2 and len(outputs) != layer.out_features:
                _replace(network, layer, nn.Linear(layer.in_features, len(outputs), layer.bias is not None))
            load_weights(network, state, self._file, self._title)
        known = fingerprint(network)
        layer = self._linear(network)
        bias = None if layer.bias is None else layer.bias.detach().clone()
        try:
            head = LinearClassifier(layer.weight.detach().clone(), bias)
            head.classes = None if classes is None else tuple(classes)  # two outputs may have one name, as ImageNet's
        except ValueError as error:
            raise ValueError(f"pretrained: {self._file or self.pretrained}: its head is unfit ({error})") from None
        _replace(network, layer, nn.Identity())
        preprocessing = self._preprocessing_of(network)
        backbone = Backbone(network.float(), preprocessing).to(self.device).eval().requires_grad_(False)
        return backbone, head, known

    def _linear(self, network: nn.Module) -> nn.Linear:
        layer = self._last_layer(network)
        if not isinstance(layer, nn.Linear):
            kind = "nothing" if isinstance(layer, nn.Identity) else type(layer).__name__
            raise ValueError(
                f"model: {self._title} has no linear head (its last layer is {kind}), so there is no g; use a model "
                "that ends in a linear layer, such as torchvision:resnet18"
            )
        return layer

    @property
    def model(self) -> Backbone:
        """f, in evaluation mode on its device."""
        return self._parts[0]

    @property
    def head(self) -> LinearClassifier:
        """g, the network's last layer, on the CPU."""
        return self._parts[1]

    @cached_property
    def identity(self) -> Identity:
        """What the features depend on; the network is loaded for it."""
        return Identity(
            model=self._title,
            pretrained=f"file {self._file.name}" if self._file else self.pretrained or "default",
            weights=self._parts[2],
            configuration=digest([self._title, version(self.library)]),
            preprocessing=self.model.visual.preprocess_cfg,
            precision=self.precision,
            scale=1.0,
        )

    @property
    def dim(self) -> int:
        """Dimension d of the features."""
        return self.head.dim

    def _unknown_model(self, models: Sequence[str]) -> ValueError:
        near = ", ".join(difflib.get_close_matches(self.name, models, 3, 0.3)) or "none"
        return ValueError(f"model: {self._title!r} is not one of {self.library}'s {len(models)}; near are {near}")

    def _unknown_tag(self, tags: Sequence[str]) -> ValueError:
        return ValueError(
            f"pretrained: {self.pretrained!r} is neither a file nor a tag of {self._title}; "
            f"tags are {', '.join(tags) or 'none'}"
        )


def _place(network: nn.Module, layer: nn.Module) -> str:
    """The name of a layer in its network."""
    return str(next(name for name, module in network.named_modules() if module is layer))


def _replace(network: nn.Module, layer: nn.Module, by: nn.Module) -> None:
    parent, _, name = _place(network, layer).rpartition(".")
    setattr(network.get_submodule(parent), name, by)
