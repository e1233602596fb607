"""Embeddings as they come: columns, tables, lists and outputs of models, as one tensor or array.

No library is imported for it: objects of pandas, polars, pyarrow, datasets and transformers are recognized by their
methods. For anything else, the error message gives the line of code that converts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from mimetypes import guess_type
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clip_tca.core.checks import one_line

IMAGES = ("image_embeds", "image_features", "pooler_output")
TEXTS = ("text_embeds", "text_features", "pooler_output")
"""What transformers and open_clip call the embeddings in a model's output, in order of preference."""

COLUMNS = ("to_numpy", "__array__", "__dlpack__", "column_names", "toarray")
"""By one of these an object is known to be a matrix, a column or a table, though it may be iterable too."""


def as_array(z: Any, name: str = "embeddings") -> Tensor | np.ndarray:
    """``z`` as a tensor or array, not copied where it need not be; lists of Python's numbers become float32.

    Args:
        z: A tensor or array, a list of vectors, a column of pandas, polars, pyarrow or datasets, a table of numbers,
            anything with ``__dlpack__`` or ``__array__``, a model's output, or a list or tuple with only one of these.
        name: What it is called in errors; ``text`` asks a model's output for embeddings of texts.

    Raises:
        TypeError: If it is something else.
        ValueError: If the vectors in it differ in length, or some are missing.
    """
    z = pooled(z, name)
    if isinstance(z, Tensor):
        return z
    if isinstance(z, np.ndarray):
        return z if z.dtype != object else _from_objects(z, name)
    if hasattr(z, "column_names") and not hasattr(z, "to_numpy"):  # a Table of pyarrow, a Dataset
        raise TypeError(f'{name}: a table ({_kind(z)}); choose its column of embeddings: z["COLUMN"]')
    if hasattr(z, "to_pylist"):  # pyarrow copies only if it is allowed to
        return as_array(z.to_numpy(zero_copy_only=False), name)
    if hasattr(z, "to_numpy"):
        return as_array(np.asarray(z.to_numpy()), name)
    if hasattr(z, "__dlpack__"):
        return torch.utils.dlpack.from_dlpack(z)
    if hasattr(z, "__array__"):
        return as_array(np.asarray(z), name)
    if isinstance(z, Sequence) and not isinstance(z, (str, bytes)):
        return _from_sequence(z, name)
    raise TypeError(f"{name}: {_advice(z)}")


def is_batches(z: Any) -> bool:
    """Whether ``z`` is an iterable of batches, and not one matrix in some form."""
    if isinstance(z, (Tensor, np.ndarray, Mapping, str, bytes)) or pooled(z) is not z:
        return False
    if any(hasattr(z, name) for name in COLUMNS):
        return False
    if isinstance(z, Sequence):
        return len(z) == 0 or _depth(z[0]) not in (0, 1)
    return isinstance(z, Iterable)


def holds_tensors(z: Any) -> bool:
    """Whether :func:`as_array` makes a tensor of ``z``; anything else is answered by arrays."""
    z = pooled(z)
    if isinstance(z, (list, tuple)) and len(z):
        return holds_tensors(z[0])
    if isinstance(z, (Tensor, np.ndarray)) or hasattr(z, "to_numpy"):
        return isinstance(z, Tensor)
    if isinstance(z, Sequence) and not isinstance(z, (str, bytes)) and len(z):  # a column of datasets
        return isinstance(z[0], Tensor)
    return hasattr(z, "__dlpack__")


def pooled(output: Any, name: str = "embeddings") -> Any:
    """The embeddings in a model's output, an object or a dictionary; anything else as it is."""
    if isinstance(output, (Tensor, np.ndarray)):
        return output
    by_key = isinstance(output, Mapping) and not hasattr(output, "toarray")  # a sparse matrix can be a dictionary
    for key in TEXTS if name == "text" else IMAGES:
        found = output.get(key) if by_key else getattr(output, key, None)
        if found is not None:
            return found
    return output


def as_number(name: str, value: Any) -> float:
    """A number that may come as a tensor or parameter of one element, such as ``model.logit_scale.exp()``.

    Raises:
        ValueError: If it is none, or not finite.
    """
    arrays = (Tensor, np.ndarray, np.generic)
    single = value.item() if isinstance(value, arrays) and math.prod(value.shape) == 1 else value
    if isinstance(single, bool) or not isinstance(single, (int, float)) or not abs(single) < float("inf"):
        raise ValueError(f"{name}: {one_line(repr(value))}; a number is needed, or a tensor of one")
    return float(single)


def _from_sequence(z: Sequence[Any], name: str) -> Tensor | np.ndarray:
    if not isinstance(z, (list, tuple)):
        whole = z[:]  # a column of datasets, in the format that was chosen for it
        z = whole if isinstance(whole, (list, tuple)) else [whole]
    first = z[0] if len(z) else None
    if len(z) == 1 and _depth(first) not in (0, 1):
        return as_array(first, name)
    if len(z) > 1 and _depth(first) > 1:
        joined = "torch.cat(list(z))" if isinstance(first, Tensor) else "np.concatenate(list(z))"
        raise TypeError(
            f"{name}: a {_kind(z)} of {len(z)} matrices; pass the one with the embeddings, as in z[0], or the rows of "
            f"all: {joined}"
        )
    if first is not None and _depth(first) < 0:
        raise TypeError(f"{name}: a {_kind(z)} of {_kind(first)}; {_advice(first, 'z[0]')}")
    return _stacked(z, name)


def _from_objects(z: np.ndarray, name: str) -> Tensor | np.ndarray:
    """A column of vectors, as arrays hold it; a table has one more dimension."""
    if z.ndim == 2 and z.shape[1] == 1:
        z = z[:, 0]
    if z.ndim != 1 or (len(z) and isinstance(z[0], (str, bytes))):
        try:
            return np.asarray(z, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f'{name}: not all are numbers ({one_line(error)}); choose the column of embeddings: z["COLUMN"]'
            ) from None
    return _stacked(z.tolist(), name)


def _stacked(vectors: Sequence[Any], name: str) -> Tensor | np.ndarray:
    """Vectors as a matrix; numbers as a vector."""
    if absent := [i for i, v in enumerate(vectors) if v is None or _kind(v) == "NAType" or (_depth(v) == 0 and v != v)]:
        raise ValueError(
            f"{name}: row {absent[0]} is missing; leave such rows out: z.dropna() in pandas, z.drop_nulls() in polars, "
            "z.drop_null() in pyarrow"
        )
    lengths = [len(vector) if _depth(vector) else 0 for vector in vectors]
    if odd := [i for i, length in enumerate(lengths) if length != lengths[0]]:
        raise ValueError(
            f"{name}: row {odd[0]} has {lengths[odd[0]]} numbers, those before it {lengths[0]}; leave it out, or "
            "encode it again"
        )
    if len(vectors) and isinstance(vectors[0], Tensor):
        return torch.stack(list(vectors))
    made = np.asarray(vectors)
    plain = not (len(vectors) and isinstance(vectors[0], np.ndarray))  # Python's numbers have no dtype of their own
    return made.astype(np.float32) if plain and made.dtype == np.float64 else made


def _depth(value: Any) -> int:
    """Dimensions of an array or of nested lists; -1 for anything else."""
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim
    if isinstance(value, (int, float, np.generic)):
        return 0
    if isinstance(value, (list, tuple)):
        inner = _depth(value[0]) if value else 0
        return inner + 1 if inner >= 0 else -1
    return -1


def _kind(z: Any) -> str:
    return type(z).__name__


def _advice(z: Any, where: str = "z") -> str:
    """What was expected, and the line of code that converts ``z``, which the caller has as ``where``."""
    got = f"expected a torch.Tensor, a numpy.ndarray, a list of vectors or a column of them, got {_kind(z)}"
    if hasattr(z, "toarray"):
        return f"{got}, which is sparse; pass z.toarray()"
    if isinstance(z, Mapping):
        if "last_hidden_state" in z:
            return (
                f"{got} with last_hidden_state; tokens are not in the space of the texts: model.get_image_features(…)"
            )
        keys = ", ".join(map(str, list(z)[:8])) or "nothing"
        return f"{got} with {keys}; pass the embeddings themselves: z[{next(iter(z), 'image_embeds')!r}]"
    if isinstance(z, (str, bytes)) or hasattr(z, "__fspath__"):
        if (guess_type(str(z))[0] or "").startswith("image/"):
            return f"{got}; encode the pictures first: clip_tca.encode(z)"
        return f"{got}; read it first: np.load({where})"
    if isinstance(z, Iterable):
        return f"{got}; fit takes batches, everything else one at a time: [tca.transform(batch) for batch in z]"
    return f'{got}; convert it: np.asarray(z, dtype="float32")'
