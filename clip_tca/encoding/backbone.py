"""Classification networks of torchvision and timm as f and g: f is everything up to the last layer, g is that layer.

f gives raw features, not scaled to unit length; g is a :class:`clip_tca.LinearClassifier` with weight and bias. There
is no text tower, so there are no prompts. :func:`head_for` takes those outputs of g that are the classes of a data set.
"""

from __future__ import annotations

import json
import logging
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from importlib.metadata import version
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn

from clip_tca.classifier import LinearClassifier, told_apart
from clip_tca.core.checks import one_line
from clip_tca.data.prompts import clean
from clip_tca.encoding.base import Encoder, Identity
from clip_tca.encoding.checkpoint import downloads, fingerprint, local_file, read_checkpoint, unknown_model, unknown_tag
from clip_tca.encoding.store import digest

log = logging.getLogger("clip_tca")

Transform = Callable[[Image.Image], Tensor]  # RGB image → (3, height, width)

SYNSET = re.compile(r"n\d{8}")  # a class of ImageNet, by its number in WordNet; its folders are named so


class Backbone(nn.Module):
    """A network without its last layer, with the names that methods on the image tower use."""

    def __init__(self, network: nn.Module, preprocessing: dict[str, Any]) -> None:
        super().__init__()
        tower: Any = network
        tower.preprocess_cfg = preprocessing  # with mean and standard deviation of pixels, as open_clip's towers say
        self.visual = tower

    def encode_image(self, batch: Tensor) -> Tensor:
        features: Tensor = self.visual(batch)
        return features


class BackboneEncoder(Encoder):
    """A classification network by the library's name of it.

    ``pretrained`` is a tag of the library's weights, None its default, or a checkpoint (.safetensors, or .pth of
    tensors alone), which brings its own number of classes.
    """

    library: ClassVar[str]  # prefix of the model's name, and the library's distribution

    def __init__(
        self, model: str, pretrained: str | None = None, device: str = "auto", precision: str = "auto"
    ) -> None:
        super().__init__(device, precision)
        self.name, self.pretrained = model, pretrained
        self._title = f"{self.library}:{model}"
        self._file = local_file(pretrained) if pretrained else None

    @abstractmethod
    def _from_library(self) -> tuple[Any, Any, Sequence[str] | None, dict[str, Any], Transform]:
        """The network, its last layer, the names of its classes, its preprocessing as settings and as a function.

        It is without weights if those come from a checkpoint, which brings its own names too. ValueError if there is
        no such model, or its weights could not be loaded.
        """

    @cached_property
    @torch.inference_mode(False)  # base methods need weights that can take gradients, whoever asks for them first
    def _parts(self) -> tuple[Backbone, LinearClassifier, str, Transform]:
        # f, g, the fingerprint of both, and the preprocessing
        log.info("loading %s with %s", self._title, self.pretrained or "its default weights")
        network, layer, classes, preprocessing, transform = self._from_library()
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f"model: {self._title} has no linear head (its last layer is {type(layer).__name__}), so there is no "
                "g; use a model that ends in a linear layer, such as torchvision:resnet18"
            )
        path = next(name for name, module in network.named_modules() if module is layer)
        if self._file is not None:
            weights, classes = read_checkpoint(self._file)
            self._fill(network, layer, path, weights)
        known = fingerprint(network)
        try:
            head = LinearClassifier(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
            head.classes = None if classes is None else tuple(classes)  # two outputs may have one name, as ImageNet's
        except ValueError as error:
            raise ValueError(f"pretrained: {self._file or self.pretrained}: its head is unfit ({error})") from None
        parent, _, last = path.rpartition(".")
        setattr(network.get_submodule(parent), last, nn.Identity())
        backbone = Backbone(network.float(), preprocessing)
        return backbone.to(self.device).eval().requires_grad_(False), head, known, transform

    def _fill(self, network: Any, layer: nn.Linear, path: str, weights: dict[str, Tensor]) -> None:
        # the last layer gets as many outputs as the checkpoint has
        for name, own in list(layer.named_parameters()):
            values = weights.get(f"{path}.{name}")
            if values is not None and values.ndim == own.ndim:
                setattr(layer, name, nn.Parameter(own.new_empty(len(values), *own.shape[1:])))
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            reason = one_line(error).partition(": ")[2]
            raise ValueError(
                f"pretrained: {self._file} does not fit {self._title} ({reason}); name the --model of these weights"
            ) from None

    @property
    def model(self) -> Backbone:
        return self._parts[0]

    @property
    def head(self) -> LinearClassifier:
        return self._parts[1]

    @property
    def transform(self) -> Transform:
        return self._parts[3]

    @cached_property
    def identity(self) -> Identity:
        return Identity(
            model=self._title,
            pretrained=f"file {self._file.name}" if self._file else self.pretrained or "default",
            weights=self._parts[2],
            configuration=digest([self._title, version(self.library)]),
            preprocessing=json.loads(json.dumps(self.model.visual.preprocess_cfg)),  # tuples become lists
            precision=self.precision,
            scale=1.0,
        )


class TorchvisionEncoder(BackboneEncoder):
    """A network of ``torchvision.models``; tags are those of its weights, such as ``IMAGENET1K_V1``.

    A checkpoint takes the preprocessing of the default weights.
    """

    library = "torchvision"

    def _from_library(self) -> tuple[Any, Any, Sequence[str] | None, dict[str, Any], Transform]:
        from torchvision import models

        names = models.list_models(module=models)
        if self.name not in names:
            raise unknown_model(self._title, self.library, names)
        tags = models.get_model_weights(self.name)
        tag = self.pretrained if self._file is None and self.pretrained is not None else "DEFAULT"
        if tag not in tags.__members__:
            raise unknown_tag(self._title, tag, list(tags.__members__))
        weights = tags[tag]
        with downloads(f"{self._title} / {weights.name}", "TORCH_HOME"):
            network = models.get_model(self.name, weights=None if self._file else weights, progress=False)
        transform = weights.transforms()
        settings = {key: getattr(transform, key) for key in ("resize_size", "crop_size", "mean", "std", "antialias")}
        settings["interpolation"] = transform.interpolation.value
        return network, list(network.modules())[-1], weights.meta["categories"], settings, transform


class TimmEncoder(BackboneEncoder):
    """A network of timm. The tag is behind a dot in the model's name, or given as ``pretrained``."""

    library = "timm"

    def _from_library(self) -> tuple[Any, Any, Sequence[str] | None, dict[str, Any], Transform]:
        import timm
        from timm.data import create_transform, resolve_model_data_config

        architecture, _, tag = self.name.partition(".")
        if not timm.is_model(architecture):
            raise unknown_model(self._title, self.library, timm.list_models())
        tags = [name.partition(".")[2] for name in timm.list_pretrained(f"{architecture}.*")]
        if self._file is None:
            tag = self.pretrained or tag
        if (tag and tag not in tags) or (self._file is None and not tags):
            raise unknown_tag(self._title, tag, tags)
        name = f"{architecture}.{tag}" if tag else architecture
        with downloads(self._title) if self._file is None else nullcontext():
            network = timm.create_model(name, pretrained=self._file is None)
        settings = resolve_model_data_config(network)
        transform = create_transform(**settings, is_training=False)
        return network, network.get_classifier(), imagenet_names(network.num_classes), settings, transform


# -- the classes of a head --------------------------------------------------------------------------------------------


def imagenet_names(outputs: int) -> list[str] | None:
    """Names of the classes of an ImageNet head with so many outputs; None if there is no such ImageNet."""
    if outputs == 1000:
        from torchvision.models import ResNet18_Weights

        return list(ResNet18_Weights.DEFAULT.meta["categories"])
    return imagenet_synsets(outputs)


def imagenet_synsets(outputs: int) -> list[str] | None:
    """The same classes as synsets, in the order of the outputs."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": outputs})
    return list(ImageNetInfo(subset).label_names()) if subset else None


def head_for(head: LinearClassifier, classes: Sequence[str], model: str) -> LinearClassifier:
    """g for a data set with these classes: the outputs of the head that they are, in their order.

    A head without names has the classes of the data set, if it has as many. ValueError if the classes are not the
    head's.
    """
    if head.classes is None:
        if head.n_classes != len(classes):
            raise ValueError(
                f"model: the head of {model} has {head.n_classes} classes, the data set {len(classes)} "
                f"({_some(classes)}); name the outputs of the head by --class-names FILE, or give the model for them"
            )
        return LinearClassifier(head.weight, head.bias, classes=told_apart(classes))
    named = imagenet_synsets(head.n_classes) if all(map(SYNSET.fullmatch, classes)) else None
    outputs = [_output(name, named or head.classes, model) for name in classes]
    return LinearClassifier(head.weight[outputs], head.bias[outputs], classes=told_apart(classes))


def _output(name: str, known: Sequence[str], model: str) -> int:
    outputs = [output for output, other in enumerate(known) if other == name]
    outputs = outputs or [output for output, other in enumerate(known) if _plain(other) == _plain(name)]
    if len(outputs) != 1:
        how = f"is {len(outputs)} of" if outputs else "is not one of"
        raise ValueError(
            f"model: class {name!r} of the data set {how} the {len(known)} classes of {model} ({_some(known)}); "
            "give a model with the classes of the data set, or name the outputs of its head by --class-names FILE"
        )
    return outputs[0]


def _plain(name: str) -> str:
    return clean(name.replace("-", " ")).lower()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if names[3:] else "")
