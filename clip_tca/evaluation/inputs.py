"""The inputs of an evaluation: pictures, model and prompts, as embeddings, with their description for the record."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_whole
from clip_tca.core.errors import CorruptFileError
from clip_tca.core.progress import Progress
from clip_tca.core.remote import locate
from clip_tca.data.embeddings import SUFFIXES, EmbeddingSet, ForeignFiles, load_embeddings, synthetic
from clip_tca.data.image_source import NAMES, ImageSource
from clip_tca.data.pictures import Domain, ImageSet
from clip_tca.data.prompts import CLASS_NAMES, Prompts, class_names, load_prompts, read_classes
from clip_tca.data.registry import BENCHMARKS, domain_named
from clip_tca.encoding.backbone import head_for
from clip_tca.encoding.base import Encoder, make_encoder
from clip_tca.encoding.embedder import Embedder
from clip_tca.encoding.open_clip import MODEL
from clip_tca.encoding.ray_pool import RayPool
from clip_tca.encoding.store import Store
from clip_tca.results.record import validate
from clip_tca.results.schema import DataInfo, InputRecord, ModelInfo, PromptInfo

MIXED = "all domains"  # the name of their mixture
FOREIGN = ("text", "labels", "scale", "column", "text_column")  # options for embeddings made elsewhere only


@dataclass
class Embedded:
    """A data set as embeddings, and what they came from; None for stored embeddings."""

    data: EmbeddingSet
    about: InputRecord
    pictures: ImageSet | None = None  # without those that were left out
    encoder: Encoder | None = None
    prompts: Prompts | None = None
    embedder: Embedder | None = None  # embeds other pictures in the same way

    def mixed(self) -> Embedded:
        data, pictures = self.data, self.pictures
        z, labels = (torch.cat(parts) for parts in zip(*data.domains.values(), strict=True))
        if pictures is not None:
            chained = Domain.chained([pictures.domains[name] for name in data.domains])
            pictures = replace(pictures, domains={MIXED: chained})
        return replace(self, data=replace(data, domains={MIXED: (z, labels)}), pictures=pictures)


@dataclass(frozen=True)
class Inputs(ImageSource):
    """A data set of pictures with the model and the prompts to embed it, or stored embeddings.

    Without pictures, ``dataset`` is ``synthetic`` or a file or folder of embeddings.
    """

    model: str | None = None  # as in make_encoder; None: ViT-B-16-quickgelu, or the bundled model for the demo
    pretrained: str | None = None  # tag or file of its weights; None: the library's default
    device: str = "auto"
    precision: str = "auto"  # or fp32, fp16, bf16
    prompts: str = "single"  # as in load_prompts; not used by a model with its own head
    class_names: str = "clean"  # or raw, or a file, which for a model with its own head names all its outputs
    skip_bad: bool = False  # continue without images that can't be read
    cache: bool = True  # read and write the embedding store
    workers: int | None = None  # processes that decode images, threads on a CPU; None: the cores, at most 8
    ray: str | None = None  # address of a Ray cluster that encodes; empty starts Ray on this machine
    text: str | None = None  # from here on for embeddings made elsewhere, as in ForeignFiles
    labels: str | None = None
    scale: float | None = None
    column: str | None = None
    text_column: str | None = None

    def embed(self, arrived: Callable[[Embedded, str], None] | None = None) -> Embedded:
        """Embed the data set and the prompts, or read stored embeddings; ``arrived`` is called for each domain."""
        check_whole("workers", self.workers, 0, also=None)
        path, is_synthetic = locate(self.dataset), self.dataset == "synthetic"
        is_stored = self.dataset not in (*NAMES, "synthetic") and (path.suffix.lower() in SUFFIXES or path.is_dir())
        is_ours = is_stored and path.suffix == ".safetensors" and self.text is None
        is_foreign = is_stored and not is_ours
        if is_foreign and self.text is None:
            if path.is_dir():
                raise ValueError(
                    f"dataset: {path} is a folder; of pictures, name it by --dataset folder --data-dir {path}; of "
                    "embeddings, add --text FILE with those of the classes"
                )
            raise ValueError(f"text: none given; {path} holds embeddings, and --text FILE those of the classes")
        foreign = [name for name in FOREIGN if getattr(self, name) is not None]
        if foreign and not is_foreign:
            raise ValueError(
                f"{foreign[0]}: {getattr(self, foreign[0])} is for embeddings made elsewhere, and {self.dataset} is "
                f"none; give a file ({', '.join(SUFFIXES)}) or a folder as --dataset"
            )
        if not (is_synthetic or is_stored):
            return self._encoded(arrived)
        names_model = self.model or self.pretrained or self.precision != "auto"
        if names_model or self.data_dir or self.hub_id or self.corruptions or self.severities or self.corrupt:
            raise ValueError(
                f"dataset: {self.dataset} holds embeddings; model, weights, precision, folder, hub and corruptions "
                "don't apply"
            )
        if is_synthetic:
            return self._stored(synthetic(0), "synthetic", {"kind": "synthetic", "seed": 0}, arrived)
        if is_ours:
            data = load_embeddings(self.dataset, f"text.{Path(self.prompts).name}")
            return self._stored(data, path.stem, {"kind": "embeddings", "path": self.dataset}, arrived)
        files = ForeignFiles(
            path,
            self.text or "",
            self.labels,
            self.scale,
            None if self.class_names in CLASS_NAMES else self.class_names,
            self.column,
            self.text_column,
            self.label_column,
        )
        data = files.load()
        name = path.resolve().stem if isinstance(path, Path) else path.stem
        return self._stored(data, name, files.about(data), arrived)

    def _stored(
        self, data: EmbeddingSet, name: str, origin: dict[str, Any], arrived: Callable[[Embedded, str], None] | None
    ) -> Embedded:
        domains = [domain_named(domain, list(data.domains)) for domain in self.domains]
        data.domains = {domain: data.domains[domain] for domain in domains or data.domains}
        model, prompts = data.about.get("model") or None, data.about.get("prompts") or None
        try:
            validate(model, ModelInfo | None, "model")
            validate(prompts, PromptInfo | None, "prompts")
        except ValueError as error:
            raise CorruptFileError(f"{self.dataset}: its metadata is damaged ({error}); write it again") from None
        info: DataInfo = {
            "origin": origin,
            "classes": data.classes or [str(label) for label in range(data.classifier().n_classes)],
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
        embedded = Embedded(data, about)
        if arrived is not None:
            for domain in data.domains:
                arrived(embedded, domain)
        return embedded

    def _encoded(self, arrived: Callable[[Embedded, str], None] | None = None) -> Embedded:
        known = self.dataset if self.dataset in BENCHMARKS else None
        if self.ray is not None and self.device not in ("auto", "cpu"):
            raise ValueError(f"device: {self.device!r}, but Ray chooses the GPUs; give auto, or cpu for none")
        self.check()  # cheap checks come before expensive work
        load_prompts(self.prompts, (), known)
        if self.class_names not in CLASS_NAMES:
            read_classes(locate(self.class_names))
        data = self.load() if self.is_local else None
        store = Store() if self.cache else None
        model = self.model or ("demo" if self.dataset == "demo" else MODEL)
        with Progress(None, f"loading {model}", "", self.progress):
            encoder = make_encoder(model, self.pretrained, self.device, self.precision, store)
        if data is None:
            _ = encoder.identity  # a data set from the hub is the larger download
            data = self.load()
        head = self._head(encoder, data)
        names = self._readable(data.classes, head)
        embedder = Embedder(encoder, store, self.skip_bad, self.workers, progress=self.progress)
        began, text, prompts, prompt_info = time.perf_counter(), None, None, None
        if head is None:
            prompts = load_prompts(self.prompts, names, known, data.classes)
            text = embedder.texts(prompts)
            prompt_info = self._prompt_info(prompts, text)
        seconds = time.perf_counter() - began
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
        if encoder.head is not None:
            model_info["head"] = encoder.head.n_classes
        rows = EmbeddingSet(text, encoder.scale, {}, names, head=head, bias=encoder.bias)
        rows.about = {"model": model_info, "prompts": prompt_info}
        about: InputRecord = {
            "dataset": self.dataset,
            "data": _data_info(data, 0),
            "model": model_info,
            "prompts": prompt_info,
            "cost": {"encoding_seconds": 0.0, "encoded_images": 0},
        }
        embedded, elsewhere = Embedded(rows, about, data, encoder, prompts, embedder), 0.0

        def finished(name: str, z: Tensor) -> None:
            nonlocal elsewhere
            rows.domains[name] = (z, torch.tensor(data.domains[name].labels))
            if arrived is not None:
                left = time.perf_counter()
                arrived(embedded, name)
                elsewhere += time.perf_counter() - left

        began, embedder.finished = time.perf_counter(), finished
        pool = nullcontext() if self.ray is None else RayPool(self.ray, encoder, self.workers, self.device != "cpu")
        with pool as embedder.pool:
            embedder.pictures(data)
        embedder.finished = None
        seconds += time.perf_counter() - began - elsewhere
        about["data"] = _data_info(data, embedder.left_out)  # without the images that turned out to be unreadable
        about["cost"] = {"encoding_seconds": seconds, "encoded_images": embedder.encoded}
        return embedded

    def _readable(self, raw: list[str], head: LinearClassifier | None) -> list[str]:
        how = self.class_names if head is None or self.class_names in CLASS_NAMES else "clean"
        return class_names(raw, how, self.dataset if self.dataset in BENCHMARKS else None)

    def _head(self, encoder: Encoder, data: ImageSet) -> LinearClassifier | None:
        """The model's own head for the classes of the data set; None if prompts build the classifier."""
        head, model = encoder.head, encoder.identity.model
        if head is None:
            return None
        if self.class_names not in CLASS_NAMES:
            outputs = list(read_classes(locate(self.class_names)))
            if len(outputs) != head.n_classes:
                raise ValueError(
                    f"class names: {self.class_names} has {len(outputs)} names, the head of {model} {head.n_classes} "
                    "classes; write one name a line for every output of the head, in their order"
                )
            head = LinearClassifier(head.weight, head.bias, classes=outputs)
        return head_for(head, data.classes, model)

    def _prompt_info(self, prompts: Prompts, text: Tensor) -> PromptInfo:
        info: PromptInfo = {
            "name": prompts.name,
            "templates": list(prompts.templates),
            "class_names": self.class_names if self.class_names in CLASS_NAMES else Path(self.class_names).name,
            "classes": list(prompts.classes),
            "texts_sha256": prompts.fingerprint(),
            "embeddings_sha256": hashlib.sha256(text.numpy().tobytes()).hexdigest(),
        }
        if prompts.descriptions:
            info["descriptions"] = len(prompts.texts())
        return info


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
        "differences": [*data.differences(), *filter(None, [data.other_split])],
        "ignored": data.ignored,
        "left_out": left_out,
    }
