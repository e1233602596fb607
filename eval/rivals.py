"""Accuracy in every regime of the rivals on embeddings, beside ours: the regimes × methods table.

    python eval/rivals.py EMBEDDINGS.safetensors… [--domain NAME…] [--without NAME…] [--seeds 3] [--output PAGE.md]

Regimes, test sets and scoring are those of regimes.py, which says how a base method sees them. The methods are those
of ``clip-tca eval --method rivals``.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

from page import arguments, show, side_by_side
from regimes import BATCH, Case, Gains, cases, gains, predictions, row, zero_shot_line
from torch import Tensor

from clip_tca.methods.registry import BASES, RIVAL_METHODS, base_method

OURS = "conditional-tca"
"""What times are relative to."""
METHODS = [name for name in RIVAL_METHODS if name != "zero-shot"]


def measured(found: list[Case], method: str) -> tuple[Gains, dict[str, float]]:
    """The gains of a method, and the CPU seconds that it took on whole domains, by file."""
    seconds: dict[str, float] = {}

    def predict(case: Case) -> Tensor:
        began = time.process_time()
        predicted = predictions(method, case)
        if case.regime == "whole":
            seconds[case.source[0]] = seconds.get(case.source[0], 0) + time.process_time() - began
        return predicted

    return gains(found, predict), seconds


def label(method: str) -> str:
    """The name with what sets its row apart."""
    if method not in BASES:
        return f"**{method}**"
    kind = base_method(method)
    marks = ["in batches"] if kind.nature != "transductive" else []
    marks += ["authors tuned on test data"] if kind.tuned_on_test else []
    return f"{method} ({', '.join(marks)})" if marks else method


def mean(values: list[tuple[float, int]]) -> float:
    """Mean gain of some cases."""
    return sum(gain for gain, _ in values) / len(values)


def by_file(found: dict[str, Gains], regimes: list[str], files: list[str]) -> list[str]:
    """Mean gains of each method by regime, files apart."""
    lines = [f"| method | {' | '.join(regimes)} |", "|---" * (len(regimes) + 1) + "|"]
    for method, values in found.items():
        cells = [" / ".join(f"{mean(values[regime, file]):+.1f}" for file in files) for regime in regimes]
        lines.append(f"| {label(method)} | {' | '.join(cells)} |")
    return lines


def costs(seconds: dict[str, dict[str, float]], memory: dict[str, float], files: list[str]) -> list[str]:
    """CPU time of each method on the whole domains of each file relative to ours, and its memory in MB."""
    lines = [f"| method | {' | '.join(files)} | MB |", "|---" * (len(files) + 2) + "|"]
    for method, spent in seconds.items():
        ratios = [f"{spent[file] / seconds[OURS][file]:.2g}" for file in files]
        lines.append(f"| {label(method)} | {' | '.join(ratios)} | {memory[method]:,.0f} |")
    return lines


def natures(methods: list[str]) -> list[str]:
    """How each base method sees the test set, and what its authors tuned on test data."""
    kinds = {name: base_method(name) for name in methods if name in BASES}
    words = {
        "transductive": f"whole set at once; in streams solved for each batch of {BATCH}",
        "online": f"batches of {BATCH} everywhere, with a state that is carried on; sets come in random order",
        "batch": f"batches of {BATCH} everywhere, each alone",
    }
    lines = [
        f"* {nature}: {', '.join(named)}: {words[nature]}."
        for nature in words
        if (named := [f"`{name}`" for name, kind in kinds.items() if kind.nature == nature])
    ]
    lines += [
        "* ours: the defaults were chosen on these embeddings, over all regimes (defaults.md), which favours them.",
        "* `gmm`: of several starts, one that is strong on these embeddings, which favours it.",
    ]
    return lines + [
        f"* authors tuned on test data: `{name}`: {kind.tuned_on_test}."
        for name, kind in kinds.items()
        if kind.tuned_on_test
    ]


def page(paths: list[str], domains: list[str] | None, seeds: int, without: list[str]) -> str:
    """The whole page; methods ``without`` are left out."""
    found = list(cases(paths, domains, seeds))
    results = side_by_side([name for name in METHODS if name not in without], partial(measured, found))
    gained = {name: result[0] for name, (result, _) in results.items()}
    seconds = {name: result[1] for name, (result, _) in results.items()}
    memory = {name: megabytes for name, (_, megabytes) in results.items()}
    regimes, files = (list(dict.fromkeys(values)) for values in zip(*gained[OURS], strict=True))
    words = [*(Path(p).name for p in paths), *(f"--domain {name}" for name in domains or ()), f"--seeds {seeds}"]
    words += [f"--without {name}" for name in without]
    head = f"| method | {' | '.join(regimes)} | mean | worst | worst, n ≥ 200 |"
    return "\n".join(
        [
            "# Rivals on embeddings, in every regime",
            "",
            f"Printed by `python eval/rivals.py {' '.join(words)} --output eval/rivals.md`.",
            "Points of accuracy gained over zero-shot: mean of the cases (data sets weigh alike), the worst case in",
            "brackets. The regimes are described in [regimes.py](regimes.py); methods see no label. The embeddings are",
            "real ones of PACS, OfficeHome and VLCS from DINOv2 ViT-S/14 with a linear projection into the text space",
            "of MiniLM-L6; [clip/](clip/README.md) has CLIP itself. Hyper-parameters are the published ones, or those",
            "of the authors' programs where print differs (docs/results.md says where); for a logit scale of 100 the",
            "model's own is taken. Zero-shot:",
            f"{zero_shot_line(found)}.",
            "",
            "How the methods see a test set (ours: the whole set at once, and streams batch after batch):",
            "",
            *natures(list(gained)),
            "",
            head,
            "|---" * (len(regimes) + 4) + "|",
            *(row(label(name), values) for name, values in gained.items()),
            "",
            f"## By data set: {' / '.join(files)}",
            "",
            *by_file(gained, regimes, files),
            "",
            "## Time and memory",
            "",
            f"CPU time on whole domains, divided by that of {OURS}, and the most memory beyond the embeddings, in all",
            "regimes. In the same run, one thread.",
            "",
            *costs(seconds, memory, files),
            "",
        ]
    )


if __name__ == "__main__":
    parser = arguments(__doc__)
    rivals = [name for name in METHODS if name in BASES]
    parser.add_argument("--without", action="append", default=[], choices=rivals, help="leave this method out")
    options = parser.parse_args()
    logging.getLogger("clip_tca").setLevel(logging.ERROR)
    show(page(options.embeddings, options.domain, options.seeds, options.without), options.output)
