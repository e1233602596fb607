"""True classes in a file, for scoring only: what ``adapt`` and ``eval`` take as ``--labels``."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from clip_tca.core.remote import Location
from clip_tca.core.tensors import check_labels
from clip_tca.datasets import torch_file


def read_labels(path: Location, classes: int) -> Tensor:
    """Whole numbers below ``classes`` from a ``.npy``, ``.pt`` or ``.pth`` file, or a text file with one on a line."""
    if not path.is_file():
        raise FileNotFoundError(f"labels: {path} is not a file")
    suffix = path.suffix.lower()
    try:
        if suffix in torch_file.SUFFIXES:
            labels = torch_file.read_tensor(path)
        elif suffix == ".npy":
            with path.open("rb") as file:
                labels = torch.from_numpy(np.load(file, allow_pickle=False))
        else:
            labels = torch.tensor([int(word) for word in path.read_text(encoding="utf-8").split()], dtype=torch.int64)
    except Exception as error:  # NumPy parses the header as Python and says whatever its parser says
        raise ValueError(f"labels: {path} is not a list of whole numbers ({error or type(error).__name__})") from None
    return check_labels(labels, labels.numel(), classes, torch.device("cpu"))
