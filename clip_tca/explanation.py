"""What an adapter did and what can be said about it without labels, in words. This module needs no torch.

Nothing that can be measured without labels separates gains from losses reliably (eval/explain.md). So the verdict
claims little: almost nothing changed, or the pseudo-source of LinearTCA is visibly a bad selection, or it can't tell.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypedDict

from typing_extensions import NotRequired

from clip_tca.core.checks import visible

Verdict = Literal["little effect", "can't tell", "likely loss"]
Outcome = Literal["gain", "loss", "chance", "same"]
"""What can be said without labels, and what labels say."""

SKEWED = 0.2
"""How far class shares of the chosen rows may differ from those of all predictions: aligning to the chosen aligns class
shares too."""
BLIND = ("uniform", "global")  # SKEWED is for these options ``shares``: they know no frequencies
LITTLE = 0.02  # share of changed predictions up to which it hardly matters whether they are changed for the better
STILL = 1e-4  # movement, in spreads, up to which nothing moves: the rest is rounding

WIDTH = 100
MOST_CLASSES = 12  # in the table of classes
SAID: dict[Verdict | Outcome | None, str] = {
    "little effect": "little effect: almost no prediction changed.",
    "can't tell": "can't tell without labels: it helps on most data sets and hurts on some; only labels show which.",
    "likely loss": "likely a loss: the images it aligned to have other class frequencies than the predictions.",
    "gain": "a gain beyond chance, by the labels.",
    "loss": "a loss beyond chance, by the labels.",
    "chance": "neither a gain nor a loss beyond chance, by the labels.",
    "same": "nothing changed.",
    None: "can't tell without labels.",
}
LABELLED = "for pictures without labels, clip-tca label --ask 40 estimates the gain"
"""What may come after an evaluation with labels."""
WEIGHTS = {
    "estimated": "The weight of each class was estimated from all embeddings.",
    "given": "The weight of each class is the share that was given.",
    "predicted": "The weight of each class is its share of the predictions.",
    "uniform": "Every class that was predicted has the same weight.",
    "global": "They are the most certain of all, whatever their class, and have the same weight.",
    "oracle": "The true labels say how many there are of each class, and all have the same weight.",
}
"""How the classes in the pseudo-source are weighted, by the option ``shares``."""
ORACLE = "ORACLE: it counted the true labels to choose its pseudo-source; for comparison only."
SPREAD = "The spread is how far embeddings lie from their mean (root mean square). Distances are shares of it."
NO_LABELS = "This verdict uses no labels. To find out, clip-tca label --ask 40 estimates the gain from forty answers."


# -- the figures -------------------------------------------------------------------------------------------------------


class Diagnosis(TypedDict):
    """Figures of a fitted adapter that need no labels, ready for JSON; None where a figure is not known.

    LinearTCA and MLPTCA have those from ``correlation_distance`` on, ConditionalTCA has the last four instead.
    """

    kind: str  # class of the adapter
    embeddings: int  # number seen
    dim: int
    classes: int
    spread: float
    mean_shift: float | None  # distance of the means before and after, in spreads
    movement: float | None  # root mean square move of an embedding, in spreads; None for rows of another encoder
    predicted: list[int]  # how often the classifier predicts each class
    changed: float | None  # share of the predictions that change
    correlation_distance: NotRequired[float]  # of the two covariances
    covariance_shift: NotRequired[float | None]  # ‖Σ_t − Σ̂_s‖ / ‖Σ_t‖
    chosen: NotRequired[list[int]]  # rows of each class in the pseudo-source
    shares: NotRequired[list[float]]  # weight of each class in the pseudo-source
    shares_from: NotRequired[str]  # the option ``shares``; "given" for numbers
    uncertainty_mean: NotRequired[float | None]  # of the chosen; 0 is certain, 1 a uniform guess
    counts: NotRequired[list[float]]  # soft count of each class
    between: NotRequired[float | None]  # share of the variance between classes
    temperature: NotRequired[float]  # what the logits were divided by
    kept: NotRequired[bool]  # whether g is kept because it is sure of the predictions that would change


# -- the verdict -------------------------------------------------------------------------------------------------------


def verdict(diagnosis: Diagnosis) -> Verdict:
    """What can be said without labels."""
    changed = diagnosis["changed"]
    if stands_still(diagnosis) or (changed is not None and changed <= LITTLE):
        return "little effect"
    return "likely loss" if (skew(diagnosis) or 0.0) > SKEWED else "can't tell"


def stands_still(diagnosis: Diagnosis) -> bool:
    """Whether no embedding moves."""
    return diagnosis["movement"] is not None and diagnosis["movement"] <= STILL


def skew(diagnosis: Diagnosis) -> float | None:
    """Total variation distance of the class shares of the chosen rows and of all predictions, if shares are blind."""
    if diagnosis.get("shares_from") not in BLIND:
        return None
    chosen, predicted = diagnosis["chosen"], diagnosis["predicted"]
    total, seen = max(1, sum(chosen)), max(1, sum(predicted))
    return sum(abs(a / total - b / seen) for a, b in zip(chosen, predicted, strict=True)) / 2


def reasons(diagnosis: Diagnosis, names: list[str]) -> list[str]:
    """What to know beside the verdict, a sentence each; ``names`` are those of the classes."""
    found = [coverage(diagnosis, names)]
    if (distance := skew(diagnosis)) is not None:
        found.append(f"The class shares of the chosen rows differ from those of the predictions by {distance:.0%}.")
    if diagnosis.get("kept"):
        found.append("No embedding moves: zero-shot is confident in the predictions that would change.")
    elif stands_still(diagnosis):
        found.append("No embedding moves.")
    if (changed := diagnosis["changed"]) is None:
        return [*found, "It is not known how many predictions change."]
    most = f"accuracy can't change by more than {100 * changed:.1f} points"
    return [*found, f"{changed:.1%} of the predictions change, so {most}."]


def coverage(diagnosis: Diagnosis, names: list[str]) -> str:
    """Whether every class is predicted and used, and which are not."""
    used = diagnosis["chosen"] if "chosen" in diagnosis else diagnosis["counts"]
    counts = list(zip(names, diagnosis["predicted"], used, strict=True))
    never = [name for name, predicted, _ in counts if not predicted]
    unused = [name for name, predicted, count in counts if predicted and count < 1]
    if not never and not unused:
        return f"All {len(names)} classes are represented."
    parts = [f"{len(never)} never predicted ({_some(never)})"] if never else []
    parts += [f"{len(unused)} predicted but not used ({_some(unused)})"] if unused else []
    return f"{len(never) + len(unused)} of {len(names)} classes are missed: {', '.join(parts)}."


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


# -- the end of adapt, label and eval ----------------------------------------------------------------------------------


class Finding(NamedTuple):
    """Predictions that changed on a domain, None where that is not known, of how many, and what can be said of it."""

    changed: float | None
    total: int
    says: Verdict | Outcome | None


def closing_lines(method: str, found: Mapping[str, Finding], ask: str, what: str = "predictions") -> list[str]:
    """Three facts: how many predictions changed, the verdict, and what to do next; ``ask`` finds out more."""
    counts, total = [each.changed for each in found.values()], sum(each.total for each in found.values())
    known = [count for count in counts if count is not None]
    lines = [f"{method}: it is not known how many {what} changed."]
    if len(known) == len(counts):
        lines = [f"{method} changed {sum(known):.0f} of {total} {what} ({sum(known) / total:.1%})."]
    said: dict[Verdict | Outcome | None, list[str]] = {}
    for domain, each in found.items():
        said.setdefault(each.says, []).append(domain)
    for says, domains in said.items():
        where = f" on {', '.join(domains)}" if len(said) > 1 else ""
        lines.append(f"Verdict{where}: {SAID[says]}")
    if said.keys() <= {"little effect", "same"}:
        return [*lines, "What next: nothing to do; the results are almost the same."]
    if said.keys() <= {"gain", "little effect", "same"}:
        return [*lines, f"What next: use it; {ask}."]
    shares = "if you know how frequent the classes are, pass --shares FILE"
    if {"loss", "likely loss"} & said.keys():
        return [*lines, f"What next: keep zero-shot where it lost; {shares}; {ask}."]
    return [*lines, f"What next: {ask}; {shares}; or keep zero-shot."]


# -- the text ----------------------------------------------------------------------------------------------------------


def explanation(diagnosis: Diagnosis, names: list[str]) -> list[str]:
    """Lines about an adapter with these figures and names of classes."""
    names, said = [visible(name) for name in names], SAID[verdict(diagnosis)]
    trust = f"Can it be trusted? {said[0].upper()}{said[1:]}"
    return [
        *wrapped([*_plainly(diagnosis, names), trust, NO_LABELS]),
        "",
        "The figures",
        *wrapped([f"  {sentence}" for sentence in reasons(diagnosis, names)], "    "),
        *_target(diagnosis),
        *_classes(diagnosis, names),
        *_shift(diagnosis),
        *wrapped([f"  {SPREAD}"], "    "),
    ]


def _plainly(diagnosis: Diagnosis, names: list[str]) -> list[str]:
    """Sentences for a reader who knows no statistics: how much changed, and which classes were never predicted."""
    changed, said = diagnosis["changed"], [f"{diagnosis['kind']} was fitted to {diagnosis['embeddings']} embeddings."]
    if changed is not None:
        said.append(f"Of 100 images, about {100 * changed:.0f} get another class than the model gives them on its own.")
    said += [ORACLE] if diagnosis.get("shares_from") == "oracle" else []
    return [*said, *never_predicted([name for name, n in zip(names, diagnosis["predicted"], strict=True) if not n])]


def never_predicted(names: list[str], where: str = "") -> list[str]:
    """A sentence about classes that the model never predicts; none if there are none."""
    it = "it" if len(names) == 1 else "them"
    why = f"either no image shows {it}, or the model does not recognise {it}"
    return [f"The model never predicts {_some(names)}{where}: {why}."] if names else []


def wrapped(paragraphs: list[str], indent: str = "  ") -> list[str]:
    """Lines of at most :data:`WIDTH` characters."""
    return [line for text in paragraphs for line in textwrap.wrap(text, WIDTH, subsequent_indent=indent)]


def _target(diagnosis: Diagnosis) -> list[str]:
    if "chosen" in diagnosis:
        total, n = sum(diagnosis["chosen"]), diagnosis["embeddings"]
        most_certain = (
            f"  Embeddings were aligned to the {total} most certain of {n} ({total / n:.1%}), the chosen rows."
        )
        return [most_certain, f"  {WEIGHTS[diagnosis['shares_from']]}"]
    times = diagnosis["temperature"]
    divided = f" Scores were divided by {times:.1f}, because they were too confident." if times > 1 else ""
    return [f"  Embeddings were aligned to the mean of each class.{divided}"]


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
        return ["  All embeddings are the same, so there is no spread to measure distances by."]
    if diagnosis["movement"] is None:
        return ["  The rows come from another encoder than the scores. They are classified, not moved."]
    moved = f"  Embeddings move by {diagnosis['movement']:.2f} of the spread."
    if "chosen" not in diagnosis:
        return [
            moved,
            f"  Each class moved by itself; the mean of all moved by {diagnosis['mean_shift']:.2f} of the spread.",
            f"  {diagnosis['between'] or 0:.0%} of the variance is between the classes, the rest within them.",
        ]
    return [
        moved,
        f"  The mean of the chosen rows is {diagnosis['mean_shift']:.2f} of the spread away from the mean of all.",
        f"  Their covariances differ by {diagnosis['covariance_shift'] or 0:.0%}; the paper's correlation distance is "
        f"{diagnosis['correlation_distance']:.2g}.",
    ]
