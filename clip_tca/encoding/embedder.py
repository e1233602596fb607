"""From images to embeddings: worker processes decode, the encoder encodes, every finished shard goes to the store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from clip_tca.core.processes import current
from clip_tca.core.progress import Progress
from clip_tca.core.tensors import unit
from clip_tca.datasets.image_set import Domain, ImageSet
from clip_tca.datasets.pictures import fault, mark
from clip_tca.datasets.prompts import Prompts
from clip_tca.encoding.base import Encoder
from clip_tca.encoding.cpu_agreement import agrees_with_cpu
from clip_tca.encoding.decoding import loader
from clip_tca.encoding.store import Entry, Store, image_key, shards, text_key

log = logging.getLogger("clip_tca")

BATCH = 64
"""Images encoded together."""

TEXT_BATCH = 256
"""Texts encoded together."""

ON_CPU = 16
"""At most so many on a CPU: larger activations are fetched anew from the system, page by page, for every layer."""

LISTED = 20
"""Bad images that an error names."""


@dataclass
class Embedder:
    """Embeds data sets and prompts with an encoder, and keeps the embeddings in a store, if there is one.

    Images that can't be read are an error, or left out and counted if ``skip_bad``. ``workers`` are processes that
    decode; None is the number of cores, half of it for a model on the CPU, at most 8. ``batch`` images are encoded
    together; it is halved when the device runs out of memory. ``compare`` checks a device against the CPU once, and
    stores nothing if they differ. ``encoded`` counts images without those found in the store.
    """

    encoder: Encoder
    store: Store | None = None
    skip_bad: bool = False
    workers: int | None = None
    batch: int = BATCH
    progress: bool = False
    compare: bool = False
    encoded: int = field(default=0, init=False)
    left_out: int = field(default=0, init=False)

    @property
    def _together(self) -> int:
        """Images that are decoded and encoded together; not more, or the model would wait long for the first."""
        return min(self.batch, ON_CPU) if self.encoder.device.type == "cpu" else self.batch

    @cached_property
    def _storable(self) -> bool:
        """Whether embeddings may be kept; asked when the first ones were made."""
        return not self.compare or agrees_with_cpu(self.encoder)

    def texts(self, prompts: Prompts) -> Tensor:
        """Text embeddings ``(templates, classes, d)``, in float32 on the CPU.

        Descriptions are averaged for each class, as unit vectors, and count as one template.
        """
        key = text_key(self.encoder.identity, prompts) if self.store else {}
        rows = self.store.texts(key) if self.store else None
        if rows is None:
            rows = self._encode_texts(prompts.texts())
            if self._storable and self.store:
                self.store.keep_texts(key, rows)
        if prompts.descriptions:
            parts = unit(rows).split([len(sentences) for sentences in prompts.descriptions])
            return torch.stack([part.mean(dim=0) for part in parts])[None]
        return rows.reshape(len(prompts.templates), len(prompts.classes), -1)

    def _encode_texts(self, texts: list[str]) -> Tensor:
        """Embeddings of texts, in the batches that encoders make themselves."""
        parts = []
        with self._bar(len(texts), "prompts", "text") as bar:
            for start in range(0, len(texts), TEXT_BATCH):
                batch = texts[start : start + TEXT_BATCH]
                parts.append(self.encoder.encode_texts(batch).cpu())
                bar.update(len(batch))
        return torch.cat(parts)

    def pictures(self, data: ImageSet) -> dict[str, Tensor]:
        """Embeddings ``(n, d)`` of every domain, in float32 on the CPU.

        Images that can't be read are removed from ``data`` with ``skip_bad``, and an error without. The headers of all
        files are checked before anything is encoded.
        """
        for name, domain in data.domains.items():
            if not len(domain):
                raise ValueError(f"{data.name}/{name}: no images")
        if not all(entry is not None and entry.complete() for entry in self._entries(data).values()):
            self._check(data)
        entries = self._entries(data)
        z: dict[str, Tensor] = {}
        for name, domain in data.domains.items():
            rows, unread = self._domain(domain, entries[name], f"{data.name}/{name}")
            if unread:
                keep = [i for i in range(len(domain)) if i not in unread]
                data.domains[name], rows = domain.subset(keep), rows[keep]
            if not len(rows):
                raise ValueError(f"{data.name}/{name}: none of its images can be read")
            z[name] = rows
        return z

    def _check(self, data: ImageSet) -> None:
        """Read every header, so that a broken file is found before hours of encoding."""
        bad: list[str] = []
        keep: dict[str, list[int]] = {}
        with self._bar(sum(map(len, data.domains.values())), "checking") as bar:
            for name, domain in data.domains.items():
                keep[name] = []
                for index in range(len(domain)):
                    reason = _fault(domain, index)
                    if reason is None:
                        keep[name].append(index)
                    else:
                        bad.append(f"{name}/{domain.names[index]}: {reason}")
                    bar.update()
        if bad:
            self._leave_out(bad, logged=current().first)  # every process has checked all files
            data.domains.update({name: domain.subset(keep[name]) for name, domain in data.domains.items()})

    def _leave_out(self, bad: list[str], logged: bool = True) -> None:
        if not self.skip_bad:
            more = f"\n  … and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
            lines = "".join(f"\n  {line}" for line in bad[:LISTED])
            raise ValueError(
                f"{len(bad)} images can't be read; repair or remove them, or leave them out: --skip-bad{lines}{more}"
            )
        self.left_out += len(bad)
        for line in bad if logged else ():
            log.warning("left out: %s", line)

    def _domain(self, domain: Domain, entry: Entry | None, title: str) -> tuple[Tensor, set[int]]:
        """Rows of a domain, and the positions of images that turned out to be bad when they were decoded."""
        parts, processes = shards(len(domain)), current()
        rows = [entry.read(i) if entry else None for i in range(len(parts))]
        unread: set[int] = set()
        if any(processes.all_gather(any(part is None for part in rows))):
            with entry.lock() if entry and processes.first else nullcontext():
                if entry:  # another run may have encoded them while this one waited
                    rows = [part if part is not None else entry.read(i) for i, part in enumerate(rows)]
                missing = processes.broadcast([i for i, part in enumerate(rows) if part is None])
                share = missing[processes.rank :: processes.size]
                new = processes.together(lambda: self._encode(domain, share, entry, title))
                for encoded in processes.all_gather(new):
                    for i, (shard, bad) in encoded.items():
                        rows[i] = shard
                        unread |= bad
                        self.encoded += len(parts[i])
        return torch.cat([part for part in rows if part is not None]), unread

    def _encode(
        self, domain: Domain, missing: list[int], entry: Entry | None, title: str
    ) -> dict[int, tuple[Tensor, set[int]]]:
        """The shards ``missing``, each with the positions of images that could not be read."""
        parts = shards(len(domain))
        encoded: dict[int, tuple[Tensor, set[int]]] = {}
        with self._bar(sum(len(parts[i]) for i in missing), title) as bar:
            new = self._batches(domain, [parts[i] for i in missing], bar, title)
            for i in missing:
                batches = [next(new) for _ in range(0, len(parts[i]), self._together)]
                shard = torch.cat([z for z, _ in batches])
                bad = {position for _, positions in batches for position in positions}
                _check_unchanged(domain, parts[i], title)
                if self._storable and entry and not bad:  # otherwise a repaired image would not be read again
                    entry.write(i, shard)
                encoded[i] = shard, bad
        return encoded

    def _batches(
        self, domain: Domain, parts: list[range], bar: Progress, title: str
    ) -> Iterator[tuple[Tensor, list[int]]]:
        """Embeddings batch by batch, with the positions of images that could not be read, whose rows are zero.

        No batch crosses a shard, so a resumed run has the same batches as one that was not interrupted.
        """
        size = self._together
        batches = [list(part[i : i + size]) for part in parts for i in range(0, len(part), size)]
        loaded = loader(domain, self.encoder.transform, batches, self.workers, self.encoder.device)
        for indices, (images, reasons) in zip(batches, loaded, strict=True):
            if reasons:
                self._leave_out([f"{title}/{domain.names[indices[i]]}: {reason}" for i, reason in reasons.items()])
            good = [i for i in range(len(indices)) if i not in reasons]
            rows, size = self._halving(images, size) if good else (torch.zeros(0, self.encoder.dim), size)
            z = rows.new_zeros(len(indices), rows.shape[1])
            z[good] = rows
            bar.update(len(indices))
            yield z, [indices[i] for i in reasons]

    def _halving(self, images: Tensor, size: int) -> tuple[Tensor, int]:
        """Encode ``size`` images at a time; half as many from then on, if the device runs out of memory."""
        parts: list[Tensor] = []
        start = 0
        while start < len(images):
            try:
                parts.append(self.encoder.encode_images(images[start : start + size]).cpu())
                start += size
            except torch.cuda.OutOfMemoryError:
                if size == 1:
                    raise
                size //= 2
                torch.cuda.empty_cache()
                log.warning("out of memory; going on with %d images at a time", size)
        z = torch.cat(parts)
        if not bool(torch.isfinite(z).all()):
            bad = int((~torch.isfinite(z)).any(dim=1).sum())
            raise ValueError(
                f"{bad} of {len(z)} embeddings are not finite in {self.encoder.precision}; use --precision fp32, "
                "and if it is that already, check the weights"
            )
        return z, size

    def _entries(self, data: ImageSet) -> dict[str, Entry | None]:
        if self.store is None:
            return dict.fromkeys(data.domains)
        encoder = self.encoder.identity
        entries: dict[str, Entry | None] = {}
        for name, domain in data.domains.items():
            corrupted = f", {domain.corruption}" if domain.corruption else ""
            description = {"title": f"{data.name}/{name}{corrupted}", "pretrained": encoder.pretrained}
            entries[name] = self.store.entry(image_key(encoder, domain), len(domain), description)
        return entries

    def _bar(self, total: int, title: str, unit: str = "image") -> Progress:
        return Progress(total, title, unit, self.progress and current().first)


def _check_unchanged(domain: Domain, rows: range, title: str) -> None:
    """Refuse files that have changed since they were checked: the store would keep them under the wrong key."""
    files = ((i, domain.picture(i)) for i in rows)
    changed = [domain.names[i] for i, file in files if isinstance(file, str) and mark(file) != domain.marks[i]]
    if changed:
        more = f" and {len(changed) - 1} more" if changed[1:] else ""
        raise ValueError(
            f"{title}/{changed[0]}{more} changed during the run; run again when the files stay as they are"
        )


def _fault(domain: Domain, index: int) -> str | None:
    try:
        return fault(domain.picture(index))
    except OSError as error:
        return error.strerror or str(error)
