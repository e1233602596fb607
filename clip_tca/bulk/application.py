"""Applies an adapter, fitted or learning, to blocks of embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clip_tca.adapters.base import Adapter
from clip_tca.core.tensors import to_tensor, unit
from clip_tca.datasets.formats.base import Block, Result
from clip_tca.datasets.formats.kinds import Kind


@dataclass(frozen=True)
class Application:
    """Blocks in, results of ``kinds`` out, with the predictions of zero-shot if ``compare``.

    The adapter is fitted; with a ``batch``, it learns from that many rows at a time just before it predicts them.
    """

    adapter: Adapter
    kinds: tuple[Kind, ...]
    device: torch.device
    compare: bool = False
    batch: int | None = None

    def __call__(self, block: Block) -> Result:
        """Adapt a block of finite rows."""
        rows = to_tensor(block.z).to(self.device)
        parts = [self._arrays(part) for part in (rows.split(self.batch) if self.batch else [rows])]
        arrays = parts[0] if len(parts) == 1 else {kind: np.concatenate([p[kind] for p in parts]) for kind in parts[0]}
        return Result(arrays, block.others, self._before(rows) if self.compare else None)

    def _arrays(self, rows: Tensor) -> dict[Kind, np.ndarray]:
        if self.batch:
            self.adapter.partial_fit(rows)
        arrays: dict[Kind, np.ndarray] = {}
        if self.kinds == ("embeddings",) and not self.compare:
            return {"embeddings": self.adapter.transform(rows).cpu().numpy()}
        if "embeddings" in self.kinds:
            moved, logits = self.adapter.adapt(rows)
            arrays["embeddings"] = moved.cpu().numpy()
        else:
            logits = self.adapter.logits(rows)
        best = logits.max(dim=1)
        arrays["labels"] = best.indices.cpu().numpy()
        if "scores" in self.kinds:
            arrays["scores"] = (best.values - logits.logsumexp(dim=1)).exp().cpu().numpy()
        return arrays

    def _before(self, rows: Tensor) -> np.ndarray:
        """What the classifier predicts by itself, for rows as the adapter takes them."""
        inputs = unit(rows) if self.adapter.options()["normalize"] else rows
        return self.adapter.classifier.predict(inputs).cpu().numpy()
