"""Every method on embeddings of OpenAI's CLIP ViT-B/32: whole test sets, few classes, long tails, streams.

    python eval/clip/tables.py IMAS CLIP_LT [--set NAME…] [--method NAME…] [--output PAGE.md]

IMAS and CLIP_LT are checkouts of two public repositories that hold CLIP's features as data files:

    git clone https://github.com/bunnieslala/IMAS
    git clone https://github.com/rotem154154/clip_lt

``IMAS/caches/SET/`` has test images (``test_f.pt``, ``test_l.pt``), validation images (``val_f.pt``, ``val_l.pt``) and
training images (``keys_Nshots.pt``, each the mean of ten augmented views, with one-hot ``values_Nshots.pt``).
``CLIP_LT/text_features2.pt`` has "a photo of a X" for the 1,000 classes of ImageNet. Nothing of theirs is part of this
project.

The classifier g is made of text if there is text, else of prototypes: the mean of one to eight training images of each
class. A set whose test images are missing is measured on eight training images of each class. The regimes are those of
../regimes.py. The files are read without running any code in them.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))
from page import show, side_by_side
from regimes import Case, calibration, domain_cases, predictions

from clip_tca import ZeroShotClassifier
from clip_tca.methods.registry import RIVAL_METHODS
from clip_tca.studies.frame import accuracy

DIM = 512
REGIMES = ("whole", "few classes", "long tail", "random stream", "sorted stream")
SEEDS = 3
METHODS = tuple(name for name in RIVAL_METHODS if name != "zero-shot")
OURS = "conditional-tca"
PETS_IN_IMAGENET = {
    3: 161, 4: 162, 8: 242, 10: 151, 11: 285, 12: 219, 13: 212, 14: 210, 15: 257, 17: 152, 18: 261, 19: 255, 21: 237,
    22: 256, 23: 283, 24: 259, 25: 254, 28: 247, 29: 258, 30: 199, 32: 284, 34: 179, 35: 202, 36: 187,
}  # fmt: skip
"""The breeds of Oxford-IIIT Pet that are classes of ImageNet, and which."""


class Source(NamedTuple):
    """A set: its folder in IMAS, shots that make a prototype (0: text), whether it is kept for a check, its images."""

    folder: str
    shots: int
    held_out: bool = False
    images: str = "test"


SETS = {
    "pets24": Source("oxford_pets", 0),
    "imagenet7": Source("imagenet", 0),
    "oxford_pets": Source("oxford_pets", 2),
    "dtd": Source("dtd", 1),
    "sun397": Source("sun397", 1),
    "fgvc": Source("fgvc", 4),
    "caltech101": Source("caltech101", 1, held_out=True),
    "oxford_flowers": Source("oxford_flowers", 1, held_out=True),
    "ucf101": Source("ucf101", 1, held_out=True),
    "food101": Source("food101", 1, held_out=True),
    "stanford_cars": Source("stanford_cars", 1, held_out=True),
    "eurosat": Source("eurosat", 1, held_out=True),
    "caltech101-val": Source("caltech101", 8, held_out=True, images="val"),
    "oxford_flowers-val": Source("oxford_flowers", 8, held_out=True, images="val"),
    "ucf101-val": Source("ucf101", 8, held_out=True, images="val"),
    "stanford_cars-val": Source("stanford_cars", 8, held_out=True, images="val"),
}


def tensor(path: Path) -> Tensor:
    """A tensor of a file, in float32."""
    return torch.as_tensor(torch.load(path, weights_only=True, map_location="cpu")).float()


def shots(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """Training images ``(n, 512)`` and their labels ``(n,)``; ValueError if they are of another model."""
    keys, values = tensor(folder / f"keys_{count}shots.pt").T, tensor(folder / f"values_{count}shots.pt")
    if keys.shape[1] != DIM:
        raise ValueError(f"{folder.name}: {count} shots have {keys.shape[1]} dimensions, of another model")
    return keys, values.argmax(dim=1)


def read(name: str, imas: Path, clip_lt: Path) -> tuple[ZeroShotClassifier, Tensor, Tensor]:
    """Classifier, images and labels of a set."""
    source = SETS[name]
    folder = imas / "caches" / source.folder
    if name == "imagenet7":
        parts = [shots(folder, count) for count in (1, 2, 4)]
        z, y = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        return ZeroShotClassifier(tensor(clip_lt / "text_features2.pt"), 100), unit(z), y
    if (folder / f"{source.images}_f.pt").is_file():
        z, y = tensor(folder / f"{source.images}_f.pt"), tensor(folder / f"{source.images}_l.pt").long()
    else:
        z, y = shots(folder, 8)
    if source.shots:
        keys, labels = shots(folder, source.shots)
        sums = torch.zeros(int(labels.max()) + 1, DIM).index_add_(0, labels, unit(keys))
        return ZeroShotClassifier(sums, 100), unit(z), y
    kept = torch.tensor(list(PETS_IN_IMAGENET))
    text = tensor(clip_lt / "text_features2.pt")[list(PETS_IN_IMAGENET.values())]
    present = torch.isin(y, kept)
    return ZeroShotClassifier(text, 100), unit(z[present]), torch.searchsorted(kept, y[present])


def unit(z: Tensor) -> Tensor:
    """Rows of length one."""
    return functional.normalize(z, dim=1)


def cases(names: list[str], imas: Path, clip_lt: Path) -> Iterator[Case]:
    """Every test set of every regime; sets that can't be read are named on standard error."""
    for name in names:
        try:
            g, z, y = read(name, imas, clip_lt)
        except (OSError, ValueError) as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
            continue
        streams = set()
        for case in domain_cases((name, "all"), g, z, y, SEEDS):
            if case.regime in REGIMES and case.regime not in streams:
                yield case
            if case.stream:  # one draw of each is enough
                streams.add(case.regime)


def gains(found: list[Case], method: str) -> tuple[dict[tuple[str, str], float], float]:
    """Mean gain over g by regime and set, in points, and the CPU seconds that whole sets took."""
    values: dict[tuple[str, str], list[float]] = {}
    seconds = 0.0
    for case in found:
        began = time.process_time()
        right = accuracy(predictions(method, case), case.y)
        seconds += (time.process_time() - began) * (case.regime == "whole")
        before = accuracy(torch.as_tensor(case.classifier.predict(case.z)), case.y)
        values.setdefault((case.regime, case.source[0]), []).append(right - before)
    return {key: sum(of) / len(of) for key, of in values.items()}, seconds


Measured = dict[str, dict[tuple[str, str], float]]


def mean(values: dict[tuple[str, str], float], regime: str, names: list[str]) -> float:
    """Mean gain over some sets; not a number if there are none."""
    return sum(values[regime, name] for name in names) / len(names) if names else float("nan")


def table(measured: Measured, regime: str, names: list[str]) -> list[str]:
    """A row for each method: its gain on each set, mean of all and of those held out, and worst."""
    marked = [name + "*" * SETS[name].held_out for name in names]
    lines = [f"| method | {' | '.join(marked)} | mean | mean of * | worst |", "|---" + "|---:" * (len(names) + 3) + "|"]
    for method, values in measured.items():
        row = [values[regime, name] for name in names]
        held_out = mean(values, regime, [name for name in names if SETS[name].held_out])
        cells = [f"{value:+.1f}" for value in (*row, mean(values, regime, names), held_out, min(row))]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def who_is_ahead(measured: Measured, names: list[str]) -> list[str]:
    """A line for each regime: the methods that gain more than ours on average."""
    lines = []
    groups = {"all sets": names, "sets marked *": [name for name in names if SETS[name].held_out]}
    for regime in REGIMES:
        ahead = []
        for group, members in groups.items():
            ours = mean(measured[OURS], regime, members)
            better = [name for name, values in measured.items() if mean(values, regime, members) > ours]
            ahead.append(f"{group}: {', '.join(better) or 'none'}")
        lines.append(f"* {regime}: {'; '.join(ahead)}.")
    return lines


def page(names: list[str], methods: list[str], imas: Path, clip_lt: Path) -> str:
    """The page."""
    words = "".join(f" --method {method}" for method in methods) if tuple(methods) != METHODS else ""
    found = list(cases(names, imas, clip_lt))
    names = list(dict.fromkeys(case.source[0] for case in found))
    results = side_by_side(methods, partial(gains, found))
    measured = {method: result[0] for method, (result, _) in results.items()}
    seconds = {method: result[1] for method, (result, _) in results.items()}
    whole = {case.source[0]: case for case in found if case.regime == "whole"}
    ours = seconds.get(OURS)
    lines = [
        "# On embeddings of CLIP itself",
        "",
        f"Printed by `python eval/clip/tables.py IMAS CLIP_LT{words} --output eval/clip/README.md`;",
        "[tables.py](tables.py) says where the embeddings come from and how they are read. OpenAI's CLIP ViT-B/32,",
        "scale 100. Points of accuracy gained over the classifier g. Methods see no label; labels draw the regimes",
        f"(../regimes.py): five draws of a few classes, {SEEDS} long tails, one stream of each kind. Sets marked * did",
        "not serve to choose the defaults (an earlier version was measured on those of test images). Those that end in",
        "-val have a strong g.",
        "",
        *(
            ["Methods that gain more than conditional-tca on average:", "", *who_is_ahead(measured, names), ""]
            * bool(ours)
        ),
        "| set | images | classes | g | accuracy of g |",
        "|---|---:|---:|---|---:|",
    ]
    for name, case in whole.items():
        source = SETS[name]
        made = f"prototypes, {source.shots} shot{'s' * (source.shots > 1)}" if source.shots else "text"
        right = accuracy(torch.as_tensor(case.classifier.predict(case.z)), case.y)
        mark = "*" * source.held_out
        lines.append(f"| {name}{mark} | {len(case.y)} | {case.classifier.n_classes} | {made} | {right:.1f} |")
    for regime in REGIMES:
        lines += ["", f"## {regime.capitalize()}", "", *table(measured, regime, names)]
    lines += [
        "",
        "## Calibration",
        "",
        "Expected calibration error of g and of ConditionalTCA in points (15 bins).",
        "",
    ]
    lines += calibration([case for case in found if not case.stream])
    if ours:
        lines += [
            "",
            "## Time and memory",
            "",
            f"CPU time on the whole sets, divided by that of {OURS}, and the most memory beyond the embeddings, in all",
            "regimes. One thread.",
            "",
            "| method | time | MB |",
            "|---|---:|---:|",
            *(f"| {method} | {spent / ours:.2g} | {results[method][1]:,.0f} |" for method, spent in seconds.items()),
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imas", type=Path, help="checkout of bunnieslala/IMAS")
    parser.add_argument("clip_lt", type=Path, help="checkout of rotem154154/clip_lt")
    parser.add_argument("--set", action="append", choices=SETS, help="only these sets")
    parser.add_argument("--method", action="append", choices=METHODS, help="only these methods")
    parser.add_argument("--output", type=Path, help="write the page here instead of printing it")
    options = parser.parse_args()
    logging.getLogger("clip_tca").setLevel(logging.ERROR)
    text = page(options.set or list(SETS), options.method or list(METHODS), options.imas, options.clip_lt)
    show(text, options.output)


if __name__ == "__main__":
    main()
