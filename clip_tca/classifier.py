"""g: classification by similarity to text prompts, p = softmax(scale · z · textᵀ)."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from clip_tca.core.tensors import CHUNK, Array, check_rows, chunks, compute_dtype, exact, is_fake, like, to_tensor, unit


class ZeroShotClassifier:
    """A linear classifier whose weights are text embeddings.

    ``logits`` is linear in ``z``: it does not rescale the rows. The adapters do that (``normalize=True``).

    Attributes:
        text: ``(c, d)`` unit text embeddings, one row for each class.
        scale: The model's logit scale (100 for OpenAI's CLIP).
    """

    def __init__(self, text: Tensor | np.ndarray, scale: float = 100.0) -> None:
        """Take ``text`` as ``(c, d)``, or as ``(templates, c, d)``, which is averaged over the templates.

        Each text embedding is normalised, the templates are averaged and the mean is normalised again, as CLIP's
        own prompt ensembles are.
        """
        rows = to_tensor(text, "text")
        if rows.ndim not in (2, 3):
            raise ValueError(f"text: expected (classes, d) or (templates, classes, d), got shape {tuple(rows.shape)}")
        check_rows(rows.flatten(0, -2), name="text")
        if rows.shape[-2] < 2:
            raise ValueError(f"text: {rows.shape[-2]} class; at least 2 are needed to classify")
        empty = (rows == 0).all(dim=-1).reshape(-1)
        if not is_fake(rows) and bool(empty.any()):
            raise ValueError(f"text: row {int(empty.nonzero()[0, 0])} is all zeros; every class needs a text embedding")
        if not (isinstance(scale, (int, float, np.number)) and 0 < scale < float("inf")):
            raise ValueError(f"scale: {scale}; a positive number is needed (100 for OpenAI's CLIP)")
        exact_rows = unit(exact(rows))
        mean = exact_rows.mean(dim=0) if rows.ndim == 3 else exact_rows
        self.text = unit(mean).to(compute_dtype(rows.dtype))
        self.scale = float(scale)

    @property
    def classes(self) -> int:
        """Number of classes c."""
        return self.text.shape[0]

    @property
    def dim(self) -> int:
        """Dimension d of the embeddings."""
        return self.text.shape[1]

    def fingerprint(self) -> str:
        """A short hash of texts and scale, kept in saved states to notice that they belong to other prompts."""
        content = self.text.cpu().to(torch.float32).numpy().tobytes() + str(self.scale).encode()
        return hashlib.sha256(content).hexdigest()[:16]

    def logits(self, z: Array) -> Array:
        """scale · z · textᵀ, ``(n, c)``, in float32 (float64 for float64 input)."""
        rows = to_tensor(z)
        check_rows(rows, self.dim)
        weight = self.scale * self.text.to(rows.device, compute_dtype(rows.dtype))
        return like(torch.cat([part.to(weight.dtype) @ weight.T for part in rows.split(CHUNK)]), z)

    def probabilities(self, z: Array) -> Array:
        """softmax of :meth:`logits`, ``(n, c)``."""
        return like(to_tensor(self.logits(z)).softmax(dim=1), z)

    def predict(self, z: Array) -> Array:
        """The most similar class of each row, ``(n,)``."""
        return like(to_tensor(self.logits(z)).argmax(dim=1), z)

    def log_probabilities(self, z: Tensor) -> Tensor:
        """log-softmax in the dtype of the statistics: what the adapters decide on, the same in any batch split."""
        weight = self.scale * exact(self.text.to(z.device))
        return torch.cat([(part @ weight.T).log_softmax(dim=1) for part in chunks(z)])
