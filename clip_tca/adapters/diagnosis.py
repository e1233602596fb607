"""Diagnosis of a fitted adapter: a few numbers that need no labels.

They say how large the shift was, how far embeddings move, and which embeddings of each class were selected with which
certainty. The mean squared move by z′ = zW + offset follows from the mean μ and the covariance Σ of the embeddings.
The mean moves by s = offset + μW − μ, and

    E‖z′ − z‖² = ‖s‖² + tr((W − I)ᵀ Σ (W − I)).

Distances are in units of the *spread* √tr Σ, the root mean square distance of the embeddings from their mean.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from clip_tca.adapters.base import Adapter
from clip_tca.adapters.conditional import ConditionalTCA, Constants
from clip_tca.adapters.statistics import EvenSample, coral_distance, moments
from clip_tca.explanation import Diagnosis


def diagnose(adapter: Any, before: Tensor | None = None, after: Tensor | None = None) -> Diagnosis:
    """The diagnosis of a fitted LinearTCA, MLPTCA or ConditionalTCA.

    Args:
        adapter: A fitted adapter.
        before: ``(n,)`` classes predicted without it. By default, predictions are compared on the sample that the
            adapter keeps.
        after: ``(n,)`` classes predicted with it.
    """
    stream = adapter._fitted()
    adapter._settle()
    rows: Any = kept_rows(adapter)
    g, conditional = adapter.g, isinstance(adapter, ConditionalTCA)
    d = adapter.n_features_in_  # the logits of another encoder may stand beside the embeddings
    m = moments(rows[:, :d]) if conditional else stream.observed.moments.total()
    sigma = m.covariance * ((m.n - 1) / m.n)
    spread = sigma.trace().clamp_min(0).sqrt()
    spread = spread * (spread > 1e-12 * m.mean.norm())  # less than that is rounding: all embeddings are the same
    shift, squares = 0 * m.mean, 0 * spread
    if d == g.dim:
        shift, change = adapter.offset_ + m.mean @ adapter.W_ - m.mean, adapter.W_.clone()
        change.diagonal().sub_(1)
        squares = shift @ shift + (change * (sigma @ change)).sum()
    if not adapter.linear:
        shift = adapter.pseudo_source_mean_ - adapter.mean_
        squares = (adapter._move(rows) - rows).square().sum(1).mean()
    zero_shot, adapted = _predictions(adapter, rows)
    if before is None or after is None:
        before, after = zero_shot, adapted
    figures: Diagnosis = {
        "kind": type(adapter).__name__,
        "embeddings": adapter.n_seen_,
        "dim": d,
        "classes": g.n_classes,
        "spread": float(spread),
        "mean_shift": _ratio(shift.norm(), spread),
        "movement": _ratio(squares.clamp_min(0).sqrt(), spread) if d == g.dim else None,
        "predicted": (zero_shot.bincount(minlength=g.n_classes) if conditional else adapter.predicted_).tolist(),
        "changed": None if before is None or after is None else int((before != after).sum()) / len(after),
    }
    if not conditional:
        return _with_pseudo_source(figures, adapter)
    counts, gaps = adapter.counts_, (adapter.means_ - m.mean).square().sum(dim=1)
    return {
        **figures,
        "counts": [round(count, 2) for count in counts.tolist()],
        "between": _ratio((counts * gaps)[counts > 0].sum() / m.n, spread.square()),
        "temperature": float(adapter.temperature_),
        "kept": float(adapter.trust_) == 0 and m.n >= Constants().fewest,
    }


def kept_rows(adapter: Adapter) -> Tensor | None:
    """The prepared rows ``(m, d)`` that a fitted adapter keeps, evenly spread; None if it keeps none."""
    kept: Any = adapter._fitted().observed
    kept = kept if isinstance(kept, EvenSample) else kept.sample  # LinearTCA's has rows only to estimate shares
    return kept.rows() if kept.seen else None


def _with_pseudo_source(figures: Diagnosis, adapter: Any) -> Diagnosis:
    """The figures of an adapter that has a pseudo-source."""
    sigma, other, c = adapter.covariance_, adapter.pseudo_source_covariance_, adapter.g.n_classes
    score = adapter.uncertainty_ / (math.log(c) if adapter.uncertainty == "entropy" else 1 - 1 / c)
    return {
        **figures,
        "correlation_distance": float(coral_distance(sigma, other)),
        "covariance_shift": _ratio((sigma - other).norm(), sigma.norm()),
        "chosen": adapter.pseudo_source_counts_.tolist(),
        "shares": [round(share, 4) for share in adapter.shares_.tolist()],
        "shares_from": adapter._share_mode,
        "uncertainty_mean": float(score.mean()) if len(score) else None,
    }


def _predictions(adapter: Any, rows: Tensor | None) -> tuple[Any, Any]:
    """What g and the adapter predict for prepared rows, ``(m,)`` each; None if another method's scores were used."""
    certain: Any = getattr(adapter._fitted().observed, "certain", None)
    grouped = certain is not None and adapter._share_mode != "global"
    judged_by_g = not grouped or certain.group.equal(adapter.g.predict(certain.rows))
    if rows is None or not judged_by_g:
        return None, None
    return adapter.g.predict(rows), adapter._score(rows).argmax(dim=1)


def _ratio(value: Tensor, unit: Tensor) -> float | None:
    """``value`` in units of ``unit``; None if that is zero."""
    return float(value / unit) if float(unit) > 0 else None
