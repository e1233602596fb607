"""The encoder for open_clip: any of its models, on any device, with weights identified by their content.

The model is built only when something has to be encoded: its identity is kept in the store, so a run whose embeddings
are all stored never loads it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from clip_tca.core.checks import one_line
from clip_tca.core.errors import CorruptFileError
from clip_tca.core.files import sha256
from clip_tca.core.folders import resource
from clip_tca.core.network import hub_or_cache
from clip_tca.core.text_towers import scale_of
from clip_tca.encoding import checkpoint
from clip_tca.encoding.base import Encoder, Identity
from clip_tca.encoding.store import Store, digest, stamp

log = logging.getLogger("clip_tca")

MODEL, PRETRAINED = "ViT-B-16-quickgelu", "openai"

CONFIGURATION = "open_clip_config.json"  # beside the weights, in a folder


class OpenClipEncoder(Encoder):
    """An open_clip model with its preprocessing: its name, ``hf-hub:OWNER/NAME``, ``local-dir:FOLDER`` or ``demo``.

    ``pretrained`` is a tag or a file; only open_clip's own names need it. The ``store`` keeps the model's identity.
    """

    def __init__(
        self,
        model: str = MODEL,
        pretrained: str = PRETRAINED,
        device: str = "auto",
        precision: str = "auto",
        store: Store | None = None,
    ) -> None:
        super().__init__(device, precision)
        self.name, self._store = model, store
        self._address = f"local-dir:{resource(f'eval/demo/{CONFIGURATION}').parent}" if model == "demo" else model
        kind, _, location = self._address.partition(":")
        self._folder = Path(location).absolute() if kind == "local-dir" else None
        self._hub_id = location if kind == "hf-hub" else None
        self._file = checkpoint.local_file(pretrained) if self._folder is None and self._hub_id is None else None
        self._pretrained = "" if self._folder or self._hub_id else str(self._file or pretrained)

    @cached_property
    def identity(self) -> Identity:
        """From the store if no local file of the model has changed, else by loading the model."""
        store = None if self._hub_id else self._store  # what a name on the hub stands for can change unseen
        key = self._identity_key() if store else ""
        if store and (identity := store.identity(key)):
            return identity
        file = self.weights_file
        import open_clip

        with self._hub():
            configuration = digest(open_clip.get_model_config(self._address))
        identity = Identity(
            model=f"local-dir:{self._folder.name}" if self._folder and self.name != "demo" else self.name,
            pretrained=f"file {file.name}" if self._file else self._pretrained,
            weights=sha256(file),
            configuration=configuration,
            preprocessing=json.loads(json.dumps(self.model.visual.preprocess_cfg)),  # tuples become lists
            precision=self.precision,
            scale=scale_of(self.model),
        )
        if store:
            store.keep_identity(key, identity)
        return identity

    def _identity_key(self) -> str:
        files = [self._file] if self._file else []
        if self._folder and self._folder.is_dir():
            files = sorted(path for path in self._folder.iterdir() if path.is_file())
        stamps = [[str(file), stamp(file)] for file in files]
        return digest([self._address, self._pretrained, self.precision, version("open_clip_torch"), stamps])

    @cached_property
    def weights_file(self) -> Path:
        """The file of the weights, downloaded if need be.

        ValueError if model or weights are unknown, do not fit, or can't be downloaded.
        """
        import open_clip
        from open_clip.pretrained import download_pretrained_from_hf

        if self._folder is not None:
            return self._in_folder(self._folder)
        if self._hub_id is not None:
            with checkpoint.downloads(self.name):
                return Path(download_pretrained_from_hf(self._hub_id))
        if self.name not in (models := open_clip.list_models()):
            raise checkpoint.unknown_model(self.name, "open_clip", models)
        if self._file is not None:
            # the hub's copies of OpenAI's weights, in folders named *.openai, were trained with QuickGELU
            if any(part.endswith(".openai") for part in self._file.parts):
                check_gelu(self.name, self._file.name, quick=True)
            return self._file
        source = open_clip.get_pretrained_cfg(self.name, self._pretrained)
        if not source:
            tags = open_clip.list_pretrained_tags_by_model(self.name)
            raise checkpoint.unknown_tag(self.name, self._pretrained, tags)
        check_gelu(self.name, self._pretrained, bool(source.get("quick_gelu", False)))
        with checkpoint.downloads(f"{self.name} / {self._pretrained}"):
            return Path(open_clip.download_pretrained(source))

    def _hub(self) -> AbstractContextManager[None]:
        return hub_or_cache() if self._hub_id else nullcontext()

    def _in_folder(self, folder: Path) -> Path:
        if not (folder / CONFIGURATION).is_file():
            raise ValueError(f"model: {self.name}: {folder} holds no {CONFIGURATION}")
        files = sorted(path for path in folder.iterdir() if path.suffix in checkpoint.SUFFIXES)
        if len(files) != 1:
            raise ValueError(f"model: {self.name}: {len(files)} weights files in {folder}; exactly one is needed")
        return files[0]

    @cached_property
    @torch.inference_mode(False)  # base methods need weights that can take gradients, whoever asks for them first
    def model(self) -> Any:
        import open_clip

        file = self.weights_file
        checkpoint.refuse_torchscript(file)
        log.info("loading %s from %s", self.name, file)
        options: dict[str, Any] = {"require_pretrained": True}  # and weights_only, by default
        if self._pretrained:  # the file that is there, with the preprocessing of its tag
            options["force_preprocess_cfg"] = open_clip.get_pretrained_cfg(self.name, self._pretrained)
        try:
            with self._hub():
                model = open_clip.create_model(self._address, self._pretrained and str(file), **options)
        except Exception as error:
            reason = f"not weights of {self.name}, or damaged ({one_line(error)})"
            raise CorruptFileError(f"{file}: {reason}; {checkpoint.LEGACY}") from error
        return model.to(self.device).eval().requires_grad_(False)

    @cached_property
    def transform(self) -> Callable[[Image.Image], Tensor]:
        from open_clip.transform import PreprocessCfg, image_transform_v2

        settings = PreprocessCfg(**self.model.visual.preprocess_cfg)
        return image_transform_v2(settings, is_train=False)  # type: ignore[no-any-return]

    @cached_property
    def _text_tower(self) -> tuple[Any, Any]:
        import open_clip

        with self._hub():
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
