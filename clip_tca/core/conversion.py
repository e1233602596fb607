"""Embeddings as they come: columns, tables, lists and outputs of models, as one tensor or array.

No library is imported for it: objects of pandas, polars, pyarrow, datasets and transformers are recognized by their
methods.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clip_tca.core.checks import one_line

IMAGES = ("image_embeds", "image_features", "pooler_output")
TEXTS = ("text_embeds", "text_features", "pooler_output")
"""What transformers and open_clip call the embeddings in a model's output, in order of preference."""


def as_array(z: Any, name: str = "embeddings") -> Tensor | np.ndarray:
    """``z`` as a tensor or array, not copied where it need not be; lists of Python's numbers become float32.

    ``z`` is a tensor or array, a list of vectors, a column of pandas, polars, pyarrow or datasets, a table of numbers,
    anything with ``__dlpack__`` or ``__array__``, a model's output, or a list with only one of these; anything else is
    a TypeError. ``name`` is for errors; ``text`` asks a model's output for embeddings of texts.
    """
    z = pooled(z, name)
    if hasattr(z, "to_numpy"):
        z = z.to_numpy(zero_copy_only=False) if hasattr(z, "to_pylist") else z.to_numpy()  # pyarrow, or others
    elif _is_column(z):
        z = z[:]  # of datasets, in the format that was chosen for it
    if isinstance(z, (list, tuple)) and len(z) == 1 and _rank(z[0]) > 1:
        return as_array(z[0], name)
    if isinstance(z, np.ndarray) and z.dtype == object:
        if z.ndim == 2 and z.shape[1] > 1:
            return _table(z, name)
        z = z.ravel().tolist()
    if isinstance(z, (list, tuple)):
        return _stacked(z, name)
    if isinstance(z, (Tensor, np.ndarray)):
        return z
    if hasattr(z, "__dlpack__"):
        return torch.utils.dlpack.from_dlpack(z)
    if hasattr(z, "__array__") and not hasattr(z, "column_names"):
        return np.asarray(z)
    raise TypeError(_expected(z, name))


def is_batches(z: Any) -> bool:
    """Whether ``z`` is an iterable of batches, and not one matrix in some form."""
    if isinstance(z, (Mapping, str, bytes)) or any(hasattr(z, name) for name in ("shape", "to_numpy")):
        return False
    if isinstance(z, Sequence):
        return len(z) == 0 or _rank(z[0]) > 1
    return isinstance(z, Iterable)


def holds_tensors(z: Any) -> bool:
    """Whether :func:`as_array` makes a tensor of ``z``; anything else is answered by arrays."""
    z = pooled(z)
    if (_is_column(z) or isinstance(z, (list, tuple))) and len(z):
        return holds_tensors(z[0])
    others = isinstance(z, np.ndarray) or hasattr(z, "to_numpy")
    return not others and hasattr(z, "__dlpack__")


def pooled(output: Any, name: str = "embeddings") -> Any:
    """The embeddings in a model's output, an object or a dictionary; anything else as it is."""
    if isinstance(output, (Tensor, np.ndarray)):
        return output
    by_key = isinstance(output, Mapping) and not hasattr(output, "toarray")  # a sparse matrix can be a dictionary
    for key in TEXTS if name == "text" else IMAGES:
        embeddings = output.get(key) if by_key else getattr(output, key, None)
        if embeddings is not None:
            return embeddings
    return output


def as_number(name: str, value: Any) -> float:
    """A finite number that may come as a tensor or parameter of one element, such as ``model.logit_scale.exp()``."""
    arrays = (Tensor, np.ndarray, np.generic)
    single = value.item() if isinstance(value, arrays) and math.prod(value.shape) == 1 else value
    if isinstance(single, bool) or not isinstance(single, (int, float)) or not abs(single) < float("inf"):
        raise ValueError(f"{name}: {one_line(repr(value))}; a number is needed, or a tensor of one")
    return float(single)


def _stacked(rows: Sequence[Any], name: str) -> Tensor | np.ndarray:
    first = rows[0] if len(rows) else 0.0
    try:
        matrix = torch.stack(list(rows)) if isinstance(first, Tensor) else np.asarray(rows)
    except (TypeError, ValueError, RuntimeError):
        lengths = [len(row) if _rank(row) else 0 for row in rows]
        odd = next((row for row, length in enumerate(lengths) if length != lengths[0]), None)
        if odd is None:
            raise TypeError(_expected(first, name)) from None
        raise ValueError(
            f"{name}: row {odd} has {lengths[odd]} numbers, row 0 has {lengths[0]}; leave out rows that are missing "
            "(z.dropna() in pandas), or encode them again"
        ) from None
    if isinstance(matrix, Tensor):
        return matrix
    if matrix.dtype.kind in "OUS":
        raise TypeError(_expected(first, name))
    python_numbers = matrix.dtype == np.float64 and not isinstance(first, np.ndarray)  # they have no dtype of their own
    return matrix.astype(np.float32) if python_numbers else matrix


def _table(z: np.ndarray, name: str) -> np.ndarray:
    try:
        return z.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: not all are numbers ({one_line(error)}); choose the column of embeddings: z['NAME']"
        ) from None


def _expected(z: Any, name: str) -> str:
    fix = "pass of a table z['NAME'], of a sparse matrix z.toarray(), of anything else np.asarray(z, dtype='float32')"
    if isinstance(z, (str, os.PathLike)):
        fix = "read the file first: np.load(z), or clip_tca.encode(z) for pictures"
    return f"{name}: expected a tensor, an array or a list or column of vectors, got {type(z).__name__}; {fix}"


def _rank(value: Any) -> int:
    """Dimensions of an array, of nested lists or of a column of vectors; 0 for anything else."""
    value = pooled(value)
    if isinstance(value, (list, tuple)):
        return 1 + (_rank(value[0]) if len(value) else 0)
    return 2 if hasattr(value, "to_numpy") else getattr(value, "ndim", 0)


def _is_column(z: Any) -> bool:
    return isinstance(z, Sequence) and not isinstance(z, (str, bytes, list, tuple)) and not hasattr(z, "to_numpy")
