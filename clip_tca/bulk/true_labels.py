"""True classes in a file, with which ``adapt`` counts what was right; no method sees them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from clip_tca.core.tensors import check_labels


def read_labels(path: Path, classes: int) -> np.ndarray:
    """True classes from a ``.npy`` file, or from a text file with one number per line."""
    if not path.is_file():
        raise FileNotFoundError(f"labels: {path} is not a file")
    try:
        if path.suffix.lower() == ".npy":
            labels = np.asarray(np.load(path, allow_pickle=False))
        else:
            labels = np.array([int(word) for word in path.read_text(encoding="utf-8").split()], dtype=np.int64)
    except Exception as error:  # NumPy parses the header as Python and says whatever its parser says
        raise ValueError(f"labels: {path} is not a list of whole numbers ({error or type(error).__name__})") from None
    return check_labels(labels, labels.size, classes, torch.device("cpu")).numpy()
