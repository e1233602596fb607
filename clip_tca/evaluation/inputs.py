"""The inputs of an evaluation: pictures, model and prompts, as embeddings, and what the record says of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clip_tca.core.checks import check_whole
from clip_tca.datasets.embedding_set import EmbeddingSet, load_embeddings
from clip_tca.datasets.image_set import ImageSet
from clip_tca.datasets.image_source import ImageSource
from clip_tca.datasets.prompts import Prompts, class_names, load_prompts
from clip_tca.datasets.registry import domain_named
from clip_tca.datasets.synthetic import synthetic
from clip_tca.encoding.base import Encoder
from clip_tca.encoding.embedder import BATCH, Embedder
from clip_tca.encoding.open_clip import MODEL, PRETRAINED, OpenClipEncoder
from clip_tca.encoding.store import Store, checksum
from clip_tca.results.schema import DataInfo, InputRecord, ModelInfo, PromptInfo
from clip_tca.results.validation import validate


@dataclass
class Embedded:
    """A data set as embeddings, with what they came from (None for stored embeddings), and what the record says.

    Images that were left out are not in ``pictures``.
    """

    data: EmbeddingSet
    about: InputRecord
    pictures: ImageSet | None = None
    encoder: Encoder | None = None
    prompts: Prompts | None = None


@dataclass(frozen=True)
class Inputs(ImageSource):
    """A data set of pictures with the model and the prompts to embed it, or stored embeddings.

    Attributes:
        dataset: As in :class:`clip_tca.datasets.image_source.ImageSource`, like all about the pictures; or, without
            pictures, ``synthetic`` or a safetensors file of stored embeddings.
        model: open_clip model; None is ``ViT-B-16-quickgelu``, or the bundled model for the demo.
        pretrained: Tag or file of its weights.
        trust_pickle: Load a legacy checkpoint that is a pickle, which can run any code.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        precision: ``auto``, ``fp32``, ``fp16`` or ``bf16``.
        prompts: ``single``, ``watt`` or a file of templates.
        class_names: ``clean``, ``raw`` or a class-name file.
        skip_bad: Continue without images that can't be read.
        cache: Read and write the embedding store.
        workers: Processes that decode images; None is the number of cores, at most 8.
        encode_batch_size: Images encoded together.
        progress: Show progress bars on stderr, if that is a terminal.
        seed: Of the synthetic set.
    """

    model: str | None = None
    pretrained: str = PRETRAINED
    trust_pickle: bool = False
    device: str = "auto"
    precision: str = "auto"
    prompts: str = "single"
    class_names: str = "clean"
    skip_bad: bool = False
    cache: bool = True
    workers: int | None = None
    encode_batch_size: int = BATCH
    progress: bool = False
    seed: int = 0

    def embed(self) -> Embedded:
        """Embed the data set and the prompts, or read the stored embeddings."""
        check_whole("workers", self.workers, 0, also=None)
        check_whole("encode_batch_size", self.encode_batch_size)
        stored = self.dataset == "synthetic" or self.dataset.endswith(".safetensors")
        names_model = self.model or self.pretrained != PRETRAINED or self.precision != "auto"
        if stored and (names_model or self.data_dir or self.hub_id):
            raise ValueError(
                f"dataset: {self.dataset} holds embeddings; model, weights, precision, folder and hub don't apply"
            )
        if self.dataset == "synthetic":
            return self._stored(synthetic(self.seed), "synthetic", {"kind": "synthetic", "seed": self.seed})
        if self.dataset.endswith(".safetensors"):
            data = load_embeddings(self.dataset, f"text.{Path(self.prompts).name}")
            return self._stored(data, Path(self.dataset).stem, {"kind": "embeddings", "path": self.dataset})
        return self._encoded()

    def _stored(self, data: EmbeddingSet, name: str, origin: dict[str, Any]) -> Embedded:
        chosen = [domain_named(domain, list(data.domains)) for domain in self.domains]
        data.domains = {domain: data.domains[domain] for domain in chosen or data.domains}
        model, prompts = data.about.get("model") or None, data.about.get("prompts") or None
        try:
            validate(model, ModelInfo | None, "model")
            validate(prompts, PromptInfo | None, "prompts")
        except ValueError as error:
            raise ValueError(f"{self.dataset}: its metadata is damaged ({error}); write it again") from None
        info: DataInfo = {
            "origin": origin,
            "classes": data.classes or [str(label) for label in range(data.text.shape[-2])],
            "domains": {domain: {"images": len(labels)} for domain, (_, labels) in data.domains.items()},
            "differences": [],
            "ignored": [],
            "left_out": 0,
        }
        about: InputRecord = {
            "dataset": name,
            "data": info,
            "model": model,
            "prompts": prompts,
            "cost": {"encoding_seconds": 0.0, "encoded_images": 0},
        }
        return Embedded(data, about)

    def _encoded(self) -> Embedded:
        load_prompts(self.prompts, ())  # cheap checks come before expensive work
        store = Store() if self.cache else None
        model = self.model or ("demo" if self.dataset == "demo" else MODEL)
        encoder = OpenClipEncoder(model, self.pretrained, self.device, self.precision, store, self.trust_pickle)
        self.check()
        if self.data_dir is None:
            _ = encoder.identity  # a data set from the hub is the larger download
        data = self.load()
        names = class_names(data.classes, self.class_names, self.dataset if data.expected else None)
        prompts = load_prompts(self.prompts, names)
        began = time.perf_counter()
        embedder = Embedder(encoder, store, self.skip_bad, self.workers, self.encode_batch_size, self.progress)
        text = embedder.texts(prompts)
        z = embedder.pictures(data)
        seconds = time.perf_counter() - began
        labels = {name: torch.tensor(domain.labels) for name, domain in data.domains.items()}
        embedded = EmbeddingSet(text, encoder.scale, {name: (z[name], labels[name]) for name in z}, names)
        identity = encoder.identity
        model_info: ModelInfo = {
            "model": identity.model,
            "pretrained": identity.pretrained,
            "weights": identity.weights,
            "precision": encoder.precision,
            "device": encoder.device.type,
            "preprocessing": identity.preprocessing,
            "scale": encoder.scale,
        }
        prompt_info: PromptInfo = {
            "name": prompts.name,
            "templates": list(prompts.templates),
            "class_names": self.class_names if self.class_names in ("raw", "clean") else Path(self.class_names).name,
            "classes": names,
            "texts_sha256": prompts.fingerprint(),
            "embeddings_sha256": checksum(text),
        }
        about: InputRecord = {
            "dataset": data.name if data.expected or self.dataset == "demo" else "folder",
            "data": _data_info(data, embedder.left_out),
            "model": model_info,
            "prompts": prompt_info,
            "cost": {"encoding_seconds": seconds, "encoded_images": embedder.encoded},
        }
        embedded.about = {"model": model_info, "prompts": prompt_info}
        return Embedded(embedded, about, data, encoder, prompts)


def _data_info(data: ImageSet, left_out: int) -> DataInfo:
    counts = data.counts()
    return {
        "name": data.name,
        "origin": data.origin,
        "classes": data.classes,
        "domains": {
            name: {"images": len(domain), "per_class": counts[name], "files_sha256": domain.fingerprint()}
            for name, domain in data.domains.items()
        },
        "differences": data.differences(),
        "ignored": data.ignored,
        "left_out": left_out,
    }
