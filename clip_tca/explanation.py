"""What an adapter has learned and whether to trust it, in words. Importing this module needs no torch.

The verdict comes from indicators that need no labels. None of them can prove that adaptation helps: that confident
predictions are also right is the premise, and only labels could show it. What they do show is where the premise or the
statistics can't hold. The limits were checked on subsets of real and made-up data; eval/explain.md counts what the
verdict got right and wrong.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal, TypedDict

from typing_extensions import NotRequired

from clip_tca.core.checks import visible

Verdict = Literal["trusted", "with care", "not here", "little effect"]

MISSED = 0.5
"""Share of the classes that may be missed; above it nothing is left to align to."""
SKEWED = (0.1, 0.2)
"""How far class shares of the chosen rows may differ from those of all predictions: above the first with care, above
the second not at all, because aligning to the chosen aligns class shares too."""
BLIND = ("uniform", "global", "oracle")
"""Options ``shares`` that don't say how frequent the classes are; :data:`SKEWED` is for these."""
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
"""Weight of one class in the pseudo-source above which it describes that class and not the data (3 classes or more)."""
UNCERTAIN = 0.1
"""Mean uncertainty of the chosen, as a share of that of a uniform guess, above which they can't be called certain."""

WIDTH = 100
MOST_CLASSES = 12
"""Classes up to which a table names each of them."""
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
    uncertainty_max: NotRequired[float | None]
    agreement: NotRequired[Agreement]  # where shares were estimated
    counts: NotRequired[list[float]]  # soft count of each class
    between: NotRequired[float | None]  # share of the variance between classes
    temperature: NotRequired[float]  # what the logits were divided by
    kept: NotRequired[bool]  # whether g is kept because it is sure of the predictions that would change


# -- the verdict -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Indicator:
    """One sentence with its figure; ``level`` is 0 for reassuring, 1 for a reason for care, 2 for one against."""

    level: int
    text: str


def judged(diagnosis: Diagnosis, names: list[str]) -> dict[str, Any]:
    """The verdict with its indicators, ready for JSON."""
    signs = indicators(diagnosis, names)
    return {"verdict": verdict(signs, diagnosis), "signs": [asdict(sign) for sign in signs]}


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
    return [sample_size(diagnosis), coverage(diagnosis, names), *_selection(diagnosis, names), *_effect(diagnosis)]


def sample_size(diagnosis: Diagnosis) -> Indicator:
    """Whether there are enough embeddings for a covariance."""
    n, d = diagnosis["embeddings"], diagnosis["dim"]
    if n > d:
        return Indicator(0, f"{n} embeddings for {d} dimensions ({n / d:.1f} each): enough for a covariance.")
    return Indicator(1, f"{n} embeddings for {d} dimensions: fewer than a covariance needs; most of it is shrinkage.")


def missed_classes(diagnosis: Diagnosis) -> tuple[list[int], list[int]]:
    """Classes that zero-shot never predicts, and those predicted of which nothing was used."""
    used = diagnosis["chosen"] if "chosen" in diagnosis else diagnosis["counts"]
    never = [c for c, count in enumerate(diagnosis["predicted"]) if count == 0]
    return never, [c for c, count in enumerate(used) if count < 1 and c not in never]


def coverage(diagnosis: Diagnosis, names: list[str]) -> Indicator:
    """Whether every class is predicted and used, and which are not."""
    (never, unused), c = missed_classes(diagnosis), diagnosis["classes"]
    count = len(never) + len(unused)
    if not count:
        return Indicator(0, f"All {c} classes are represented.")
    parts = [f"{len(never)} never predicted ({class_list(never, names)})"] if never else []
    parts += [f"{len(unused)} predicted but not used ({class_list(unused, names)})"] if unused else []
    sentence = f"{count} of {c} classes are missed: {', '.join(parts)}."
    if never:
        sentence += " A class that is never predicted is either absent, or the model does not recognise it."
    return Indicator(2 if count / c > MISSED and "chosen" in diagnosis else 1, sentence)


def skew(chosen: list[int], predicted: list[int]) -> float:
    """Total variation distance of the class shares of the chosen rows from those of all zero-shot predictions."""
    total, seen = max(1, sum(chosen)), max(1, sum(predicted))
    return sum(abs(a / total - b / seen) for a, b in zip(chosen, predicted, strict=True)) / 2


def class_list(classes: list[int], names: list[str], most: int = 6) -> str:
    """The names of some classes, not more than ``most``."""
    more = f" and {len(classes) - most} more" if len(classes) > most else ""
    return ", ".join(names[c] for c in classes[:most]) + more


def _selection(diagnosis: Diagnosis, names: list[str]) -> list[Indicator]:
    if "chosen" not in diagnosis:
        return []
    total, n, weights = sum(diagnosis["chosen"]), diagnosis["embeddings"], diagnosis["shares"]
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
        distance = skew(diagnosis["chosen"], diagnosis["predicted"])
        level = sum(distance > limit for limit in SKEWED)
        off, same = f"{distance:.0%} off those of all predictions", f"those of all predictions but for {distance:.0%}"
        signs.append(Indicator(level, f"Class shares of the chosen rows are {off if level else same}."))
    mean = diagnosis["uncertainty_mean"]
    if mean is not None and mean > UNCERTAIN:
        signs.append(Indicator(1, f"The chosen are not certain: their uncertainty is {mean:.0%} of a pure guess's."))
    elif mean is not None:
        signs.append(Indicator(0, f"The chosen are certain: their uncertainty is {mean:.1%} of a pure guess's."))
    return signs


def _effect(diagnosis: Diagnosis) -> list[Indicator]:
    movement, changed = diagnosis["movement"] or 0.0, diagnosis["changed"]
    level = sum(movement > limit for limit in (MOVED if "chosen" in diagnosis else MOVED[:1]))
    distance = ("less than", "nearly as far as", "further than")[level]
    moved = f"Embeddings move by {movement:.2f} of their spread: {distance} they lie apart."
    signs = [Indicator(level, "No embedding moves." if stands_still(diagnosis) else moved)]
    if changed is not None and changed > CHANGED:
        signs.append(Indicator(2, f"{changed:.1%} of the predictions change, more than uncertainty can explain."))
    elif changed:
        bound = f"accuracy can't change by more than {100 * changed:.1f} points"
        signs.append(Indicator(0, f"{changed:.1%} of the predictions change: {bound}."))
    elif changed is not None:
        signs.append(Indicator(0, "0.0% of the predictions change: accuracy stays as it is."))
    return signs


# -- the text ----------------------------------------------------------------------------------------------------------


def explanation(diagnosis: Diagnosis, names: list[str]) -> list[str]:
    """Lines about an adapter with these figures and names of classes."""
    names = [visible(name) for name in names]
    signs = indicators(diagnosis, names)
    return [
        *wrapped([f"{diagnosis['kind']} was fitted to {diagnosis['embeddings']} embeddings. {_changes(diagnosis)}"]),
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


def _changes(diagnosis: Diagnosis) -> str:
    if diagnosis.get("kept"):
        return "It changes nothing: zero-shot is sure of the predictions that would change."
    if stands_still(diagnosis):
        return "It changes nothing."
    if diagnosis["changed"] is None:
        return "How many predictions change is not known: no embeddings are kept, or another method predicted."
    return f"It changes {diagnosis['changed']:.1%} of the predictions."


def _target(diagnosis: Diagnosis) -> list[str]:
    if "chosen" in diagnosis:
        total, n = sum(diagnosis["chosen"]), diagnosis["embeddings"]
        most_certain = f"  To the {total} most certain of {n} embeddings ({total / n:.1%}), the chosen."
        return [most_certain, f"  {WEIGHTS[diagnosis['shares_from']]}"]
    times = diagnosis["temperature"]
    divided = f" Scores were divided by {times:.1f}, because they were too sure." if times > 1 else ""
    return [f"  To the mean of each class.{divided}"]


def _classes(diagnosis: Diagnosis, names: list[str]) -> list[str]:
    """A table of the classes, or their range where there are many."""
    columns: dict[str, list[Any]] = {"predicted": list(diagnosis["predicted"])}
    if "chosen" in diagnosis:
        columns |= {"chosen": diagnosis["chosen"], "weight": diagnosis["shares"]}
    else:
        columns["estimated"] = [round(count) for count in diagnosis["counts"]]

    def cell(title: str, value: float) -> str:
        return f"{value:.1%}" if title == "weight" else f"{value:.12g}"

    if len(names) <= MOST_CLASSES:
        table = [["class", *names]]
        table += [[title, *(cell(title, value) for value in values)] for title, values in columns.items()]
        width = max(map(len, table[0]))
        rows = zip(*table, strict=True)
        return [f"  {name:{width}}" + "".join(f"{value:>11}" for value in values) for name, *values in rows]
    lines = []
    for title, values in columns.items():
        least, middle, most = (cell(title, value) for value in (min(values), median(values), max(values)))
        lines.append(f"  {title}: {least} to {most} a class, median {middle}")
    order = sorted(range(len(names)), key=lambda c: values[c])
    ends = f"  Most {title}: {class_list(order[:-6:-1], names)}; least: {class_list(order[:5], names)}."
    return [*lines, *wrapped([ends], "    ")]


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
