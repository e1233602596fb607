"""The encoder for open_clip: any of its models, on any device, with weights identified by their content.

The model is built only when something has to be encoded: its identity is kept in the store, so a run whose embeddings
are all stored never loads it.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from clip_tca.core.checks import one_line
from clip_tca.core.device import choose_device, choose_precision
from clip_tca.core.files import sha256
from clip_tca.core.hub_access import cached_file, hub_reachable
from clip_tca.core.resources import resource
from clip_tca.core.text_towers import encode_texts, scale_of
from clip_tca.encoding import weights
from clip_tca.encoding.base import Encoder, Identity
from clip_tca.encoding.store import Store, digest, model_key
from clip_tca.encoding.torchscript import is_torchscript, read_torchscript

log = logging.getLogger("clip_tca")

MODEL, PRETRAINED = "ViT-B-16-quickgelu", "openai"


class OpenClipEncoder(Encoder):
    """An open_clip model with its preprocessing."""

    def __init__(
        self,
        model: str = MODEL,
        pretrained: str = PRETRAINED,
        device: str = "auto",
        precision: str = "auto",
        store: Store | None = None,
        trust_pickle: bool = False,
    ) -> None:
        """Choose a model; nothing is loaded yet.

        Args:
            model: open_clip's name, ``hf-hub:OWNER/NAME``, ``local-dir:FOLDER``, or ``demo`` for the bundled model.
            pretrained: Tag or file of the weights; not used by the last three.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
            precision: ``auto``, ``fp32``, ``fp16`` or ``bf16``.
            store: Keeps the model's identity; None keeps nothing.
            trust_pickle: Load a legacy checkpoint that is a pickle of any objects, which can run any code.
        """
        self.name, self.pretrained = model, pretrained
        self.device = choose_device(device)
        self.precision = choose_precision(precision, self.device)
        self._store, self._trust_pickle = store, trust_pickle
        folder = model.startswith(("hf-hub:", "local-dir:")) or model == "demo"
        self._address = model
        if model == "demo":
            self._address = f"local-dir:{resource(f'eval/demo/{weights.CONFIGURATION}').parent}"
        kind, _, place = self._address.partition(":")
        self._place = str(Path(place).absolute()) if kind == "local-dir" else ""
        self._from_file = not folder and Path(pretrained).is_file() and not pretrained.isidentifier()
        self._pretrained = None if folder else str(Path(pretrained).absolute()) if self._from_file else pretrained

    @cached_property
    def identity(self) -> Identity:
        """What the embeddings depend on: from the store if the weights file is unchanged, else by loading the model."""
        key = model_key(self._address, self._place, self._pretrained) if self._store else None
        configuration = Path(self._place) / weights.CONFIGURATION if self._place else None
        if self._store and key and (stored := self._store.identity(key, self.precision, configuration)):
            return stored
        file = self.weights_file
        import open_clip

        identity = Identity(
            model=f"local-dir:{Path(self._place).name}" if self.name.startswith("local-dir:") else self.name,
            pretrained=f"file {file.name}" if self._from_file else self._pretrained or "",
            weights=sha256(file),
            configuration=digest(open_clip.get_model_config(self._address)),
            preprocessing=self._preprocessing,
            precision=self.precision,
            scale=scale_of(self.model),
        )
        if self._store and key:
            self._store.keep_identity(key, identity, file, configuration)
        return identity

    @cached_property
    def weights_file(self) -> Path:
        """The file of the weights, downloaded if need be.

        ValueError if model or weights are unknown, do not fit, or can't be downloaded.
        """
        import open_clip

        if self._pretrained is None:
            return self._folder_file()
        configuration = open_clip.get_pretrained_cfg(self.name, self._pretrained)
        models = open_clip.list_models()
        if self.name not in models:
            near = difflib.get_close_matches(self.name, models, 3, 0.3)
            raise ValueError(
                f"model: {self.name!r} is not one of open_clip's {len(models)}; near are {', '.join(near) or 'none'}"
            )
        if self._from_file:
            weights.check_file(self.name, Path(self._pretrained))
            return Path(self._pretrained)
        tags = open_clip.list_pretrained_tags_by_model(self.name)
        if not configuration:
            if self._pretrained.endswith(weights.SUFFIXES) or "/" in self._pretrained:
                raise ValueError(f"pretrained: {self._pretrained}: no such file")
            raise ValueError(
                f"pretrained: {self._pretrained!r} is neither a file nor a tag of {self.name}; "
                f"tags are {', '.join(tags) or 'none'}{weights.other_gelu(self.name, self._pretrained)}"
            )
        weights.check_gelu(self.name, self._pretrained, bool(configuration.get("quick_gelu", False)))
        try:
            return _downloaded(configuration)
        except Exception as error:
            raise ValueError(weights.offline(f"{self.name} / {self._pretrained}", error)) from error

    def _folder_file(self) -> Path:
        import open_clip
        from open_clip.pretrained import download_pretrained_from_hf

        if not self._place:
            hub_id = self._address.partition(":")[2]
            try:
                if hub_reachable():
                    return Path(download_pretrained_from_hf(hub_id))
                self._place = str(cached_file(hub_id, weights.CONFIGURATION).parent)
                self._address = f"local-dir:{self._place}"
            except Exception as error:
                raise ValueError(weights.offline(self.name, error)) from error
        folder = Path(self._place)
        if not (folder / weights.CONFIGURATION).is_file():
            raise ValueError(f"model: {self.name}: {folder} holds no {weights.CONFIGURATION}")
        if open_clip.get_model_config(self._address) is None:
            raise ValueError(f"model: {self.name}: {weights.CONFIGURATION} has no model_cfg")
        files = sorted(path for path in folder.iterdir() if path.suffix in weights.SUFFIXES)
        if len(files) != 1:
            raise ValueError(f"model: {self.name}: {len(files)} weights files in {folder}; exactly one is needed")
        return files[0]

    @cached_property
    @torch.inference_mode(False)  # base methods need weights that can take gradients, whoever asks for them first
    def model(self) -> Any:
        """The model, in evaluation mode on its device."""
        import open_clip

        file = self.weights_file
        log.info("loading %s from %s", self.name, file)
        try:
            if self._pretrained is not None and is_torchscript(file):
                model = open_clip.create_model(self.name, pretrained=None, pretrained_text=False)
                wanted = model.state_dict().keys()  # an archive also holds sizes and masks, which are no weights
                model.load_state_dict({name: value for name, value in read_torchscript(file).items() if name in wanted})
            else:
                if self._trust_pickle:
                    log.warning("%s is trusted: if it is a pickle, it can run any code", file)
                options = {"require_pretrained": True, "weights_only": not self._trust_pickle}
                if self._pretrained is not None:  # the file that is there, with the preprocessing of its tag
                    options["force_preprocess_cfg"] = open_clip.get_pretrained_cfg(self.name, self._pretrained)
                model = open_clip.create_model(self._address, self._pretrained and str(file), **options)
        except Exception as error:
            raise ValueError(
                f"{file}: not weights of {self.name}, or damaged ({one_line(error)}); "
                "a checkpoint is a state_dict in safetensors or a plain torch.save; a legacy pickle, which can run any "
                "code, needs --trust-pickle"
            ) from error
        return model.to(self.device).eval().requires_grad_(False)

    @cached_property
    def _preprocessing(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(self.model.visual.preprocess_cfg)))  # tuples become lists, as in JSON

    @cached_property
    def transform(self) -> Callable[[Image.Image], Tensor]:
        """Preprocessing: RGB image → ``(3, height, width)``."""
        from open_clip.transform import PreprocessCfg, image_transform_v2

        settings = {name: tuple(v) if isinstance(v, list) else v for name, v in self._preprocessing.items()}
        return image_transform_v2(PreprocessCfg(**settings), is_train=False)  # type: ignore[no-any-return]

    @cached_property
    def tokenizer(self) -> Callable[[list[str]], Tensor]:
        """Texts → tokens ``(n, length)``."""
        import open_clip

        return open_clip.get_tokenizer(self._address)  # type: ignore[no-any-return]

    @cached_property
    def dim(self) -> int:
        """Dimension d of the embeddings: that of a text, since image towers don't all name theirs alike."""
        return self.encode_texts([""]).shape[1]

    def encode_texts(self, texts: list[str], batch: int = 256) -> Tensor:
        """Embeddings ``(n, d)`` of texts, in float32, ``batch`` at a time."""
        with self._autocast():
            return encode_texts(self.model, self.tokenizer, texts, batch)


def _downloaded(source: dict[str, Any]) -> Path:
    """The weights file of a tag; out of the hub's cache if the hub can't be reached."""
    import open_clip

    hub_id, _, name = source.get("hf_hub", "").rpartition("/")
    if not hub_id or hub_reachable():
        return Path(open_clip.download_pretrained(source))
    if not name:
        return cached_file(hub_id, "open_clip_model.safetensors", "open_clip_pytorch_model.bin")
    return cached_file(hub_id, Path(name).with_suffix(".safetensors").name, name)
