"""The encoder for timm's classification networks: ``timm:resnet18.a1_in1k``, or ``timm:resnet18`` with a tag."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

from PIL import Image
from torch import Tensor, nn

from clip_tca.core.hub_access import cached_file, hub_reachable
from clip_tca.encoding import weights
from clip_tca.encoding.backbone import BackboneEncoder
from clip_tca.encoding.head_classes import imagenet_names


class TimmEncoder(BackboneEncoder):
    """A network of timm. The tag is behind a dot in the model's name, or given as ``pretrained``."""

    library = "timm"

    @cached_property
    def _full_name(self) -> str:
        """The name with its tag, if one is given."""
        import timm

        architecture, _, tag = self.name.partition(".")
        if not timm.is_model(architecture):
            raise self._unknown_model(timm.list_models())
        if self._file is None:
            tag = self.pretrained or tag
        tags = [name.partition(".")[2] for name in timm.list_pretrained(f"{architecture}.*")]
        if (tag and tag not in tags) or (self._file is None and not tags):
            raise self._unknown_tag(tags)
        return f"{architecture}.{tag}" if tag else architecture

    def _build(self) -> nn.Module:
        import timm

        return cast(nn.Module, timm.create_model(self._full_name, pretrained=False))

    def _download(self) -> tuple[nn.Module, Sequence[str] | None]:
        name = self._full_name
        import timm

        try:
            source, options = timm.get_pretrained_cfg(name), {}
            if source is not None and source.hf_hub_id and not hub_reachable():
                file = cached_file(source.hf_hub_id, "model.safetensors", "pytorch_model.bin")
                options = {"pretrained_cfg_overlay": {"file": str(file)}}
            network: Any = timm.create_model(name, pretrained=True, **options)
        except Exception as error:
            raise ValueError(weights.offline(self._title, error)) from error
        return network, imagenet_names(network.num_classes)

    def _last_layer(self, network: nn.Module) -> Any:
        return cast(Any, network).get_classifier()

    def _preprocessing_of(self, network: nn.Module) -> dict[str, Any]:
        from timm.data import resolve_model_data_config

        settings: dict[str, Any] = json.loads(json.dumps(resolve_model_data_config(network)))
        return settings

    @cached_property
    def transform(self) -> Callable[[Image.Image], Tensor]:
        """The preprocessing of the weights; RGB image → ``(3, height, width)``."""
        from timm.data import create_transform

        settings = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.model.visual.preprocess_cfg.items()
        }
        return cast("Callable[[Image.Image], Tensor]", create_transform(**settings, is_training=False))
