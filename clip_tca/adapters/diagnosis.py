"""What a fitted adapter says of itself, in a few numbers that need no labels.

How large the shift was, how far embeddings move, what was chosen of each class and how certain that was. All comes from
the tensors of a saved state (:mod:`clip_tca.adapters.state`): for z′ = (z − μ_t)W + μ̂_s the mean squared move is

    E‖z′ − z‖² = ‖μ̂_s − μ_t‖² + tr((W − I)ᵀ Σ_t (W − I)),

exactly, from the statistics alone. Distances are given in units of the *spread* √tr Σ_t, the root mean square distance
of the embeddings from their mean.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from clip_tca.adapters import residual_mlp
from clip_tca.adapters.base import Adapter
from clip_tca.adapters.pseudo_source import select
from clip_tca.adapters.statistics import Moments, coral_distance
from clip_tca.core.tensors import chunks, exact

Diagnosis = dict[str, Any]
"""Numbers, lists of numbers for each class, and None where a figure can't be told; ready for JSON."""


def diagnose(adapter: Adapter, before: Tensor | None = None, after: Tensor | None = None) -> Diagnosis:
    """The diagnosis of a fitted adapter.

    Args:
        adapter: A fitted adapter.
        before: ``(n,)`` classes predicted without it, if the rows are at hand.
        after: ``(n,)`` classes predicted with it.
    """
    adapter._update()
    text = adapter.classifier.scale * exact(adapter.classifier.text.to(adapter._device)).T
    found = diagnose_state(
        type(adapter).__name__, {**adapter._solution_state(), **adapter._state()}, vars(adapter), adapter.n_seen_, text
    )
    if before is not None and after is not None:
        found["changed"] = int((before != after).sum()) / len(after)
    return found


def diagnose_state(
    kind: str, tensors: dict[str, Tensor], options: dict[str, Any], seen: int, text: Tensor | None = None
) -> Diagnosis:
    """The diagnosis of a saved state.

    Args:
        kind: Class of the adapter.
        tensors: What it saved.
        options: Its options.
        seen: Number of embeddings seen.
        text: ``(d, c)`` class texts times scale; without them they are found from the map where it holds them.

    Returns:
        ``kind``, ``embeddings``, ``dim``, ``classes``, ``spread``, ``mean_shift`` and ``movement`` (of the spread),
        ``predicted`` (zero-shot predictions of each class), ``changed`` (share of predictions), and for LinearTCA and
        MLPTCA ``correlation_distance``, ``covariance_shift`` (‖Σ_t − Σ̂_s‖ / ‖Σ_t‖), ``chosen`` (of each class),
        ``uncertainty_mean`` and ``uncertainty_max`` of the chosen (0: certain, 1: a pure guess); for ConditionalTCA
        ``counts`` (soft, of each class), ``between`` (share of the variance between classes) and ``temperature``.

    Raises:
        ValueError: If a part of the state is missing.
    """
    about = {"kind": kind, "embeddings": seen}
    try:
        return about | (_conditional(tensors, text) if kind == "ConditionalTCA" else _aligned(tensors, options, text))
    except (KeyError, IndexError, RuntimeError) as error:
        raise ValueError(f"a part of the saved state is missing or wrong ({error}); save it again") from None


def movement(scatter: Tensor, n: int, shift: Tensor, w: Tensor) -> Tensor:
    """Mean squared move of n rows by z′ = (z − μ)W + μ + ``shift``, from their centred scatter ``(d, d)``."""
    change = w - torch.eye(len(w), dtype=w.dtype, device=w.device)
    return shift @ shift + (change * (scatter @ change)).sum() / n


def class_texts(matrix: Tensor, weight: Tensor) -> Tensor | None:
    """``(d, c)`` class texts T (up to a common vector) of z ↦ z·``weight``, where ``weight`` = ``matrix`` T.

    That is how LinearTCA's and ConditionalTCA's classifiers are made, so their states hold the texts implicitly.
    None where the map can't be inverted.
    """
    found, singular = torch.linalg.solve_ex(matrix, weight)
    if int(singular) or not bool(torch.isfinite(found).all()):
        return None
    error = (matrix @ found - weight).norm()
    return found if float(error) <= 1e-6 * float(weight.norm()) else None


def _aligned(tensors: dict[str, Tensor], options: dict[str, Any], text: Tensor | None) -> Diagnosis:
    """Of LinearTCA and MLPTCA."""
    part = {name.removeprefix("solution."): t for name, t in tensors.items() if name.startswith("solution.")}
    n, scatter = int(tensors["moments.n"]), tensors["moments.scatter"]
    spread = (scatter.diagonal().sum() / n).sqrt()
    sigmas = part["covariance"], part["pseudo_source_covariance"]
    shift = part["pseudo_source_mean"] - part["mean"]
    rows = tensors.get("rows.rows", tensors.get("sample.rows"))
    if "mlp.0" in part:
        moved = _mlp_moved(exact(tensors["rows.rows"]), part)
        squares = (moved - exact(tensors["rows.rows"])).square().sum(dim=1).mean()
        after = None if text is None else (moved @ text).argmax(dim=1)
    else:
        squares = movement(scatter, n, part["offset"] + part["mean"] @ part["W"] - part["mean"], part["W"])
        after = None if rows is None else _argmax(rows, part["weight"], part["bias"])
        text = class_texts(part["W"], part["weight"]) if text is None else text
        grouped = options["balance"] != "global" and len(tensors["bank.rows"]) > 0
        if text is not None and grouped and not torch.equal(_argmax(tensors["bank.rows"], text), tensors["bank.group"]):
            text = None  # another method's logits made the predictions
    return {
        "dim": len(shift),
        "classes": len(part["pseudo_source_counts"]),
        "spread": float(spread),
        "mean_shift": _ratio(shift.norm(), spread),
        "correlation_distance": float(coral_distance(*sigmas)),
        "covariance_shift": _ratio((sigmas[0] - sigmas[1]).norm(), sigmas[0].norm()),
        "movement": _ratio(squares.clamp_min(0).sqrt(), spread),
        "predicted": tensors["bank.predicted"].tolist(),
        "chosen": part["pseudo_source_counts"].tolist(),
        **_uncertainty(tensors, options, part),
        "changed": _changed(rows, text, after),
    }


def _uncertainty(tensors: dict[str, Tensor], options: dict[str, Any], part: dict[str, Tensor]) -> Diagnosis:
    """Of the chosen, as a share of what a pure guess has; None where the state does not tell which were chosen."""
    counts, group = part["pseudo_source_counts"], tensors["bank.group"]
    quota = counts.sum().reshape(1) if options["balance"] == "global" else counts
    index = select(tensors["bank.score"], group, quota)
    found = {"uncertainty_mean": None, "uncertainty_max": None}
    if len(index) and len(index) == int(counts.sum()):
        mean = Moments.of(tensors["bank.rows"][index]).mean
        if torch.allclose(mean, part["pseudo_source_mean"], atol=1e-6):
            guess = math.log(len(counts)) if options["uncertainty"] == "entropy" else 1 - 1 / len(counts)
            score = tensors["bank.score"][index] / guess
            return {"uncertainty_mean": float(score.mean()), "uncertainty_max": float(score.max())}
    return found


def _conditional(tensors: dict[str, Tensor], text: Tensor | None) -> Diagnosis:
    part = {name.removeprefix("solution."): t for name, t in tensors.items() if name.startswith("solution.")}
    rows, counts = tensors["sample.rows"], part["counts"]
    moments = Moments.of(rows)
    spread = (moments.scatter.diagonal().sum() / moments.n).sqrt()
    shift = part["offset"] + moments.mean @ part["matrix"] - moments.mean
    squares = movement(moments.scatter, moments.n, shift, part["matrix"])
    weight = part["weight"] - part["weight"].mean(dim=1, keepdim=True)
    if text is None and len(counts) <= len(shift):
        text = class_texts(part["matrix"], weight)
    before = None if text is None else _argmax(rows, text)
    gaps = (part["means"] - moments.mean).square().sum(dim=1)
    return {
        "dim": len(shift),
        "classes": len(counts),
        "spread": float(spread),
        "mean_shift": _ratio(shift.norm(), spread),
        "movement": _ratio(squares.clamp_min(0).sqrt(), spread),
        "predicted": None if before is None else torch.bincount(before, minlength=len(counts)).tolist(),
        "counts": [round(count, 2) for count in counts.tolist()],
        "between": _ratio((counts * gaps).sum() / moments.n, spread.square()),
        "temperature": float(part["temperature"]),
        "changed": _changed(rows, text, _argmax(rows, part["weight"], part["bias"])),
    }


def _mlp_moved(rows: Tensor, part: dict[str, Tensor]) -> Tensor:
    """Rows through the linear part and the perceptron."""
    layers = [exact(part[f"mlp.{i}"]) for i in range(sum(name.startswith("mlp.") for name in part))]
    frame = exact(part["centre"]), exact(part["scale"])
    return residual_mlp.apply(torch.addmm(part["offset"], rows, part["W"]), frame, layers)


def _argmax(rows: Tensor, weight: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    return torch.cat([(part @ weight + bias).argmax(dim=1) for part in chunks(rows)])


def _changed(rows: Tensor | None, text: Tensor | None, after: Tensor | None) -> float | None:
    if rows is None or text is None or after is None:
        return None
    return int((_argmax(rows, text) != after).sum()) / len(after)


def _ratio(value: Tensor, unit: Tensor) -> float | None:
    """In units of ``unit``; None where all embeddings are the same and there is none."""
    return float(value / unit) if float(unit) > 0 else None
