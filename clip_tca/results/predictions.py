"""Predictions as a table, a row for each picture: labels before and after, their confidence, and the runner-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clip_tca.core.files import atomic, write_text
from clip_tca.core.remote import Location

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

SUFFIXES = (".csv", ".parquet", ".json")  # how a table may be written


def prediction_table(
    files: Sequence[str], before: Tensor, after: Tensor, classes: Sequence[str], top: int = 0
) -> pd.DataFrame:
    """The predictions of zero-shot (``before``) and of a method (``after``), logits ``(n, c)`` both.

    Columns: ``file``, ``label`` and its ``confidence``, ``zero_shot`` and ``zero_shot_confidence``, ``changed`` (do
    they differ), ``runner_up``. With ``top`` K also ``label_1``, ``confidence_1`` to ``label_K``, ``confidence_K``, the
    most probable classes. A confidence is a probability of softmax.
    """
    import pandas as pd

    names = pd.Series(list(classes), dtype=object)

    def named(numbers: Tensor) -> Any:
        return names.to_numpy()[numbers.cpu().numpy()]

    old, new = (logits.double().softmax(dim=1) for logits in (before, after))
    (was, first), best = old.max(dim=1), new.topk(min(max(2, top), len(names)), dim=1)
    columns: dict[str, Any] = {
        "file": list(files),
        "label": named(best.indices[:, 0]),
        "confidence": _rounded(best.values[:, 0]),
        "zero_shot": named(first),
        "zero_shot_confidence": _rounded(was),
        "changed": (best.indices[:, 0] != first).cpu().numpy(),
        "runner_up": named(best.indices[:, 1]),
    }
    for rank in range(min(top, len(names))):
        columns[f"label_{rank + 1}"] = named(best.indices[:, rank])
        columns[f"confidence_{rank + 1}"] = _rounded(best.values[:, rank])
    return pd.DataFrame(columns)


def _rounded(values: Tensor) -> Any:
    return values.cpu().numpy().round(6)


def check_table(path: Location) -> None:
    """Raise ValueError if a table can't be written in the format that the name asks for."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: a table ends with {', '.join(SUFFIXES)}; choose such a name")


def write_table(path: Location, table: pd.DataFrame) -> None:
    """Write a table as CSV, Parquet or JSON (a list of rows), by its suffix; whole or not at all."""
    check_table(path)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        with atomic(path) as part:
            table.to_parquet(part, index=False)
    elif suffix == ".json":
        write_text(path, table.to_json(orient="records", indent=1, force_ascii=False) + "\n")
    else:
        write_text(path, table.to_csv(index=False, lineterminator="\n"))
