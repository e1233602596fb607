"""Pages of a run without labels: what changed and how each class looks; and one that asks a person for answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from clip_tca.evaluation.examples import spread, thumbnail
from clip_tca.explanation import SAID
from clip_tca.labelling.change import AFTER, ANOTHER, BEFORE, UNKNOWN, sample_changed
from clip_tca.labelling.label import FEW, Labelling
from clip_tca.report.templating import grid, render
from clip_tca.results.table import model_line

CHANGES, OF_EACH = 40, 12  # kinds of change (from one class to another), and pictures of each
UNCERTAIN = 24  # pictures in the sheet of the least certain
SHEET, MOST_IN_SHEETS = 24, 1200  # pictures in the sheet of a class, and in all of them


def page(labelling: Labelling) -> str:
    """The whole document."""
    table, count = labelling.table, len(labelling.table)
    picture = picture_renderer(labelling)
    changed = table.index[table["changed"]].tolist()
    kinds = table.loc[changed].groupby([table["zero_shot"], labelling.proposed], sort=False).groups
    largest = sorted(kinds.items(), key=lambda item: -len(item[1]))
    groups = [
        {
            "before": before,
            "after": after,
            "count": len(rows),
            "images": list(map(picture, spread(list(rows), OF_EACH))),
        }
        for (before, after), rows in largest[:CHANGES]
    ]
    by_class = {name: table.index[labelling.proposed == name].tolist() for name in labelling.classes}
    of_each = max(3, min(SHEET, MOST_IN_SHEETS // len(labelling.classes)))
    sheets = [
        {"name": name, "count": len(rows), "images": list(map(picture, spread(rows, of_each)))}
        for name, rows in by_class.items()
    ]
    before = table["zero_shot"].value_counts()
    lines = [[name, str(before.get(name, 0)), str(len(by_class[name]))] for name in labelling.classes]
    about = labelling.embedded.about
    return render(
        "label.html",
        found=labelling,
        count=count,
        changed=len(changed),
        review=int(table["review"].sum()) if "review" in table else 0,
        few=FEW if count < FEW else 0,
        verdicts=[(domain, SAID[verdict]) for domain, verdict in labelling.trust.items()],
        classes=grid("Pictures of each class", ["class", "before", "after"], lines),
        groups=groups,
        hidden=len(largest) - len(groups),
        uncertain=list(map(picture, table["confidence"].sort_values(kind="stable").index[:UNCERTAIN])),
        sheets=sheets,
        model=model_line(about["model"]) if about["model"] else "",
        prompts=about["prompts"],
    )


def picture_renderer(labelling: Labelling, side: int = 96) -> Callable[[int], dict[str, Any]]:
    """A function of a row of the table that gives its picture, as templates take it."""
    pictures = [(domain, i) for domain in labelling.pictures.domains.values() for i in range(len(domain))]
    columns = ("file", "zero_shot", "confidence", "zero_shot_confidence", "runner_up", "changed")
    rows = labelling.table[list(columns)].assign(label=labelling.proposed).to_dict("records")
    small = lru_cache(maxsize=None)(lambda row: thumbnail(*pictures[row], side))
    return lambda row: {**rows[row], "thumbnail": small(int(row))}


def ask_page(labelling: Labelling, count: int, answers: str, seed: int = 0) -> tuple[str, int]:
    """A page where a person says what some of the changed pictures show, and how many there are.

    The two labels come in a random order, and it does not say which is which.
    """
    drawn = sample_changed(labelling.table, count, seed)
    picture, swap = picture_renderer(labelling, 320), np.random.default_rng(seed).random(len(drawn)) < 0.5
    images = []
    for row, swapped in zip(drawn.index, swap, strict=True):
        image = picture(row)
        labels = [(BEFORE, image["zero_shot"]), (AFTER, image["label"])]
        rest = [(ANOTHER, "something else"), (UNKNOWN, UNKNOWN)]
        images.append({**image, "choices": [*(labels[::-1] if swapped else labels), *rest]})
    changed = int(labelling.table["changed"].sum())
    return render("ask.html", ("ask.js", "ask.css"), images=images, changed=changed, answers=answers), len(images)
