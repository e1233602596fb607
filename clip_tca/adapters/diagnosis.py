"""Diagnosis of a fitted adapter: a few numbers that need no labels.

How large the shift was, how far embeddings move, what was chosen of each class and how certain that was. All comes from
the tensors of a saved state (:mod:`clip_tca.adapters.state`): for z′ = (z − μ_t)W + μ̂_s the mean squared move is

    E‖z′ − z‖² = ‖μ̂_s − μ_t‖² + tr((W − I)ᵀ Σ_t (W − I)),

exactly, from the statistics alone. Distances are given in units of the *spread* √tr Σ_t, the root mean square distance
of the embeddings from their mean. Which figures an adapter has is said by its own ``diagnose``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clip_tca.adapters.diagnosis_record import Diagnosis
from clip_tca.adapters.pseudo_source import select
from clip_tca.adapters.registry import adapter_classes
from clip_tca.adapters.shares import CANDIDATES, row_weights
from clip_tca.adapters.state import SavedState
from clip_tca.adapters.statistics import Moments, StreamMoments, coral_distance
from clip_tca.classifier import LinearClassifier
from clip_tca.core.tensors import exact

if TYPE_CHECKING:
    from clip_tca.adapters.base import Adapter


def diagnose(adapter: Adapter, before: Tensor | None = None, after: Tensor | None = None) -> Diagnosis:
    """The diagnosis of a fitted adapter.

    Args:
        adapter: A fitted adapter.
        before: ``(n,)`` classes predicted without it, if the rows are at hand.
        after: ``(n,)`` classes predicted with it.
    """
    figures = adapter.diagnose(adapter.state(), adapter.classifier)
    if before is not None and after is not None:
        figures["changed"] = int((before != after).sum()) / len(after)
    return figures


def diagnose_state(saved: SavedState) -> Diagnosis:
    """The diagnosis of a saved state, without the classifier it was fitted with.

    Raises:
        ValueError: If a part of the state is missing, or it is of no adapter of this package.
    """
    classes = adapter_classes()
    if saved.kind not in classes:
        raise ValueError(f"holds a {saved.kind!r}; allowed are {', '.join(classes)}")
    try:
        return classes[saved.kind].diagnose(saved, None)
    except (KeyError, IndexError, RuntimeError) as error:
        raise ValueError(f"a part of the saved state is missing or wrong ({error}); save it again") from None


def common_figures(
    saved: SavedState, spread: Tensor, shift: Tensor, squares: Tensor, changed: float | None
) -> Diagnosis:
    """The figures of every adapter, from the shift of the means and the mean squared move; ``predicted`` is missing."""
    return {
        "kind": saved.kind,
        "embeddings": saved.counters["seen"],
        "dim": saved.shape[0],
        "classes": saved.shape[1],
        "spread": float(spread),
        "mean_shift": ratio(shift.norm(), spread),
        "movement": ratio(squares.clamp_min(0).sqrt(), spread),
        "predicted": None,
        "changed": changed,
    }


def moments_of(saved: SavedState) -> Moments:
    """Moments of all rows that were seen."""
    return StreamMoments.restored(saved.part("moments")).total()


def of_alignment(saved: SavedState, squares: Tensor, changed: float | None) -> Diagnosis:
    """The figures of an adapter that aligns to a pseudo-source; ``squares`` is the mean squared move."""
    solution, moments, bank = saved.part("solution"), moments_of(saved), saved.part("bank")
    spread = (moments.scatter.diagonal().sum() / moments.n).sqrt()
    sigmas = solution["covariance"], solution["pseudo_source_covariance"]
    mean, largest = _chosen_uncertainty(saved, solution, bank)
    figures: Diagnosis = {
        **common_figures(saved, spread, solution["pseudo_source_mean"] - solution["mean"], squares, changed),
        "correlation_distance": float(coral_distance(*sigmas)),
        "covariance_shift": ratio((sigmas[0] - sigmas[1]).norm(), sigmas[0].norm()),
        "predicted": bank["predicted"].tolist(),
        "chosen": solution["pseudo_source_counts"].tolist(),
        "uncertainty_mean": mean,
        "uncertainty_max": largest,
    }
    if "shares" in solution and shares_of(saved) not in ("global", "oracle", "uniform"):  # else the counts say it
        figures["shares"] = [round(share, 4) for share in solution["shares"].tolist()]
    if "agreement" in solution:
        agreement = (round(value, 4) for value in solution["agreement"].tolist())
        figures["agreement"] = dict(zip(CANDIDATES, agreement, strict=True))
    return figures


def movement(scatter: Tensor, n: float, shift: Tensor, w: Tensor) -> Tensor:
    """Mean squared move of n rows by z′ = (z − μ)W + μ + ``shift``, from their centred scatter ``(d, d)``."""
    change = w - torch.eye(len(w), dtype=w.dtype, device=w.device)
    return shift @ shift + (change * (scatter @ change)).sum() / n


def recovered_classifier(matrix: Tensor, offset: Tensor, solution: dict[str, Tensor]) -> LinearClassifier | None:
    """The classifier g (up to what is common to all classes) for which g(z·matrix + offset) is the adapted classifier.

    That is how adapted classifiers are made, so their states hold g implicitly. None where the map can't be inverted.
    """
    weight, bias = solution["weight"], solution["bias"]
    g_weight, singular = torch.linalg.solve_ex(matrix, weight)
    if int(singular) or not bool(torch.isfinite(g_weight).all()):
        return None
    error = (matrix @ g_weight - weight).norm()
    if float(error) > 1e-6 * float(weight.norm()):
        return None
    return LinearClassifier(g_weight.T, bias - offset @ g_weight)


def shares_of(saved: SavedState) -> object:
    """The option ``shares``, which version 0.1 called ``balance``."""
    return saved.options.get("shares", saved.options.get("balance"))


def predicted_by(g: LinearClassifier, saved: SavedState) -> bool:
    """Whether the rows of the bank are grouped by the predictions of ``g``, as far as the state tells."""
    bank = saved.part("bank")
    if shares_of(saved) == "global" or not len(bank["rows"]):
        return True
    return torch.equal(g.exact_logits(bank["rows"]).argmax(dim=1), bank["group"])


def changed(rows: Tensor | None, g: LinearClassifier | None, after: Tensor | None) -> float | None:
    """Share of the rows whose predicted class is another ``after`` adaptation; None if any input is missing."""
    if rows is None or g is None or after is None:
        return None
    return int((g.exact_logits(rows).argmax(dim=1) != after).sum()) / len(after)


def ratio(value: Tensor, unit: Tensor) -> float | None:
    """``value`` in units of ``unit``; None where that is zero, because all embeddings are the same."""
    return float(value / unit) if float(unit) > 0 else None


def _chosen_uncertainty(
    saved: SavedState, solution: dict[str, Tensor], bank: dict[str, Tensor]
) -> tuple[float, float] | tuple[None, None]:
    """Mean and maximum over the chosen, as a share of a pure guess's; None where the state does not tell the chosen."""
    counts = solution["pseudo_source_counts"]
    quota = counts.sum().reshape(1) if shares_of(saved) == "global" else counts
    index = select(bank["score"], bank["group"], quota)
    if len(index) and len(index) == int(counts.sum()):
        rows = exact(bank["rows"][index])
        weighed = "shares" in solution and shares_of(saved) not in ("global", "oracle")
        mean = row_weights(solution["shares"], bank["group"][index]) @ rows if weighed else rows.mean(dim=0)
        if torch.allclose(mean, solution["pseudo_source_mean"], atol=1e-6):
            guess = math.log(len(counts)) if saved.options["uncertainty"] == "entropy" else 1 - 1 / len(counts)
            score = bank["score"][index] / guess
            return float(score.mean()), float(score.max())
    return None, None
