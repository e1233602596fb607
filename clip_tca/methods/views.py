"""Augmented views of one image: what TPT, ZERO and MTA start from."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from PIL import Image
from torch import Tensor

from clip_tca.core.checks import Count, Natural, check_fields
from clip_tca.methods.base import Method, Task


@dataclass(kw_only=True, eq=False, repr=False)
class ViewMethod(Method):
    """A method that sees every image alone, as itself and as random crops; nothing is carried over.

    Crops are those of TPT: 8 to 100 % of the picture's area, with flips.

    Args:
        task: The model, and g.
        views: The image and ``views - 1`` crops.
        seed: For the crops; the same picture with the same seed has the same crops.
    """

    sees = "images"
    nature = "batch"

    task: Task = field(kw_only=False)
    views: Count = 64
    seed: Natural = 0

    def __post_init__(self) -> None:
        """Check the options, and freeze the model."""
        check_fields(self)
        self.task.model.eval().requires_grad_(False)

    def reset(self) -> None:
        """Do nothing: every image starts anew."""

    def prepare(self, picture: Image.Image, transform: Callable[[Image.Image], Tensor]) -> Tensor:
        """The picture and its crops, ``(views, 3, height, width)``; the same for the same picture."""
        from torchvision.transforms import RandomHorizontalFlip, RandomResizedCrop

        picture = picture.convert("RGB")
        original = transform(picture)
        crop, flip = RandomResizedCrop(tuple(original.shape[-2:])), RandomHorizontalFlip()
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            torch.default_generator.manual_seed(picture_seed(picture, self.seed))
            crops = [flip(crop(picture)) for _ in range(self.views - 1)]
        return torch.stack([original, *map(transform, crops)])  # a crop has the final size: only its colours change


@dataclass(kw_only=True, eq=False, repr=False)
class PooledViews(ViewMethod):
    """A method that makes one prediction of the embeddings of an image's views, without gradients."""

    backpropagation = False

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Predict each image of ``(n, views, 3, height, width)`` by its views."""
        z, logits = zip(*[self.pool(views) for views in self._embedded(batch)], strict=True)
        return torch.stack(z), torch.stack(logits)

    @torch.inference_mode(False)
    @torch.no_grad()
    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Predict each image by itself."""
        z = torch.cat(self._embedded(check_views(batch)[:, :1]))
        return z, self.task.classifier.logits(z)

    def _embedded(self, batch: Tensor) -> list[Tensor]:
        """The embeddings ``(views, d)`` of each image, as g takes them."""
        g = self.task.classifier
        return [g.prepared(self.task.model.encode_image(views.clone())) for views in check_views(batch)]

    @abstractmethod
    def pool(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The embedding ``(d,)`` and the logits ``(classes,)`` of an image with these views ``(views, d)``."""


def check_views(batch: Tensor) -> Tensor:
    """The batch; ValueError unless it has views."""
    if batch.ndim != 5 or 0 in batch.shape:
        raise ValueError(f"batch: shape {tuple(batch.shape)}; expected (n, views, 3, height, width) as by prepare")
    return batch


def most_certain_first(log_p: Tensor) -> Tensor:
    """Indices of views, by the entropy of their log-probabilities ``(views, classes)``."""
    return (-(log_p.exp() * log_p).sum(dim=1)).argsort(stable=True)


def picture_seed(picture: Image.Image, seed: int) -> int:
    """A number that depends on the pixels and on ``seed`` only."""
    content = f"{seed} {picture.size} ".encode() + picture.tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
