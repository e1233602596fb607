"""f: any open_clip model as an image and text encoder, on any device, with its weights known by content.

The model is built only when something has to be encoded: what identifies it (:attr:`Encoder.identity`) is remembered
beside the embeddings, so a run whose embeddings are all stored never loads it.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from clip_tca.core.device import choose_device, choose_precision
from clip_tca.core.files import sha256, write_text
from clip_tca.core.hub_access import spare_waiting
from clip_tca.core.resources import resource
from clip_tca.encoding import weights
from clip_tca.encoding.torchscript import is_torchscript, read_torchscript

log = logging.getLogger("clip_tca")

MODEL, PRETRAINED = "ViT-B-16-quickgelu", "openai"
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Identity:
    """What decides the embeddings of an image, apart from the image.

    Attributes:
        model: Name of the architecture.
        pretrained: Tag or file name of the weights.
        weights: SHA-256 of the weights file.
        configuration: Hash of the architecture's configuration.
        preprocessing: Size, crop, interpolation, mean and standard deviation.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        scale: exp of the model's logit scale.
    """

    model: str
    pretrained: str
    weights: str
    configuration: str
    preprocessing: dict[str, Any]
    precision: str
    scale: float


class Encoder:
    """An open_clip model with its preprocessing.

    Attributes:
        device: Where it runs.
        precision: In what (``fp16`` and ``bf16`` by autocast).
    """

    def __init__(
        self,
        model: str = MODEL,
        pretrained: str = PRETRAINED,
        device: str = "auto",
        precision: str = "auto",
        memory: Path | None = None,
        trust_pickle: bool = False,
    ) -> None:
        """Choose a model; nothing is loaded yet.

        Args:
            model: open_clip's name, ``hf-hub:OWNER/NAME``, ``local-dir:FOLDER``, or ``demo`` for the bundled model.
            pretrained: Tag or file of the weights; not used by the last three.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
            precision: ``auto``, ``fp32``, ``fp16`` or ``bf16``.
            memory: Folder in which identities are remembered; None remembers nothing.
            trust_pickle: Load a legacy checkpoint that is a pickle of any objects, which can run any code.
        """
        self.name, self.pretrained = model, pretrained
        self.device = choose_device(device)
        self.precision = choose_precision(precision, self.device)
        self._memory, self._trust_pickle = memory, trust_pickle
        folder = model.startswith(("hf-hub:", "local-dir:")) or model == "demo"
        self._address = (
            f"local-dir:{resource(f'eval/demo/{weights.CONFIGURATION}').parent}" if model == "demo" else model
        )
        kind, _, place = self._address.partition(":")
        self._place = str(Path(place).absolute()) if kind == "local-dir" else ""
        self._from_file = not folder and Path(pretrained).is_file() and not pretrained.isidentifier()
        self._pretrained = None if folder else str(Path(pretrained).absolute()) if self._from_file else pretrained

    # -- identity ------------------------------------------------------------------------------------------------------

    @cached_property
    def identity(self) -> Identity:
        """What the embeddings depend on; from memory where the weights file is unchanged, else by loading the model."""
        from clip_tca.encoding.store import digest

        known = None
        if self._memory is not None and not self.name.startswith("hf-hub:"):  # whose configuration may change unseen
            known = (
                self._memory
                / f"{digest([self._address, self._place, self._pretrained, version('open_clip_torch')])}.json"
            )
            try:
                record = json.loads(known.read_text(encoding="utf-8"))
                if weights.stamps(Path(record["file"]), self._place) == record["stamps"]:
                    return Identity(precision=self.precision, **record["identity"])
            except (OSError, ValueError, KeyError, TypeError):
                pass  # not remembered, or not any more
        file = self.weights_file
        fields: dict[str, Any] = {
            "model": f"local-dir:{Path(self._place).name}" if self.name.startswith("local-dir:") else self.name,
            "pretrained": f"file {file.name}" if self._from_file else self._pretrained or "",
            "weights": sha256(file),
            "configuration": digest(self._configuration),
            "preprocessing": self._preprocessing,
            "scale": float(self.model.logit_scale.detach().exp()),
        }
        if known is not None:
            record = {"file": str(file.absolute()), "stamps": weights.stamps(file, self._place), "identity": fields}
            try:
                known.parent.mkdir(parents=True, exist_ok=True)
                write_text(known, json.dumps(record))
            except OSError as error:
                log.warning("%s could not be written (%s): the model will be loaded again next time", known, error)
        return Identity(precision=self.precision, **fields)

    @property
    def scale(self) -> float:
        """Logit scale."""
        return self.identity.scale

    @cached_property
    def weights_file(self) -> Path:
        """The file of the weights, downloaded if need be.

        Raises:
            ValueError: If model or weights are unknown, do not fit, or can't be downloaded.
        """
        spare_waiting()
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
            return Path(open_clip.download_pretrained(configuration))
        except Exception as error:
            raise ValueError(weights.offline(f"{self.name} / {self._pretrained}", error)) from error

    def _folder_file(self) -> Path:
        import open_clip
        from open_clip.pretrained import download_pretrained_from_hf

        if not self._place:
            try:
                return Path(download_pretrained_from_hf(self._address.partition(":")[2]))
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

    # -- the model -----------------------------------------------------------------------------------------------------

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
                model = open_clip.create_model(
                    self._address,
                    pretrained=self._pretrained,
                    require_pretrained=True,
                    weights_only=not self._trust_pickle,
                )
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"{file}: not weights of {self.name}, or damaged ({reason}); "
                "a checkpoint is a state_dict in safetensors or a plain torch.save; a legacy pickle, which can run any "
                "code, needs --trust-pickle"
            ) from error
        return model.to(self.device).eval().requires_grad_(False)

    @property
    def _configuration(self) -> Any:
        import open_clip

        return open_clip.get_model_config(self._address)

    @cached_property
    def _preprocessing(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(self.model.visual.preprocess_cfg)))  # tuples become lists, as in JSON

    @cached_property
    def transform(self) -> Callable[[Image.Image], Tensor]:
        """RGB picture → ``(3, height, width)``. Can be sent to worker processes."""
        from open_clip.transform import PreprocessCfg, image_transform_v2

        settings = {name: tuple(v) if isinstance(v, list) else v for name, v in self._preprocessing.items()}
        return image_transform_v2(PreprocessCfg(**settings), is_train=False)  # type: ignore[no-any-return]

    @cached_property
    def tokenizer(self) -> Callable[[list[str]], Tensor]:
        """Texts → tokens ``(n, length)``."""
        import open_clip

        return open_clip.get_tokenizer(self._address)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def images(self, batch: Tensor) -> Tensor:
        """Embeddings ``(n, d)`` of preprocessed pictures ``(n, 3, height, width)``, in float32."""
        with self._autocast():
            z: Tensor = self.model.encode_image(batch.to(self.device, non_blocking=True))
        return z.float()

    @torch.inference_mode()
    def texts(self, texts: list[str], batch: int = 256) -> Tensor:
        """Embeddings ``(n, d)`` of texts, in float32."""
        parts = []
        for start in range(0, len(texts), batch):
            with self._autocast():
                parts.append(
                    self.model.encode_text(self.tokenizer(texts[start : start + batch]).to(self.device)).float()
                )
        return torch.cat(parts)

    def _autocast(self) -> torch.autocast:
        dtype = _DTYPES.get(self.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)
