"""Whether adaptation can be trusted, by indicators that need no labels.

No indicator of this kind can prove that adaptation helps: that confident predictions are also right is the premise, and
only labels could show it. What indicators do show is where the premise or the statistics can't hold. Each limit was
checked on subsets of real and made-up data, with what it got right and wrong, in eval/explain.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clip_tca.adapters.diagnosis_record import Diagnosis

Verdict = Literal["trusted", "with care", "not here", "little effect"]

MISSED = 0.5
"""Share of the classes that may be missed; above it nothing is left to align to."""

SKEWED = (0.1, 0.2)
"""How far class shares among the chosen may differ from those of all predictions, where nothing else has given them:
above the first with care, above the second not at all, because aligning to the chosen aligns class shares too."""

MOVED = (0.8, 1.0)
"""Movement, in spreads: above the first with care; above the second the move is larger than what it moves, which only
an alignment class by class may be."""

CHANGED = 0.35
"""Share of changed predictions above which more is changed than zero-shot's uncertainty can explain."""

LITTLE = 0.02
"""Share of changed predictions up to which it hardly matters whether they are changed for the better."""

STILL = 1e-4
"""Movement, in spreads, up to which nothing moves: the rest is rounding."""

DOMINANT = 0.8
"""Share of one class in the pseudo-source above which it describes that class and not the data (3 classes or more)."""

UNCERTAIN = 0.1
"""Mean uncertainty of the chosen, as a share of that of a uniform guess, above which they can't be called certain."""


@dataclass(frozen=True)
class Indicator:
    """One sentence with its figure; ``level`` is 0 for reassuring, 1 for a reason for care, 2 for one against."""

    level: int
    text: str


def verdict(indicators: list[Indicator], diagnosis: Diagnosis) -> Verdict:
    """The worst indicator decides, unless hardly anything is changed."""
    if has_little_effect(diagnosis):
        return "little effect"
    names: tuple[Verdict, ...] = ("trusted", "with care", "not here")
    return names[max((indicator.level for indicator in indicators), default=0)]


def has_little_effect(diagnosis: Diagnosis) -> bool:
    """Whether nothing moves, or at most :data:`LITTLE` of the predictions change."""
    changed = diagnosis["changed"]
    return stands_still(diagnosis) or (changed is not None and changed <= LITTLE)


def stands_still(diagnosis: Diagnosis) -> bool:
    """Whether no embedding moves."""
    return (diagnosis["movement"] or 0.0) <= STILL


def indicators(diagnosis: Diagnosis, names: list[str]) -> list[Indicator]:
    """Every indicator that the figures give, with the class names in ``names``."""
    return [_sample_size(diagnosis), coverage(diagnosis, names), *_selection(diagnosis, names), *_effect(diagnosis)]


def missed_classes(diagnosis: Diagnosis) -> tuple[list[int], list[int]]:
    """Classes that zero-shot never predicts, and those predicted of which nothing was used."""
    predicted = diagnosis["predicted"] or [1] * diagnosis["classes"]
    used = diagnosis.get("chosen") or diagnosis.get("counts") or predicted
    never = [c for c, count in enumerate(predicted) if count == 0]
    return never, [c for c, count in enumerate(used) if count < 1 and c not in never]


def skew(chosen: list[int], predicted: list[int]) -> float:
    """Total variation distance of the class shares of the chosen from those of all zero-shot predictions."""
    total, seen = max(1, sum(chosen)), max(1, sum(predicted))
    return sum(abs(a / total - b / seen) for a, b in zip(chosen, predicted, strict=True)) / 2


def class_list(classes: list[int], names: list[str], most: int = 6) -> str:
    """The names of some classes, not more than ``most``."""
    more = f" and {len(classes) - most} more" if len(classes) > most else ""
    return ", ".join(names[c] for c in classes[:most]) + more


def _sample_size(diagnosis: Diagnosis) -> Indicator:
    n, d = diagnosis["embeddings"], diagnosis["dim"]
    if n > d:
        return Indicator(0, f"{n} embeddings for {d} dimensions ({n / d:.1f} each): enough for a covariance.")
    return Indicator(1, f"{n} embeddings for {d} dimensions: fewer than a covariance needs; most of it is shrinkage.")


def coverage(diagnosis: Diagnosis, names: list[str]) -> Indicator:
    """Whether every class is predicted and used, and which are not."""
    (never, unused), c = missed_classes(diagnosis), diagnosis["classes"]
    count = len(never) + len(unused)
    if not count:
        return Indicator(0, f"All {c} classes are represented.")
    parts = [f"{len(never)} never predicted ({class_list(never, names)})"] if never else []
    parts += [f"{len(unused)} without weight ({class_list(unused, names)})"] if unused else []
    sentence = f"{count} of {c} classes are missed: {', '.join(parts)}."
    if never:
        sentence += " A class that is never predicted is either absent, or the model does not recognise it."
    return Indicator(2 if count / c > MISSED and "chosen" in diagnosis else 1, sentence)


def _selection(diagnosis: Diagnosis, names: list[str]) -> list[Indicator]:
    if "chosen" not in diagnosis:
        return []
    chosen, total, n = diagnosis["chosen"], sum(diagnosis["chosen"]), diagnosis["embeddings"]
    if total in (0, n):
        amount = "all" if total else "none"
        return [Indicator(1, f"The pseudo-source is {amount} of the {n} embeddings: there is nothing to align to.")]
    results = []
    weights = diagnosis.get("shares") or [count / total for count in chosen]
    share, largest = max(weights), weights.index(max(weights))
    if share > DOMINANT and diagnosis["classes"] > 2:
        results.append(Indicator(1, f"{share:.0%} of the chosen are {names[largest]}: the target is nearly one class."))
    if agreement := diagnosis.get("agreement"):
        before, after = agreement["zero-shot"], max(value for name, value in agreement.items() if name != "zero-shot")
        nearer = f"{after:.0%} of its predictions agree with ConditionalTCA's, {before:.0%} of zero-shot's"
        results.append(Indicator(int(after < before), f"{nearer}: {'further away' if after < before else 'nearer'}."))
    elif diagnosis["predicted"] is not None and "shares" not in diagnosis:
        distance = skew(chosen, diagnosis["predicted"])
        level = sum(distance > limit for limit in SKEWED)
        off, same = f"{distance:.0%} off those of all predictions", f"those of all predictions but for {distance:.0%}"
        results.append(Indicator(level, f"Class shares of the chosen are {off if level else same}."))
    mean = diagnosis["uncertainty_mean"]
    if mean is not None and mean > UNCERTAIN:
        results.append(Indicator(1, f"The chosen are not certain: their uncertainty is {mean:.0%} of a pure guess's."))
    elif mean is not None:
        results.append(Indicator(0, f"The chosen are certain: their uncertainty is {mean:.1%} of a pure guess's."))
    return results


def _effect(diagnosis: Diagnosis) -> list[Indicator]:
    movement, changed = diagnosis["movement"] or 0.0, diagnosis["changed"]
    level = sum(movement > limit for limit in (MOVED if "chosen" in diagnosis else MOVED[:1]))
    distance = ("less than", "nearly as far as", "further than")[level]
    moved = f"Embeddings move by {movement:.2f} of their spread: {distance} they lie apart."
    results = [Indicator(level, "No embedding moves." if stands_still(diagnosis) else moved)]
    if changed is not None and changed > CHANGED:
        results.append(Indicator(2, f"{changed:.1%} of the predictions change, more than uncertainty can explain."))
    elif changed:
        bound = f"accuracy can't change by more than {100 * changed:.1f} points"
        results.append(Indicator(0, f"{changed:.1%} of the predictions change: {bound}."))
    elif changed is not None:
        results.append(Indicator(0, "0.0% of the predictions change: accuracy stays as it is."))
    return results
