"""Encoders by the names that ``--model`` takes: ``LIBRARY:NAME``, or a name of open_clip.

An encoder is imported when it is asked for, and so is its library.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clip_tca.core.remote import is_url, locate
from clip_tca.encoding.open_clip import PRETRAINED, OpenClipEncoder

if TYPE_CHECKING:
    from clip_tca.encoding.base import Encoder
    from clip_tca.encoding.store import Store

_HOMES = {
    "torchvision": "torchvision.TorchvisionEncoder",
    "timm": "timm.TimmEncoder",
    "transformers": "transformers.TransformersEncoder",
}
OPEN_CLIP = ("hf-hub", "local-dir")
"""Prefixes of open_clip's own."""


def make_encoder(
    model: str,
    pretrained: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    store: Store | None = None,
    trust_pickle: bool = False,
) -> Encoder:
    """The encoder of a model; nothing is loaded yet.

    ``pretrained`` None is the default of the library; the other options are those of
    :class:`clip_tca.encoding.open_clip.OpenClipEncoder`.
    """
    if pretrained is not None and is_url(pretrained):
        pretrained = str(_local(pretrained))
    library, colon, name = model.partition(":")
    if not colon or library in OPEN_CLIP:
        return OpenClipEncoder(model, pretrained or PRETRAINED, device, precision, store, trust_pickle)
    if library not in _HOMES:
        allowed = ", ".join(f"{prefix}:" for prefix in (*_HOMES, *OPEN_CLIP))
        raise ValueError(f"model: {model!r}: unknown prefix {library!r}; allowed are {allowed} and names of open_clip")
    module, _, kind = _HOMES[library].partition(".")
    build: Any = getattr(import_module(f"clip_tca.encoding.{module}"), kind)
    encoder: Encoder = build(name, pretrained, device, precision, trust_pickle)
    return encoder


def _local(address: str) -> Path:
    """Weights in a store, copied to this machine once."""
    from clip_tca.core.cache_folder import default_root
    from clip_tca.core.store_copy import copied

    place = locate(address)
    return place if isinstance(place, Path) else copied(place, default_root() / "weights")
