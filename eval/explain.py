"""How far the verdict of ``clip-tca explain`` agrees with the true gain, on subsets of real and made-up data.

    python eval/explain.py EMBEDDINGS.safetensors [--output eval/explain.md]

EMBEDDINGS holds PACS. The cases are those of eval/regimes.py (whole domains, unequal and absent classes, few images),
the same kinds of subsets of the bundled demo (icons, clip art, sketches), the synthetic set, and PACS by each
template alone, by which no limit was set. Labels serve for drawing subsets and for scoring only: no verdict sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from page import main
from regimes import cases as regimes
from regimes import drawn
from torch import Tensor

from clip_tca import ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.base import Adapter
from clip_tca.adapters.diagnosis import diagnose
from clip_tca.adapters.registry import ADAPTERS
from clip_tca.datasets.embedding_set import load_embeddings
from clip_tca.datasets.synthetic import synthetic
from clip_tca.evaluation.inputs import Inputs
from clip_tca.explanation import indicators, verdict
from clip_tca.results.explanation import half_width

METHODS: dict[str, Callable[[ZeroShotClassifier], Adapter]] = {
    "LinearTCA": LinearTCA,
    "ConditionalTCA": ConditionalTCA,
    "LinearTCA, shares uniform": lambda g: LinearTCA(g, shares="uniform"),
    "LinearTCA as in the paper, k = 20": ADAPTERS["linear-tca:paper"].build,
}
DEFAULTS = ("LinearTCA", "ConditionalTCA")
HELD_OUT = "held out"
VERDICTS = ("trusted", "with care", "not here", "little effect")
Task = tuple[str, ZeroShotClassifier, Tensor, Tensor]
Case = tuple[str, str, str, int, int, int]
"""Source, method, verdict, images gained, predictions changed, images."""


def demo() -> Iterator[Task]:
    """Every style of the demo, whole and in part."""
    data = Inputs("demo").embed().data
    g = ZeroShotClassifier(data.text, data.scale)
    c = g.n_classes
    for style, (z, y) in data.domains.items():
        generator = torch.Generator().manual_seed(1)
        wanted = [[len(y)] * c, *([count] * c for count in (5, 20, 40))]
        wanted += [[int(60 / 1.6**k) for k in torch.randperm(c, generator=generator).tolist()] for _ in range(3)]
        for count in (3, 2):
            present = torch.randperm(c, generator=generator)[:count].tolist()
            wanted.append([len(y) if k in present else 0 for k in range(c)])
        for counts in wanted:
            index = drawn(y, torch.tensor(counts), generator)
            yield f"demo {style}", g, z[index], y[index]


def everything(path: str) -> Iterator[Task]:
    """All cases, by source."""
    for case in regimes([path]):
        if not case.stream:
            yield "PACS", case.classifier, case.z, case.y
    yield from demo()
    for seed in range(4):
        made = synthetic(seed)
        for z, y in made.domains.values():
            yield "synthetic", ZeroShotClassifier(made.text, made.scale), z, y


def held_out(path: str) -> Iterator[Task]:
    """Every template alone on every domain: classifiers that no limit was set by."""
    data = load_embeddings(path)
    for text in data.text if data.text.ndim == 3 else ():
        g = ZeroShotClassifier(text, data.scale)
        for z, y in data.domains.values():
            yield HELD_OUT, g, z, y
            wanted = torch.tensor([int(len(y) / 2 / 1.6**k) for k in range(g.n_classes)])
            index = drawn(y, wanted, torch.Generator().manual_seed(7))
            yield HELD_OUT, g, z[index], y[index]


def cases(path: str) -> Iterator[Case]:
    """The verdict and the truth of each."""
    for source, g, z, y in (*everything(path), *held_out(path)):
        before = g.predict(z)
        for method, build in METHODS.items():
            adapter = build(g).fit(z)
            after = adapter.predict(z)
            found = diagnose(adapter, before, after)
            said = verdict(indicators(found, [str(k) for k in range(g.n_classes)]), found)
            gained = int((after == y).sum()) - int((before == y).sum())
            yield source, method, said, gained, int((after != before).sum()), len(y)


def line(name: str, found: list[Case]) -> str:
    """A row of the table."""
    gains = [100 * gained / n for *_, gained, _, n in found]
    beyond = [gained for *_, gained, changed, _ in found if abs(gained) > half_width(changed)]
    cells = [
        *(sum(sign(gain) for gain in gains) for sign in (lambda g: g > 0, lambda g: g == 0, lambda g: g < 0)),
        sum(gained > 0 for gained in beyond),
        sum(gained < 0 for gained in beyond),
        f"{sum(gains) / len(gains):+.2f}",
        f"{min(gains):+.1f}",
        f"{max(gains):+.1f}",
    ]
    return f"| {name} | {len(found)} | " + " | ".join(map(str, cells)) + " |"


def table(found: list[Case], first: str, names: list[tuple[str, Callable[[Case], bool]]]) -> list[str]:
    """Rows for the cases that each name stands for."""
    head = (
        f"| {first} | cases | gained | same | lost | gained beyond chance | lost beyond chance | mean | worst | best |"
    )
    rows = [(name, [case for case in found if belongs(case)]) for name, belongs in names]
    return [head, "|---" + "|---:" * 9 + "|", *(line(name, mine) for name, mine in rows if mine), ""]


def summary(found: list[Case]) -> list[str]:
    """How often the verdict and the sign of the gain agree, in words, and how often one would be right without it."""

    def up(some: list[Case]) -> int:
        return sum(case[3] > 0 for case in some)

    def down(some: list[Case]) -> int:
        return sum(case[3] < 0 for case in some)

    trusted, against = ([case for case in found if case[2] == said] for said in ("trusted", "not here"))
    effect = [case for case in found if case[2] != "little effect"]
    little = [100 * abs(gained) / n for _, _, said, gained, _, n in found if said == "little effect"]
    most = f", {max(little):.1f} points at most either way" if little else ""
    share = f" ({up(effect) / len(effect):.0%})" if effect else ""
    return [
        f"* `trusted`: {up(trusted)} of {len(trusted)} gained, {down(trusted)} lost.",
        f"* `not here`: {len(against) - up(against)} of {len(against)} did not gain, {down(against)} lost.",
        f"* `little effect`: {len(little)} cases{most}.",
        f"* Without any verdict: of the {len(effect)} others {up(effect)} gained{share}.",
    ]


def report(path: str) -> str:
    """The whole page."""
    found = list(cases(path))
    fresh = [case for case in found if case[0] == HELD_OUT]
    trusted = [case for case in found if case[0].startswith("demo") and case[2] == "trusted"]
    sources = list(dict.fromkeys(case[0] for case in found))
    every = [(said, lambda case, said=said: case[2] == said) for said in VERDICTS]
    pairs = [(s, v) for s in sources for v in VERDICTS]
    each = [(f"{s}: {v}", lambda case, s=s, v=v: (case[0], case[2]) == (s, v)) for s, v in pairs]
    page = [
        "# How far the verdict of `clip-tca explain` can be believed",
        "",
        "Printed by `python eval/explain.py pacs.safetensors --output eval/explain.md`. The verdict comes from signs",
        "that need no labels (clip_tca/explanation.py); here labels say afterwards whether adaptation gained.",
        "Gains are in points of accuracy. Beyond chance: more images gained than 1.96 √changed + 1. The embeddings are",
        "real ones of PACS from a small vision–language encoder, not CLIP's, those of the bundled demo's pictures, and",
        "made-up ones: whole domains, few images, unequal and absent classes. So that there is something to be warned",
        "of, two settings that often lose are among the methods.",
        "",
        f"All {len(found)} cases, on most of which the limits were set by looking at them:",
        "",
        *summary(found),
        "",
        "LinearTCA and ConditionalTCA with their defaults alone:",
        "",
        *summary([case for case in found if case[1] in DEFAULTS]),
        "",
        f"Held out, {len(fresh)} cases: the same PACS pictures with each of eight templates alone, whole domains and",
        "unequal parts of them. No limit was set by these:",
        "",
        *summary(fresh),
        "",
        "Of these the defaults alone, which nearly always gain on this data, whatever the verdict:",
        "",
        *summary([case for case in fresh if case[1] in DEFAULTS]),
        "",
        "What it can't see:",
        "",
        "* With the default settings it adds little to trusting always, because most cases gain anyway, and `not here`",
        "  then means that nothing much is won, not that something is lost. What it finds are bad selections.",
        f"* `trusted` is no promise: of {len(trusted)} such cases on the demo {sum(case[3] > 0 for case in trusted)}",
        "  gained. A model that is confidently wrong about all classes alike would be `trusted` too.",
        "* `with care` is no forecast of loss: with the default settings most such cases gain.",
        "* A class that is never predicted may be absent or overlooked; the verdict can't tell which.",
        "",
        *table(found, "verdict", every),
    ]
    for method in METHODS:
        page += [f"## {method}", "", *table([case for case in found if case[1] == method], "verdict", every)]
    return "\n".join([*page, "## By source", "", *table(found, "source: verdict", each)])


if __name__ == "__main__":
    main(__doc__, report)
