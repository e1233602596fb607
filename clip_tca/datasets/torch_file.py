"""Tensors in a ``.pt`` or ``.pth`` file, as ``torch.save`` writes them. Nothing in the file is run."""

from __future__ import annotations

import torch
from torch import Tensor

from clip_tca.core.remote import Location
from clip_tca.datasets.formats.base import damaged, pick_name

SUFFIXES = (".pt", ".pth")


def read_tensor(path: Location, name: str | None = None, texts: bool = False) -> Tensor:
    """The tensor of a file, or of several in a dictionary the one called ``name``; None looks for the usual names."""
    try:
        with path.open("rb") as file:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # a pickle raises anything
        remedy = "only tensors are read, and dictionaries of them: save those by torch.save"
        raise damaged(path, error, remedy) from None
    if isinstance(content, Tensor) and name is None:
        return content.detach()
    tensors = (
        {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
        if isinstance(content, dict)
        else {}
    )
    if not tensors:
        what = "one tensor, without a name" if isinstance(content, Tensor) else f"a {type(content).__name__}"
        raise ValueError(f"{path}: {what}; a tensor or a dictionary of tensors is needed")
    return tensors[pick_name(path, list(tensors), name, "tensor", texts)].detach()
