"""The inputs of an evaluation: pictures, model and prompts, as embeddings, and what the record says of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_whole
from clip_tca.core.remote import locate
from clip_tca.datasets.embedding_set import EmbeddingSet, load_embeddings
from clip_tca.datasets.foreign_files import SUFFIXES, ForeignFiles
from clip_tca.datasets.image_set import ImageSet
from clip_tca.datasets.image_source import NAMES, ImageSource
from clip_tca.datasets.prompts import CLASS_NAMES, Prompts, class_names, load_prompts, read_classes
from clip_tca.datasets.registry import BENCHMARKS, domain_named
from clip_tca.datasets.synthetic import synthetic
from clip_tca.encoding.base import Encoder
from clip_tca.encoding.embedder import BATCH, Embedder
from clip_tca.encoding.head_classes import head_for
from clip_tca.encoding.open_clip import MODEL
from clip_tca.encoding.registry import make_encoder
from clip_tca.encoding.store import Store, checksum
from clip_tca.results.schema import DataInfo, InputRecord, ModelInfo, PromptInfo
from clip_tca.results.validation import validate


@dataclass
class Embedded:
    """A data set as embeddings, with what they came from (None for stored embeddings), and what the record says.

    Images that were left out are not in ``pictures``. The ``embedder`` can embed other pictures in the same way.
    """

    data: EmbeddingSet
    about: InputRecord
    pictures: ImageSet | None = None
    encoder: Encoder | None = None
    prompts: Prompts | None = None
    embedder: Embedder | None = None


@dataclass(frozen=True)
class Inputs(ImageSource):
    """A data set of pictures with the model and the prompts to embed it, or stored embeddings.

    Attributes:
        dataset: As in :class:`clip_tca.datasets.image_source.ImageSource`, like all about the pictures; or, without
            pictures, ``synthetic`` or a safetensors file of stored embeddings.
        model: As in :func:`clip_tca.encoding.registry.make_encoder`; None is ``ViT-B-16-quickgelu``, or the bundled
            model for the demo.
        pretrained: Tag or file of its weights; None is the library's default.
        trust_pickle: Load a legacy checkpoint that is a pickle, which can run any code.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        precision: ``auto``, ``fp32``, ``fp16`` or ``bf16``.
        prompts: As in :func:`clip_tca.datasets.prompts.load_prompts`: ``single``, ``watt``, ``clip80``, ``clip``,
            ``coop``, or a file of templates or (``.json``) descriptions; not used by a model with its own head.
        class_names: ``clean``, ``raw`` or a class-name file, which for a model with its own head names all its outputs.
        skip_bad: Continue without images that can't be read.
        cache: Read and write the embedding store.
        workers: Processes that decode images; None is the number of cores, half of it on a CPU, at most 8.
        encode_batch_size: Images encoded together.
        seed: Of the synthetic set.
        text: Text embeddings for a ``dataset`` that is a file or folder of embeddings made elsewhere, as in
            :class:`clip_tca.datasets.foreign_files.ForeignFiles`, like the next four and ``label_column``.
        labels: Their true classes.
        scale: Their logit scale.
        column: Array or column with the embeddings.
        text_column: Array with the text embeddings.
    """

    model: str | None = None
    pretrained: str | None = None
    trust_pickle: bool = False
    device: str = "auto"
    precision: str = "auto"
    prompts: str = "single"
    class_names: str = "clean"
    skip_bad: bool = False
    cache: bool = True
    workers: int | None = None
    encode_batch_size: int = BATCH
    seed: int = 0
    text: str | None = None
    labels: str | None = None
    scale: float | None = None
    column: str | None = None
    text_column: str | None = None

    def embed(self) -> Embedded:
        """Embed the data set and the prompts, or read the stored embeddings."""
        check_whole("workers", self.workers, 0, also=None)
        check_whole("encode_batch_size", self.encode_batch_size)
        is_foreign = self._is_foreign()
        stored = is_foreign or self.dataset == "synthetic" or self.dataset.endswith(".safetensors")
        names_model = self.model or self.pretrained or self.precision != "auto"
        names_pictures = self.data_dir or self.hub_id or self.corruptions or self.severities or self.corrupt
        if stored and (names_model or names_pictures):
            raise ValueError(
                f"dataset: {self.dataset} holds embeddings; model, weights, precision, folder, hub and corruptions "
                "don't apply"
            )
        if is_foreign:
            return self._foreign()
        if self.dataset == "synthetic":
            return self._stored(synthetic(self.seed), "synthetic", {"kind": "synthetic", "seed": self.seed})
        if self.dataset.endswith(".safetensors"):
            data = load_embeddings(self.dataset, f"text.{Path(self.prompts).name}")
            return self._stored(data, Path(self.dataset).stem, {"kind": "embeddings", "path": self.dataset})
        return self._encoded()

    def _is_foreign(self) -> bool:
        """Whether ``dataset`` is embeddings that were made elsewhere; ValueError for options that need that."""
        path = Path(self.dataset)
        own = self.dataset in (*NAMES, "synthetic") or (path.suffix == ".safetensors" and self.text is None)
        if not own and (path.suffix.lower() in SUFFIXES or path.is_dir()):
            if self.text is None and path.is_dir():
                raise ValueError(
                    f"dataset: {self.dataset} is a folder; of pictures, name it by --dataset folder --data-dir "
                    f"{self.dataset}; of embeddings, add --text FILE with those of the classes"
                )
            if self.text is None:
                raise ValueError(
                    f"text: none given; {self.dataset} holds embeddings, and --text FILE those of the classes"
                )
            return True
        for name in ("text", "labels", "scale", "column", "text_column"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: {getattr(self, name)} is for embeddings made elsewhere, and {self.dataset} is none; give "
                    f"a file ({', '.join(SUFFIXES)}) or a folder as --dataset"
                )
        return False

    def _foreign(self) -> Embedded:
        files = ForeignFiles(
            Path(self.dataset),
            Path(self.text or ""),
            None if self.labels is None else Path(self.labels),
            self.scale,
            None if self.class_names in CLASS_NAMES else Path(self.class_names),
            self.column,
            self.text_column,
            self.label_column,
        )
        data = files.load()
        return self._stored(data, Path(self.dataset).resolve().stem, files.about(data))

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
        return Embedded(data, about)

    def _encoded(self) -> Embedded:
        known = self.dataset if self.dataset in BENCHMARKS else None
        load_prompts(self.prompts, (), known)  # cheap checks come before expensive work
        store = Store() if self.cache else None
        model = self.model or ("demo" if self.dataset == "demo" else MODEL)
        encoder = make_encoder(model, self.pretrained, self.device, self.precision, store, self.trust_pickle)
        self.check()
        if self.data_dir is None:
            _ = encoder.identity  # a data set from the hub is the larger download
        data = self.load()
        head = self._head(encoder, data)
        how = self.class_names if head is None or self.class_names in CLASS_NAMES else "clean"
        names = class_names(data.classes, how, known)
        prompts = load_prompts(self.prompts, names, known, data.classes) if head is None else None
        began = time.perf_counter()
        compare = self.device == "auto" and encoder.device.type == "mps"
        options = self.skip_bad, self.workers, self.encode_batch_size, self.progress, compare
        embedder = Embedder(encoder, store, *options)
        text = embedder.texts(prompts) if prompts is not None else None
        z = embedder.pictures(data)
        seconds = time.perf_counter() - began
        domains = {name: (z[name], torch.tensor(domain.labels)) for name, domain in data.domains.items()}
        embedded = EmbeddingSet(text, encoder.scale, domains, names, head=head, bias=encoder.bias)
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
        prompt_info = None if prompts is None or text is None else self._prompt_info(prompts, text)
        about: InputRecord = {
            "dataset": self.dataset,
            "data": _data_info(data, embedder.left_out),
            "model": model_info,
            "prompts": prompt_info,
            "cost": {"encoding_seconds": seconds, "encoded_images": embedder.encoded},
        }
        embedded.about = {"model": model_info, "prompts": prompt_info}
        return Embedded(embedded, about, data, encoder, prompts, embedder)

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
            "embeddings_sha256": checksum(text),
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
