"""Whether adaptation is to be trusted, by signs that need no labels.

No sign of this kind can prove that adaptation helps: that the certain predictions are also right is the premise, and
only labels could show it. What the signs do show is where the premise or the statistics can't hold. Each limit was
checked on subsets of real and made-up data, with what it got right and wrong, in eval/explain.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clip_tca.adapters.diagnosis import Diagnosis

Verdict = Literal["trusted", "with care", "not here", "little effect"]

MISSED = 0.5
"""Share of the classes that may be missed; above it nothing is left to align to."""

SKEWED = (0.1, 0.2)
"""How far class shares among the chosen may differ from those of all predictions: above the first with care, above the
second not at all, because aligning to the chosen aligns class proportions too."""

MOVED = (0.8, 1.0)
"""Movement, in spreads: above the first with care; above the second the move is larger than what it moves."""

CHANGED = 0.25
"""Share of changed predictions above which more is changed than zero-shot's uncertainty can explain."""

LITTLE = 0.02
"""Share of changed predictions up to which it hardly matters whether they are changed for the better."""

STILL = 1e-4
"""Movement, in spreads, up to which nothing moves: the rest is rounding."""

DOMINANT = 0.8
"""Share of one class in the pseudo-source above which it describes that class and not the data (3 classes or more)."""

UNCERTAIN = 0.1
"""Mean uncertainty of the chosen, as a share of a pure guess, above which they can't be called certain."""


@dataclass(frozen=True)
class Sign:
    """One sentence with its figure; ``level`` is 0 for reassuring, 1 for a reason for care, 2 for one against."""

    level: int
    text: str


def verdict(found: list[Sign], diagnosis: Diagnosis) -> Verdict:
    """The worst sign decides, unless hardly anything is changed."""
    if has_little_effect(diagnosis):
        return "little effect"
    names: tuple[Verdict, ...] = ("trusted", "with care", "not here")
    return names[max((sign.level for sign in found), default=0)]


def has_little_effect(diagnosis: Diagnosis) -> bool:
    """Whether nothing moves, or at most :data:`LITTLE` of the predictions change."""
    changed = diagnosis["changed"]
    return stands_still(diagnosis) or (changed is not None and changed <= LITTLE)


def stands_still(diagnosis: Diagnosis) -> bool:
    """Whether no embedding moves."""
    return (diagnosis["movement"] or 0.0) <= STILL


def signs(diagnosis: Diagnosis, names: list[str]) -> list[Sign]:
    """Every sign that the figures give, with the class names in ``names``."""
    found = [_enough(diagnosis), _missed(diagnosis, names)]
    if "chosen" in diagnosis:
        found += _selection(diagnosis, names)
    return [*found, *_effect(diagnosis)]


def missed(diagnosis: Diagnosis) -> tuple[list[int], list[int]]:
    """Classes that zero-shot never predicts, and those predicted of which nothing was used."""
    predicted = diagnosis["predicted"] or [1] * diagnosis["classes"]
    used = diagnosis.get("chosen") or diagnosis.get("counts") or predicted
    never = [c for c, count in enumerate(predicted) if count == 0]
    return never, [c for c, count in enumerate(used) if count < 1 and c not in never]


def skewed(diagnosis: Diagnosis) -> float:
    """Total variation distance of the class shares of the chosen from those of all zero-shot predictions."""
    chosen, predicted = diagnosis["chosen"], diagnosis["predicted"] or []
    total, seen = max(1, sum(chosen)), max(1, sum(predicted))
    return float(sum(abs(a / total - b / seen) for a, b in zip(chosen, predicted, strict=True)) / 2)


def named(classes: list[int], names: list[str], most: int = 6) -> str:
    """The names of some classes, not more than ``most``."""
    more = f" and {len(classes) - most} more" if len(classes) > most else ""
    return ", ".join(names[c] for c in classes[:most]) + more


def _enough(diagnosis: Diagnosis) -> Sign:
    n, d = diagnosis["embeddings"], diagnosis["dim"]
    if n > d:
        return Sign(0, f"{n} embeddings for {d} dimensions ({n / d:.1f} each): enough for a covariance.")
    return Sign(1, f"{n} embeddings for {d} dimensions: fewer than a covariance needs; most of it is shrinkage.")


def _missed(diagnosis: Diagnosis, names: list[str]) -> Sign:
    (never, unused), c = missed(diagnosis), diagnosis["classes"]
    count = len(never) + len(unused)
    if not count:
        return Sign(0, f"All {c} classes are represented.")
    parts = [f"{len(never)} never predicted ({named(never, names)})"] if never else []
    parts += [f"{len(unused)} without weight ({named(unused, names)})"] if unused else []
    told = f"{count} of {c} classes are missed: {', '.join(parts)}."
    if never:
        told += " What is never predicted is either absent, or the model is blind to it."
    return Sign(2 if count / c > MISSED else 1, told)


def _selection(diagnosis: Diagnosis, names: list[str]) -> list[Sign]:
    chosen, total, n = diagnosis["chosen"], sum(diagnosis["chosen"]), diagnosis["embeddings"]
    if total in (0, n):
        what = "all" if total else "none"
        return [Sign(1, f"The pseudo-source is {what} of the {n} embeddings: there is nothing to align to.")]
    found = []
    share, largest = max(chosen) / total, chosen.index(max(chosen))
    if share > DOMINANT and diagnosis["classes"] > 2:
        found.append(Sign(1, f"{share:.0%} of the chosen are {names[largest]}: the target is nearly one class."))
    skew = skewed(diagnosis)
    if skew > SKEWED[0]:
        level = 2 if skew > SKEWED[1] else 1
        found.append(Sign(level, f"Class shares of the chosen are {skew:.0%} off those of all predictions."))
    else:
        found.append(Sign(0, f"Class shares of the chosen are those of all predictions but for {skew:.0%}."))
    mean = diagnosis["uncertainty_mean"]
    if mean is not None and mean > UNCERTAIN:
        found.append(Sign(1, f"The chosen are not certain: their uncertainty is {mean:.0%} of a pure guess's."))
    elif mean is not None:
        found.append(Sign(0, f"The chosen are certain: their uncertainty is {mean:.1%} of a pure guess's."))
    return found


def _effect(diagnosis: Diagnosis) -> list[Sign]:
    found, movement, changed = [], diagnosis["movement"] or 0.0, diagnosis["changed"]
    if movement > MOVED[1]:
        found.append(Sign(2, f"Embeddings move by {movement:.2f} of their spread: further than they lie apart."))
    elif movement > MOVED[0]:
        found.append(Sign(1, f"Embeddings move by {movement:.2f} of their spread: nearly as far as they lie apart."))
    elif movement > STILL:
        found.append(Sign(0, f"Embeddings move by {movement:.2f} of their spread: less than they lie apart."))
    else:
        found.append(Sign(0, "No embedding moves."))
    if changed is not None and changed > CHANGED:
        found.append(Sign(2, f"{changed:.1%} of the predictions change, more than doubt can explain."))
    elif changed is not None:
        bound = "accuracy stays as it is" if not changed else f"accuracy can't change by more than {100 * changed:.1f}"
        found.append(Sign(0, f"{changed:.1%} of the predictions change: {bound}{' points' if changed else ''}."))
    return found
