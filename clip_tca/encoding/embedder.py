"""From images to embeddings: worker processes decode, the encoder encodes, every finished shard goes to the store."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clip_tca.core.progress import Progress, tracked
from clip_tca.core.tensors import unit
from clip_tca.datasets.image_set import Domain, ImageSet
from clip_tca.datasets.pictures import fault, mark
from clip_tca.datasets.prompts import Prompts
from clip_tca.encoding.base import Encoder
from clip_tca.encoding.decoding import loader
from clip_tca.encoding.store import SHARD, Entry, Store, image_key, shards, text_key

log = logging.getLogger("clip_tca")

BATCH, ON_CPU = 64, 16
"""Images encoded together; fewer on a CPU, where larger activations are fetched from the system for every layer."""

TEXT_BATCH = 256
"""Texts encoded together."""

LISTED = 20
"""Bad images that an error names."""

Encoded = tuple[list[int], Tensor, dict[int, str]]
"""Positions of images in their domain, a row for each, and the reasons why some can't be read, by position."""


def encode_batches(encoder: Encoder, domain: Domain, parts: list[range], workers: int | None) -> Iterator[Encoded]:
    """Embeddings of the images in ``parts`` of a domain, batch by batch.

    No batch crosses a part, so a resumed run has the same batches as one that was not interrupted.
    """
    size = ON_CPU if encoder.device.type == "cpu" else BATCH
    batches = [list(part[i : i + size]) for part in parts for i in range(0, len(part), size)]
    loaded = loader(domain, encoder.transform, batches, workers, encoder.device)
    for indices, (images, reasons) in zip(batches, loaded, strict=True):
        z, size = _rows(encoder, images, size)
        yield indices, z, {indices[i]: reason for i, reason in reasons.items()}


def _rows(encoder: Encoder, images: Tensor, size: int) -> tuple[Tensor, int]:
    """Encode ``size`` images at a time; half as many from then on, if the device runs out of memory."""
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
    decode; None is the number of cores, half of it for a model on the CPU, at most 8. A ``pool`` encodes parts of a
    domain elsewhere, in any order (:mod:`clip_tca.encoding.ray_pool`). ``finished`` is called with the name and the
    rows of each domain as soon as it is embedded. ``encoded`` counts images without those found in
    the store.
    """

    encoder: Encoder
    store: Store | None = None
    skip_bad: bool = False
    workers: int | None = None
    progress: bool = False
    pool: Callable[[Domain, list[range]], Iterator[Encoded]] | None = None
    finished: Callable[[str, Tensor], None] | None = None
    encoded: int = field(default=0, init=False)
    left_out: int = field(default=0, init=False)

    def texts(self, prompts: Prompts) -> Tensor:
        """Text embeddings ``(templates, classes, d)``, in float32 on the CPU.

        Descriptions are averaged for each class, as unit vectors, and count as one template.
        """
        key = text_key(self.encoder.identity, prompts) if self.store else {}
        rows = self.store.texts(key) if self.store else None
        if rows is None:
            texts = prompts.texts()
            parts = [texts[start : start + TEXT_BATCH] for start in range(0, len(texts), TEXT_BATCH)]
            shown = tracked(parts, len(parts), "prompts", "batch", self.progress)
            rows = torch.cat([self.encoder.encode_texts(part).cpu() for part in shown])
            if self.store:
                self.store.keep_texts(key, rows)
        if prompts.descriptions:
            by_class = unit(rows).split([len(sentences) for sentences in prompts.descriptions])
            return torch.stack([sentences.mean(dim=0) for sentences in by_class])[None]
        return rows.reshape(len(prompts.templates), len(prompts.classes), -1)

    def pictures(self, data: ImageSet) -> dict[str, Tensor]:
        """Embeddings ``(n, d)`` of every domain, in float32 on the CPU.

        Images that can't be read are removed from ``data`` with ``skip_bad``, and an error without. The headers of all
        files are checked before anything is encoded.
        """
        entries = [self._entry(domain, f"{data.name}/{name}") for name, domain in data.domains.items()]
        if not all(entry is not None and entry.complete() for entry in entries):
            self._check(data)
        z: dict[str, Tensor] = {}
        for name, domain in data.domains.items():
            title = f"{data.name}/{name}"
            rows, unread = self._domain(domain, title) if len(domain) else (torch.empty(0), set())
            if len(unread) == len(domain):
                raise ValueError(f"{title}: none of its images can be read")
            if unread:
                keep = [i for i in range(len(domain)) if i not in unread]
                data.domains[name], rows = domain.subset(keep), rows[keep]
            z[name] = rows
            if self.finished is not None:
                self.finished(name, rows)
        return z

    def _check(self, data: ImageSet) -> None:
        """Read every header, so that a broken file is found before hours of encoding."""
        bad: list[str] = []
        with Progress(sum(map(len, data.domains.values())), "checking", "image", self.progress) as bar:
            for name, domain in data.domains.items():
                keep = []
                for index in range(len(domain)):
                    try:
                        reason = fault(domain.picture(index))
                    except OSError as error:
                        reason = error.strerror or str(error)
                    if reason:
                        bad.append(f"{name}/{domain.names[index]}: {reason}")
                    else:
                        keep.append(index)
                    bar.update()
                if len(keep) < len(domain):
                    data.domains[name] = domain.subset(keep)
        self._leave_out(bad)

    def _leave_out(self, bad: list[str]) -> None:
        if bad and not self.skip_bad:
            more = f"\n  … and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
            lines = "".join(f"\n  {line}" for line in bad[:LISTED])
            raise ValueError(
                f"{len(bad)} images can't be read; repair or remove them, or leave them out: --skip-bad{lines}{more}"
            )
        self.left_out += len(bad)
        for line in bad:
            log.warning("left out: %s", line)

    def _domain(self, domain: Domain, title: str) -> tuple[Tensor, set[int]]:
        """Rows of a domain, and the positions of images that turned out to be bad when they were decoded."""
        count, entry = len(shards(len(domain))), self._entry(domain, title)
        unread: set[int] = set()
        with entry.lock() if entry and not entry.complete() else nullcontext():
            rows = {i: shard for i in range(count) if entry and (shard := entry.read(i)) is not None}
            for i, shard, bad in self._encode(domain, [i for i in range(count) if i not in rows], title):
                if entry and not bad:  # otherwise a repaired image would not be read again
                    entry.write(i, shard)
                rows[i] = shard
                unread |= bad
                self.encoded += len(shard)
        return torch.cat([rows[i] for i in range(count)]), unread

    def _encode(self, domain: Domain, missing: list[int], title: str) -> Iterator[tuple[int, Tensor, set[int]]]:
        """The shards ``missing`` as they are finished, each with the positions of images that could not be read."""
        if not missing:
            return
        parts = shards(len(domain))
        wanted = [parts[i] for i in missing]
        batches = self.pool(domain, wanted) if self.pool else encode_batches(self.encoder, domain, wanted, self.workers)
        begun: dict[int, list[Encoded]] = defaultdict(list)
        with Progress(sum(map(len, wanted)), title, "image", self.progress) as bar:
            for indices, z, reasons in batches:
                self._leave_out([f"{title}/{domain.names[i]}: {reason}" for i, reason in reasons.items()])
                bar.update(len(indices))
                shard = indices[0] // SHARD
                begun[shard].append((indices, z, reasons))
                if indices[-1] == parts[shard][-1]:
                    done = begun.pop(shard)
                    _check_unchanged(domain, parts[shard], title)
                    yield shard, torch.cat([z for _, z, _ in done]), {i for _, _, bad in done for i in bad}

    def _entry(self, domain: Domain, title: str) -> Entry | None:
        if self.store is None:
            return None
        corrupted = f", {domain.corruption}" if domain.corruption else ""
        return self.store.entry(image_key(self.encoder.identity, domain), len(domain), f"{title}{corrupted}")


def _check_unchanged(domain: Domain, rows: range, title: str) -> None:
    """Refuse files that have changed since they were checked: the store would keep them under the wrong key."""
    files = ((i, domain.picture(i)) for i in rows)
    changed = [domain.names[i] for i, file in files if isinstance(file, str) and mark(file) != domain.marks[i]]
    if changed:
        raise ValueError(f"{title}/{changed[0]} changed during the run; run again when the files stay as they are")
