"""The encoder for torchvision's classification networks, such as ``torchvision:resnet18``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import torch
from PIL import Image
from torch import Tensor, nn

from clip_tca.encoding import weights
from clip_tca.encoding.backbone import BackboneEncoder
from clip_tca.encoding.checkpoint import load_weights, read_checkpoint


class TorchvisionEncoder(BackboneEncoder):
    """A network of ``torchvision.models``; tags are those of its weights, such as ``IMAGENET1K_V1``."""

    library = "torchvision"

    @cached_property
    def _weights(self) -> Any:
        """The weights of the tag; for a checkpoint the default ones, whose preprocessing it takes."""
        from torchvision import models

        names = models.list_models(module=models)
        if self.name not in names:
            raise self._unknown_model(names)
        tags = models.get_model_weights(self.name)
        tag = self.pretrained if self._file is None and self.pretrained is not None else "DEFAULT"
        if tag not in tags.__members__:
            raise self._unknown_tag(list(tags.__members__))
        return tags[tag]

    def _build(self) -> nn.Module:
        from torchvision import models

        _ = self._weights
        return cast(nn.Module, models.get_model(self.name, weights=None))

    def _download(self) -> tuple[nn.Module, Sequence[str] | None]:
        url = self._weights.url
        file = Path(torch.hub.get_dir(), "checkpoints", Path(urlsplit(url).path).name)
        if not file.is_file():
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                prefix = file.stem.rpartition("-")[2]  # torchvision's files are named after the start of their SHA-256
                torch.hub.download_url_to_file(url, str(file), prefix, progress=False)
            except Exception as error:
                title = f"{self._title} / {self._weights.name}"
                raise ValueError(weights.offline(title, error, "TORCH_HOME")) from error
        network = self._build()
        load_weights(network, read_checkpoint(file)[0], file, self._title)
        return network, self._weights.meta["categories"]

    def _last_layer(self, network: nn.Module) -> Any:
        return list(network.modules())[-1]

    def _preprocessing_of(self, network: nn.Module) -> dict[str, Any]:
        made: Any = self.transform
        sizes = {name: getattr(made, name) for name in ("resize_size", "crop_size", "mean", "std", "antialias")}
        return {**sizes, "interpolation": made.interpolation.value}

    @cached_property
    def transform(self) -> Callable[[Image.Image], Tensor]:
        """The preprocessing of the weights; RGB image → ``(3, height, width)``."""
        return cast("Callable[[Image.Image], Tensor]", self._weights.transforms())
