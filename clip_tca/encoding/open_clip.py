"""The encoder for open_clip: any of its models, on any device, with weights identified by their content.

The model is built only when something has to be encoded: its identity is kept in the store, so a run whose embeddings
are all stored never loads it.
"""

from __future__ import annotations

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
from clip_tca.core.errors import CorruptFileError
from clip_tca.core.files import sha256
from clip_tca.core.folders import resource
from clip_tca.core.network import cached_file, hub_reachable
from clip_tca.core.text_towers import scale_of
from clip_tca.encoding.base import Encoder, Identity, unknown_model, unknown_tag
from clip_tca.encoding.checkpoint import LEGACY, SUFFIXES, is_torchscript, local_file, offline, read_torchscript
from clip_tca.encoding.store import Store, digest, model_key

log = logging.getLogger("clip_tca")

MODEL, PRETRAINED = "ViT-B-16-quickgelu", "openai"

CONFIGURATION = "open_clip_config.json"
"""The configuration beside the weights, in a folder or on the hub."""


class OpenClipEncoder(Encoder):
    """An open_clip model with its preprocessing."""

    def __init__(
        self,
        model: str = MODEL,
        pretrained: str = PRETRAINED,
        device: str = "auto",
        precision: str = "auto",
        store: Store | None = None,
    ) -> None:
        """Choose open_clip's name, ``hf-hub:OWNER/NAME``, ``local-dir:FOLDER`` or ``demo``; nothing is loaded yet.

        ``pretrained`` is a tag or a file; only open_clip's names need it. The ``store`` keeps the model's identity.
        """
        super().__init__(device, precision)
        self.name, self._store = model, store
        self._address = f"local-dir:{resource(f'eval/demo/{CONFIGURATION}').parent}" if model == "demo" else model
        kind, _, place = self._address.partition(":")
        self._folder = Path(place).absolute() if kind == "local-dir" else None
        named = kind not in ("local-dir", "hf-hub")
        self._file = local_file(pretrained) if named else None
        self._pretrained = (str(self._file) if self._file else pretrained) if named else None

    @cached_property
    def identity(self) -> Identity:
        """What the embeddings depend on: from the store if the weights file is unchanged, else by loading the model."""
        key = model_key(self._address, str(self._folder or ""), self._pretrained)
        if self._store and key and (stored := self._store.identity(key, self.precision)):
            return stored
        file = self.weights_file
        import open_clip

        local = self.name.startswith("local-dir:") and self._folder
        identity = Identity(
            model=f"local-dir:{local.name}" if local else self.name,
            pretrained=f"file {file.name}" if self._file else self._pretrained or "",
            weights=sha256(file),
            configuration=digest(open_clip.get_model_config(self._address)),
            preprocessing=json.loads(json.dumps(self.model.visual.preprocess_cfg)),  # tuples become lists
            precision=self.precision,
            scale=scale_of(self.model),
        )
        if self._store and key:
            self._store.keep_identity(key, identity, [file, *([self._folder / CONFIGURATION] if self._folder else [])])
        return identity

    @cached_property
    def weights_file(self) -> Path:
        """The file of the weights, downloaded if need be.

        ValueError if model or weights are unknown, do not fit, or can't be downloaded.
        """
        import open_clip

        if self._pretrained is None:
            return self._folder_file()
        if self.name not in (models := open_clip.list_models()):
            raise unknown_model(self.name, "open_clip", models)
        if self._file is not None:
            # TorchScript comes from OpenAI alone, and the hub's copies are in folders named *.openai: with QuickGELU
            if is_torchscript(self._file) or any(part.endswith(".openai") for part in self._file.parts):
                check_gelu(self.name, self._file.name, quick=True)
            return self._file
        source = open_clip.get_pretrained_cfg(self.name, self._pretrained)
        if not source:
            raise unknown_tag(self.name, self._pretrained, open_clip.list_pretrained_tags_by_model(self.name))
        check_gelu(self.name, self._pretrained, bool(source.get("quick_gelu", False)))
        hub_id, _, name = source.get("hf_hub", "").rpartition("/")
        try:
            if not hub_id or hub_reachable():
                return Path(open_clip.download_pretrained(source))
            if not name:
                return cached_file(hub_id, "open_clip_model.safetensors", "open_clip_pytorch_model.bin")
            return cached_file(hub_id, Path(name).with_suffix(".safetensors").name, name)
        except Exception as error:
            raise offline(f"{self.name} / {self._pretrained}", error) from error

    def _folder_file(self) -> Path:
        """The weights beside a configuration, in a folder or on the hub."""
        from open_clip.pretrained import download_pretrained_from_hf

        if self._folder is None:
            hub_id = self._address.partition(":")[2]
            try:
                if hub_reachable():
                    return Path(download_pretrained_from_hf(hub_id))
                self._folder = cached_file(hub_id, CONFIGURATION).parent
                self._address = f"local-dir:{self._folder}"
            except Exception as error:
                raise offline(self.name, error) from error
        if not (self._folder / CONFIGURATION).is_file():
            raise ValueError(f"model: {self.name}: {self._folder} holds no {CONFIGURATION}")
        files = sorted(path for path in self._folder.iterdir() if path.suffix in SUFFIXES)
        if len(files) != 1:
            raise ValueError(f"model: {self.name}: {len(files)} weights files in {self._folder}; exactly one is needed")
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
                options: dict[str, Any] = {"require_pretrained": True}  # and weights_only, by default
                if self._pretrained is not None:  # the file that is there, with the preprocessing of its tag
                    options["force_preprocess_cfg"] = open_clip.get_pretrained_cfg(self.name, self._pretrained)
                model = open_clip.create_model(self._address, self._pretrained and str(file), **options)
        except Exception as error:
            raise CorruptFileError(
                f"{file}: not weights of {self.name}, or damaged ({one_line(error)}); {LEGACY}"
            ) from error
        return model.to(self.device).eval().requires_grad_(False)

    @cached_property
    def transform(self) -> Callable[[Image.Image], Tensor]:
        """Preprocessing: RGB image → ``(3, height, width)``."""
        from open_clip.transform import PreprocessCfg, image_transform_v2

        settings = PreprocessCfg(**self.model.visual.preprocess_cfg)
        return image_transform_v2(settings, is_train=False)  # type: ignore[no-any-return]

    @cached_property
    def _text_tower(self) -> tuple[Any, Any]:
        import open_clip

        return self.model, open_clip.get_tokenizer(self._address)


def check_gelu(model: str, pretrained: str, quick: bool) -> None:
    """Refuse weights trained with the other activation than the model has, naming the right model.

    OpenAI's weights in a model with plain GELU lose about 4 points of accuracy; open_clip only warns.
    """
    import open_clip

    has_quick = bool((open_clip.get_model_config(model) or {}).get("quick_gelu", False))
    right = f"{model}-quickgelu" if quick else model.removesuffix("-quickgelu")
    if has_quick != quick and right != model and right in open_clip.list_models():
        needed, has = ("QuickGELU", "GELU") if quick else ("GELU", "QuickGELU")
        raise ValueError(
            f"model: the weights {pretrained} were trained with {needed}, {model} has {has}; use --model {right}"
        )
