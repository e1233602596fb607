"""What an adapter has learned and whether to trust it, in words. Importing this module needs no torch.

The verdict comes from indicators that need no labels. None of them can prove that adaptation helps: that confident
predictions are also right is the premise, and only labels could show it. What they do show is where the premise or the
statistics can't hold. The limits were checked on subsets of real and made-up data; eval/explain.md counts what the
verdict got right and wrong.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypedDict

from typing_extensions import NotRequired

from clip_tca.core.checks import visible

Verdict = Literal["trusted", "with care", "not here", "little effect"]

MISSED = 0.5  # share of the classes; if more are missed, nothing is left to align to
SKEWED = (0.1, 0.2)
"""How far class shares of the chosen rows may differ from those of all predictions: above the first with care, above
the second not at all, because aligning to the chosen aligns class shares too."""
BLIND = ("uniform", "global", "oracle")  # SKEWED is for these options ``shares``: they know no frequencies
MOVED = (0.8, 1.0)
"""Movement, in spreads: above the first with care; above the second the move is larger than what it moves, which only
an alignment class by class may be."""
CHANGED = 0.35  # share of the predictions; if more change, it is more than zero-shot's uncertainty can explain
LITTLE = 0.02  # share of changed predictions up to which it hardly matters whether they are changed for the better
STILL = 1e-4  # movement, in spreads, up to which nothing moves: the rest is rounding
DOMINANT = 0.8  # weight of one class of three or more, above which the pseudo-source describes that class alone
UNCERTAIN = 0.1  # mean uncertainty of the chosen above which they can't be called certain; 1 is a uniform guess

WIDTH = 100
MOST_CLASSES = 12  # in the table of classes
MARKS = ("+", "?", "-")
MEANING = {
    "trusted": "trusted: nothing speaks against it",
    "with care": "with care: see the lines marked ?",
    "not here": "not here: see the lines marked -",
    "little effect": "little effect: it hardly matters whether it is used",
}
WEIGHTS = {
    "estimated": "The weights of the classes were estimated from all embeddings.",
    "given": "The weights of the classes are the shares that were given.",
    "predicted": "A class weighs as much as the share of the embeddings that was predicted as it.",
    "uniform": "Every class that was predicted weighs the same.",
    "global": "They are the most certain of all, whatever their class, and all weigh the same.",
    "oracle": "The true labels say how many are of each class, and all weigh the same.",
}
"""How the classes in the pseudo-source are weighed, by the option ``shares``."""
ORACLE = "ORACLE: the true labels were counted to choose its pseudo-source; for comparison only."
SPREAD = "The spread is how far embeddings lie from their mean (root mean square); distances are shares of it."
NO_LABELS = (
    "The verdict uses no labels, so it can't prove that adaptation helps. Whether the certain predictions are right "
    "can't be seen: where the model is confidently wrong, adaptation follows it. eval/explain.md counts how often the "
    "verdict was right."
)


# -- the figures -------------------------------------------------------------------------------------------------------

Agreement = TypedDict("Agreement", {"zero-shot": float, "adapted": float})
"""Shares of the predictions that are ConditionalTCA's: without adaptation and with it."""


class Diagnosis(TypedDict):
    """Figures of a fitted adapter that need no labels, ready for JSON; None where a figure is not known.

    LinearTCA and MLPTCA have those from ``correlation_distance`` to ``agreement``, ConditionalTCA has the last four.
    """

    kind: str  # class of the adapter
    embeddings: int  # number seen
    dim: int
    classes: int
    spread: float
    mean_shift: float | None  # distance of the means before and after, in spreads
    movement: float | None  # root mean square move of an embedding, in spreads
    predicted: list[int]  # how often the classifier predicts each class
    changed: float | None  # share of the predictions that change
    correlation_distance: NotRequired[float]  # of the two covariances
    covariance_shift: NotRequired[float | None]  # ‖Σ_t − Σ̂_s‖ / ‖Σ_t‖
    chosen: NotRequired[list[int]]  # rows of each class in the pseudo-source
    shares: NotRequired[list[float]]  # weight of each class in the pseudo-source
    shares_from: NotRequired[str]  # the option ``shares``; "given" for numbers
    uncertainty_mean: NotRequired[float | None]  # of the chosen; 0 is certain, 1 a uniform guess
    agreement: NotRequired[Agreement]  # where shares were estimated
    counts: NotRequired[list[float]]  # soft count of each class
    between: NotRequired[float | None]  # share of the variance between classes
    temperature: NotRequired[float]  # what the logits were divided by
    kept: NotRequired[bool]  # whether g is kept because it is sure of the predictions that would change


# -- the verdict -------------------------------------------------------------------------------------------------------


class Indicator(NamedTuple):
    """One sentence with its figure; ``level`` is 0 for reassuring, 1 for a reason for care, 2 for one against."""

    level: int
    text: str


def verdict(signs: list[Indicator], diagnosis: Diagnosis) -> Verdict:
    """The worst indicator decides, unless hardly anything is changed."""
    if has_little_effect(diagnosis):
        return "little effect"
    levels: tuple[Verdict, ...] = ("trusted", "with care", "not here")
    return levels[max((sign.level for sign in signs), default=0)]


def has_little_effect(diagnosis: Diagnosis) -> bool:
    """Whether nothing moves, or at most :data:`LITTLE` of the predictions change."""
    changed = diagnosis["changed"]
    return stands_still(diagnosis) or (changed is not None and changed <= LITTLE)


def stands_still(diagnosis: Diagnosis) -> bool:
    """Whether no embedding moves."""
    return (diagnosis["movement"] or 0.0) <= STILL


def indicators(diagnosis: Diagnosis, names: list[str]) -> list[Indicator]:
    """Every indicator that the figures give; ``names`` are those of the classes."""
    n, d = diagnosis["embeddings"], diagnosis["dim"]
    enough = Indicator(0, f"{n} embeddings for {d} dimensions: enough for a covariance.")
    few = Indicator(1, f"{n} embeddings for {d} dimensions: fewer than a covariance needs; most of it is shrinkage.")
    return [
        enough if n > d else few,
        coverage(diagnosis, names),
        *(_selection(diagnosis, names) if "chosen" in diagnosis else []),
        *_effect(diagnosis),
    ]


def coverage(diagnosis: Diagnosis, names: list[str]) -> Indicator:
    """Whether every class is predicted and used, and which are not."""
    used = diagnosis["chosen"] if "chosen" in diagnosis else diagnosis["counts"]
    counts = list(zip(names, diagnosis["predicted"], used, strict=True))
    never = [name for name, predicted, _ in counts if not predicted]
    unused = [name for name, predicted, count in counts if predicted and count < 1]
    missed = len(never) + len(unused)
    if not missed:
        return Indicator(0, f"All {len(names)} classes are represented.")
    parts = [f"{len(never)} never predicted ({_some(never)})"] if never else []
    parts += [f"{len(unused)} predicted but not used ({_some(unused)})"] if unused else []
    sentence = f"{missed} of {len(names)} classes are missed: {', '.join(parts)}."
    if never:
        sentence += " A class that is never predicted is either absent, or the model does not recognise it."
    return Indicator(2 if missed / len(names) > MISSED and "chosen" in diagnosis else 1, sentence)


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _selection(diagnosis: Diagnosis, names: list[str]) -> list[Indicator]:
    """What speaks for and against the pseudo-source."""
    chosen, predicted, weights = diagnosis["chosen"], diagnosis["predicted"], diagnosis["shares"]
    total, n = sum(chosen), diagnosis["embeddings"]
    if total in (0, n):
        amount = "all" if total else "none"
        return [Indicator(1, f"The pseudo-source is {amount} of the {n} embeddings: there is nothing to align to.")]
    signs = []
    if max(weights) > DOMINANT and diagnosis["classes"] > 2:
        share, name = max(weights), names[weights.index(max(weights))]
        signs.append(Indicator(1, f"{share:.0%} of the weight is on {name}: the target is nearly one class."))
    if "agreement" in diagnosis:
        before, after = diagnosis["agreement"]["zero-shot"], diagnosis["agreement"]["adapted"]
        nearer = f"{after:.0%} of its predictions agree with ConditionalTCA's, {before:.0%} of zero-shot's"
        signs.append(Indicator(int(after < before), f"{nearer}: {'further away' if after < before else 'nearer'}."))
    elif diagnosis["shares_from"] in BLIND:
        seen = max(1, sum(predicted))  # the distance is the total variation distance
        distance = sum(abs(a / total - b / seen) for a, b in zip(chosen, predicted, strict=True)) / 2
        level = sum(distance > limit for limit in SKEWED)
        signs.append(
            Indicator(level, f"Class shares of the chosen rows are {distance:.0%} off those of all predictions.")
        )
    if (mean := diagnosis["uncertainty_mean"]) is not None:
        certain = "not certain" if mean > UNCERTAIN else "certain"
        text = f"The chosen are {certain}: their uncertainty is {mean:.1%} of a pure guess's."
        signs.append(Indicator(int(mean > UNCERTAIN), text))
    return signs


def _effect(diagnosis: Diagnosis) -> list[Indicator]:
    """How far embeddings move, and how many predictions change."""
    movement, changed = diagnosis["movement"] or 0.0, diagnosis["changed"]
    level = sum(movement > limit for limit in (MOVED if "chosen" in diagnosis else MOVED[:1]))
    distance = ("less than", "nearly as far as", "further than")[level]
    moved = f"Embeddings move by {movement:.2f} of their spread: {distance} they lie apart."
    if stands_still(diagnosis):
        moved = "No embedding moves."
    if diagnosis.get("kept"):
        moved = "No embedding moves: zero-shot is sure of the predictions that would change."
    signs = [Indicator(level, moved)]
    if changed is None:
        return [
            *signs,
            Indicator(0, "How many predictions change is not known: no sample is kept, or another predicted."),
        ]
    meaning = f"accuracy can't change by more than {100 * changed:.1f} points"
    if changed > CHANGED:
        meaning = "more than uncertainty can explain"
    return [*signs, Indicator(2 * (changed > CHANGED), f"{changed:.1%} of the predictions change: {meaning}.")]


# -- the text ----------------------------------------------------------------------------------------------------------


def explanation(diagnosis: Diagnosis, names: list[str]) -> list[str]:
    """Lines about an adapter with these figures and names of classes."""
    names = [visible(name) for name in names]
    signs = indicators(diagnosis, names)
    return [
        f"{diagnosis['kind']} was fitted to {diagnosis['embeddings']} embeddings.",
        *([ORACLE] if diagnosis.get("shares_from") == "oracle" else []),
        f"Can it be trusted?  {MEANING[verdict(signs, diagnosis)]}.",
        *wrapped([f"  {MARKS[sign.level]} {sign.text}" for sign in signs], "    "),
        "",
        "What were the embeddings aligned to?",
        *_target(diagnosis),
        *_classes(diagnosis, names),
        "",
        "How large was the shift?",
        *_shift(diagnosis),
        "",
        *wrapped([SPREAD, NO_LABELS]),
    ]


def wrapped(paragraphs: list[str], indent: str = "  ") -> list[str]:
    """Lines of at most :data:`WIDTH` characters."""
    return [line for text in paragraphs for line in textwrap.wrap(text, WIDTH, subsequent_indent=indent)]


def _target(diagnosis: Diagnosis) -> list[str]:
    if "chosen" in diagnosis:
        total, n = sum(diagnosis["chosen"]), diagnosis["embeddings"]
        most_certain = f"  To the {total} most certain of {n} embeddings ({total / n:.1%}), the chosen."
        return [most_certain, f"  {WEIGHTS[diagnosis['shares_from']]}"]
    times = diagnosis["temperature"]
    divided = f" Scores were divided by {times:.1f}, because they were too sure." if times > 1 else ""
    return [f"  To the mean of each class.{divided}"]


def _classes(diagnosis: Diagnosis, names: list[str]) -> list[str]:
    """A table of the classes; of many classes, those that are predicted most often."""
    predicted = diagnosis["predicted"]
    columns = {"class": names, "predicted": [str(count) for count in predicted]}
    if "chosen" in diagnosis:
        columns["chosen"] = [str(count) for count in diagnosis["chosen"]]
        columns["weight"] = [f"{share:.1%}" for share in diagnosis["shares"]]
    else:
        columns["estimated"] = [f"{count:.0f}" for count in diagnosis["counts"]]
    shown: Sequence[int] = range(len(names))
    if len(names) > MOST_CLASSES:
        shown = sorted(shown, key=lambda c: predicted[c], reverse=True)[:MOST_CLASSES]
    rows = [list(columns), *([values[c] for values in columns.values()] for c in shown)]
    width = max(len(name) for name, *_ in rows)
    lines = [f"  {name:{width}}" + "".join(f"{value:>11}" for value in values) for name, *values in rows]
    return lines + [f"  and {len(names) - len(shown)} classes predicted less often"] * (len(shown) < len(names))


def _shift(diagnosis: Diagnosis) -> list[str]:
    if diagnosis["mean_shift"] is None:
        return ["  All embeddings are the same: there is no spread to measure it by."]
    if "chosen" not in diagnosis:
        return [
            f"  Classes shifted one by one; together their mean moved by {diagnosis['mean_shift']:.2f} of the spread.",
            f"  {diagnosis['between'] or 0:.0%} of the variance lies between the classes, the rest within them.",
        ]
    return [
        f"  The mean of the chosen is {diagnosis['mean_shift']:.2f} of the spread away from that of all embeddings.",
        f"  Their covariances differ by {diagnosis['covariance_shift'] or 0:.0%}; the paper's correlation distance is "
        f"{diagnosis['correlation_distance']:.2g}.",
    ]
