"""From images to embeddings, and every finished batch goes to the store.

On a CPU threads decode and encode; elsewhere processes decode.
"""

from __future__ import annotations

import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from clip_tca.core.checks import counted
from clip_tca.core.errors import CorruptFileError
from clip_tca.core.progress import Progress, announce
from clip_tca.core.tensors import unit
from clip_tca.data.pictures import Domain, ImageSet
from clip_tca.data.prompts import Prompts
from clip_tca.encoding.base import Encoder
from clip_tca.encoding.decoding import Reader, loader
from clip_tca.encoding.store import Store, digest, encoder_key, image_key, text_key

log = logging.getLogger("clip_tca")

BATCH = 64  # images encoded together
ON_CPU = 8  # the same on a CPU, where larger activations are allocated anew for every layer
STREAMS = 8  # most batches that are encoded at once on a CPU: each needs memory for its activations
PART = 256  # images that a pool encodes at a time
TEXT_BATCH = 256  # texts encoded together
LISTED = 20  # bad images that an error names

Item = TypeVar("Item")

Encoded = tuple[list[int], Tensor, dict[int, str]]
"""Positions of images in their domain, a row for each, and the reasons why some can't be read, by position."""


def encode_batches(encoder: Encoder, domain: Domain, wanted: Sequence[int], workers: int | None) -> Iterator[Encoded]:
    """Embeddings of the images at the positions ``wanted`` of a domain, batch by batch."""
    if encoder.device.type == "cpu":
        yield from _on_cpu(encoder, Reader(domain, encoder.transform), batched(wanted, ON_CPU), workers)
        return
    size, batches = BATCH, batched(wanted, BATCH)
    loaded = loader(domain, encoder.transform, batches, workers, encoder.device)
    for indices, (images, reasons) in zip(batches, loaded, strict=True):
        z, size = _rows(encoder, images, size)
        yield indices, z, {indices[i]: reason for i, reason in reasons.items()}


def _on_cpu(encoder: Encoder, reader: Reader, batches: list[list[int]], threads: int | None) -> Iterator[Encoded]:
    # Threads that each decode and encode whole batches, with their share of torch's threads: faster than one batch at a
    # time on all of them, which wait for each other in every layer (benchmarks/README.md).
    cores = torch.get_num_threads()
    streams = min(max(1, min(STREAMS, cores) if threads is None else threads), len(batches))
    _ = encoder._image_model  # once, and not by every thread at once

    def encode(indices: list[int]) -> Encoded:
        images, reasons = reader[indices]
        z, _ = _rows(encoder, images, len(images))
        return indices, z, {indices[i]: reason for i, reason in reasons.items()}

    pool = ThreadPoolExecutor(streams, initializer=lambda: torch.set_num_threads(max(1, cores // streams)))
    try:
        yield from pool.map(encode, batches)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)  # for threads that begin later: they take the last value that any thread set


def batched(items: Sequence[Item], size: int) -> list[list[Item]]:
    """The items in lists of ``size``; fewer in the last."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def _rows(encoder: Encoder, images: Tensor, size: int) -> tuple[Tensor, int]:
    # size images at a time; half as many from then on, if the device runs out of memory
    parts: list[Tensor] = []
    start = 0
    while start < len(images):
        try:
            parts.append(encoder.encode_images(images[start : start + size]).cpu())
            start += size
        except torch.cuda.OutOfMemoryError:
            if size == 1:
                raise
            size //= 2
            torch.cuda.empty_cache()
            log.warning("out of memory; going on with %d images at a time", size)
    z = torch.cat(parts)
    if bad := int((~torch.isfinite(z)).any(dim=1).sum()):
        raise ValueError(
            f"{bad} of {len(z)} embeddings are not finite in {encoder.precision}; use --precision fp32, and if it is "
            "that already, check the weights"
        )
    return z, size


@dataclass
class Embedder:
    """Embeds data sets and prompts with an encoder, and keeps the embeddings in a store, if there is one.

    Images that can't be read are an error, or left out and counted if ``skip_bad``. ``workers`` are processes that
    decode, or on a CPU threads that decode and encode; None is the number of cores, at most 8. A ``pool`` encodes parts
    of a domain elsewhere, in any order (:mod:`clip_tca.encoding.ray_pool`). ``finished`` is called with the name and
    the rows of each domain as soon as it is embedded. ``encoded`` counts images without those found in the store.
    """

    encoder: Encoder
    store: Store | None = None
    skip_bad: bool = False
    workers: int | None = None
    progress: bool = False
    pool: Callable[[Domain, list[list[int]]], Iterator[Encoded]] | None = None
    finished: Callable[[str, Tensor], None] | None = None
    encoded: int = field(default=0, init=False)
    left_out: int = field(default=0, init=False)

    @cached_property
    def _model(self) -> str:
        # the model's part of the keys; without a store there is no need to know it
        return encoder_key(self.encoder.identity) if self.store else ""

    def texts(self, prompts: Prompts) -> Tensor:
        """Text embeddings ``(templates, classes, d)``, in float32 on the CPU.

        Descriptions are averaged for each class, as unit vectors, and count as one template.
        """
        keys = [text_key(self._model, text) for text in prompts.texts()]
        texts = dict(zip(keys, prompts.texts(), strict=True))
        rows = self.store.get(texts) if self.store else {}
        missing = [key for key in texts if key not in rows]
        with Progress(len(missing), "prompts", "text", self.progress) as bar:
            for part in batched(missing, TEXT_BATCH):
                self._keep(rows, part, self.encoder.encode_texts([texts[key] for key in part]).cpu())
                bar.update(len(part))
        z = _stacked(rows, keys)
        if prompts.descriptions:
            by_class = unit(z).split([len(sentences) for sentences in prompts.descriptions])
            return torch.stack([sentences.mean(dim=0) for sentences in by_class])[None]
        return z.reshape(len(prompts.templates), len(prompts.classes), -1)

    def pictures(self, data: ImageSet) -> dict[str, Tensor]:
        """Embeddings ``(n, d)`` of every domain, in float32 on the CPU.

        Images that can't be read are removed from ``data`` with ``skip_bad``, and an error without.
        """
        keys = {name: self._keys(domain) for name, domain in data.domains.items()}
        distinct = {key for own in keys.values() for key in own}
        rows = self.store.get(distinct) if self.store else {}
        if missing := len(distinct - rows.keys()):
            where = "Ray" if self.pool else self.encoder.device
            kept = "; the embeddings are kept, so later runs skip this" if self.store else ""
            about = f"encoding {counted(missing, 'picture', ',')} with {self.encoder.identity.model} on {where}{kept}"
            announce(about, self.progress)
        z: dict[str, Tensor] = {}
        with Progress(missing, "encoding", "image", self.progress) as bar:
            for name, domain in data.domains.items():
                title = f"{data.name}/{name}"
                if any(key not in rows for key in keys[name]):
                    self._encode(domain, keys[name], rows, title, bar)
                readable = [i for i, key in enumerate(keys[name]) if key in rows]
                if not readable:
                    raise ValueError(f"{title}: none of its images can be read")
                if len(readable) < len(domain):
                    data.domains[name] = domain.subset(readable)
                z[name] = _stacked(rows, [keys[name][i] for i in readable])
                if self.finished is not None:
                    self.finished(name, z[name])
        return z

    def _keys(self, domain: Domain) -> list[str]:
        # the same for all pictures of one content, unless they are corrupted, which depends on names
        contents = self.store.contents(domain) if self.store else domain.marks
        names = [f"{domain.corruption.key} {name}" if domain.corruption else "" for name in domain.names]
        return [image_key(self._model, *parts) for parts in zip(contents, names, strict=True)]

    def _encode(self, domain: Domain, keys: list[str], rows: dict[str, bytes], title: str, bar: Any) -> None:
        # Adds to rows what is missing, once for each content; nothing for images that can't be read.
        copies: dict[str, list[int]] = defaultdict(list)
        for i, key in enumerate(keys):
            copies[key].append(i)
        with self.store.lock(digest(keys), title) if self.store else nullcontext(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for all threads: what Pillow warns of (see _opened in pictures.py)
            if self.store:  # another run may have encoded them while this one waited
                others = self.store.get(key for key in copies if key not in rows)
                rows.update(others)
                bar.update(len(others))
            missing = [same[0] for key, same in copies.items() if key not in rows]
            for indices, z, reasons in self._batches(domain, missing):
                good = [row for row, i in enumerate(indices) if i not in reasons]
                self._keep(rows, [keys[indices[row]] for row in good], z[good])
                bad = [(i, reason) for first, reason in reasons.items() for i in copies[keys[first]]]
                self._leave_out([f"{title}/{domain.names[i]}: {reason}" for i, reason in bad])
                self.encoded += len(indices)
                bar.update(len(indices))

    def _batches(self, domain: Domain, missing: list[int]) -> Iterator[Encoded]:
        if not missing:
            return iter(())
        if self.pool:
            return self.pool(domain, batched(missing, PART))
        return encode_batches(self.encoder, domain, missing, self.workers)

    def _leave_out(self, bad: list[str]) -> None:
        if bad and not self.skip_bad:
            more = [f"… and {len(bad) - LISTED} more"] if len(bad) > LISTED else []
            lines = "".join(f"\n  {line}" for line in [*bad[:LISTED], *more])
            images = f"{counted(len(bad), 'image')} can't be read"
            raise CorruptFileError(f"{images}; repair or remove such images, or leave them out: --skip-bad{lines}")
        self.left_out += len(bad)
        for line in bad:
            log.warning("left out: %s", line)

    def _keep(self, rows: dict[str, bytes], keys: list[str], z: Tensor) -> None:
        new = {key: row.tobytes() for key, row in zip(keys, z.numpy(), strict=True)}
        rows.update(new)
        if self.store:
            self.store.put(new)


def _stacked(rows: dict[str, bytes], keys: list[str]) -> Tensor:
    # there is at least one key
    content = bytearray(b"".join([rows[key] for key in keys]))
    return torch.frombuffer(content, dtype=torch.float32).reshape(len(keys), -1)
