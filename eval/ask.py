"""How reliable are the change estimated from forty answers, and the labels that remain after review?

    python eval/ask.py FILE.safetensors… [--output eval/ask.md]

Each domain is labelled without labels. Then true labels stand in for a person's answers. Forty of the changed pictures
are drawn 2,000 times, and each time the script checks whether the 95 % interval contains the true change. For
``--review-below`` it counts how many of the kept labels are wrong.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import numpy as np
import pandas as pd
from page import show

from clip_tca import ConditionalTCA, load_embeddings
from clip_tca.labelling.change import interval
from clip_tca.labelling.label import for_review, sureness
from clip_tca.results.predictions import prediction_table

ASKED, DRAWS, FEWEST = 40, 2000, 10
HEAD = (
    "domain",
    "pictures",
    "changed",
    "asked",
    "true change",
    "mean estimate",
    "half width",
    "covered",
    "decided",
    "wrong",
)
RISKS = (0.02, 0.05, 0.1)


def asked(table: pd.DataFrame, generator: np.random.Generator) -> str | None:
    """The row of a domain: the true change, and what forty answers say of it; None where too little changed."""
    right_after, right_before = (table["label"] == table["true"]), (table["zero_shot"] == table["true"])
    d = (right_after.astype(int) - right_before.astype(int))[table["changed"]].to_numpy()
    share, truth = 100 * len(d) / len(table), 100 * (right_after.mean() - right_before.mean())
    if len(d) < FEWEST:
        return None
    k = min(ASKED, len(d))
    found = []
    for _ in range(DRAWS):
        drawn = generator.choice(d, k, replace=False)
        found.append([share * value for value in interval(int((drawn > 0).sum()), int((drawn < 0).sum()), k, len(d))])
    points, low, high = np.array(found).T
    holds = ((low - 1e-9 <= truth) & (truth <= high + 1e-9)).mean()
    wrong = (((low > 0) & (truth <= 0)) | ((high < 0) & (truth >= 0))).mean()
    told = ((low > 0) | (high < 0)).mean()
    return (
        f"{len(table)} | {share:.1f} % | {k} | {truth:+.2f} | {points.mean():+.2f} | ±{(high - low).mean() / 2:.1f} | "
        f"{holds:.1%} | {told:.0%} | {wrong:.1%}"
    )


def reviewed(table: pd.DataFrame, sure: np.ndarray, held: dict[float, int]) -> str:
    """The row of a domain: what is wrong of the pictures that keep a label, and how many do, for each risk.

    It counts in ``held`` where no more is wrong than was asked for.
    """
    cells = [f"{(table['label'] != table['true']).mean():.1%}"]
    for risk in RISKS:
        kept = table[~for_review(sure, risk)]
        wrong = (kept["label"] != kept["true"]).mean() if len(kept) else 0.0
        held[risk] += int(wrong <= risk)
        cells.append(f"{wrong:.1%} of {len(kept) / len(table):.0%}" if len(kept) else "none kept")
    return " | ".join(cells)


def main() -> None:
    """Print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("embeddings", nargs="+", help="safetensors files of stored embeddings")
    parser.add_argument("--output", type=Path, help="write the page here instead of printing it")
    options = parser.parse_args()
    logging.getLogger("clip_tca").setLevel(logging.ERROR)
    generator, rows, risks, few = np.random.default_rng(0), [], [], []
    held = dict.fromkeys(RISKS, 0)
    for path in options.embeddings:
        data = load_embeddings(path)
        g = data.classifier()
        names = data.classes or [str(label) for label in range(g.n_classes)]
        for domain, (z, y) in data.domains.items():
            before, after = g.logits(g.prepared(z)), ConditionalTCA(g).fit(z).logits(z)
            table = prediction_table(list(map(str, range(len(y)))), before, after, names)
            table["true"] = [names[label] for label in y.tolist()]
            title = f"{Path(path).stem} {domain}"
            row = asked(table, generator)
            rows += [] if row is None else [f"| {title} | {row} |"]
            few += [title] if row is None else []
            risks.append(f"| {title} | {reviewed(table, sureness(before, after), held)} |")
    show(
        "\n".join(
            [
                "# How reliable are forty answers, and labels after review?",
                "",
                f"Printed by `python eval/ask.py {' '.join(Path(path).name for path in options.embeddings)} "
                "--output eval/ask.md`.",
                "ConditionalTCA labels each domain as one set, without labels. Some embeddings come from an encoder",
                "that is not CLIP, and some from the small bundled model (`_demo`).",
                "",
                "## `--ask 40`: the change in accuracy",
                "",
                f"True labels stand in for your answers, {DRAWS:,} times for each domain. `covered`: the 95 % interval",
                "contains the true change. `decided`: it excludes zero, so it says gain or loss. `wrong`: it says gain",
                "or loss, and the truth is the opposite, or no change.",
                *([f"Fewer than {FEWEST} labels changed, so nothing is asked: {', '.join(few)}."] if few else []),
                "",
                f"| {' | '.join(HEAD)} |",
                "|---|" + "---:|" * (len(HEAD) - 1),
                *rows,
                "",
                "## `--review-below P`: risk and coverage",
                "",
                "The cells show how many of the kept labels are wrong, and how many labels are kept, when at most 2, 5",
                "or 10 % are expected to be wrong. The second column is without review. We chose the rule",
                "(clip_tca/labelling/label.py) among eight by looking at these sets, so expect worse elsewhere.",
                "",
                "The limit holds in "
                + ", ".join(f"{held[risk]} of {len(risks)} domains at P = {risk}" for risk in RISKS)
                + ". A domain that keeps no label counts as holding.",
                "",
                "| domain | wrong | " + " | ".join(f"P = {risk}" for risk in RISKS) + " |",
                "|---|---:|" + "---:|" * len(RISKS),
                *risks,
                "",
            ]
        ),
        options.output,
    )


if __name__ == "__main__":
    main()
