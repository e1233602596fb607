"""What each number of ConditionalTCA is worth: gains with all of them, and with one of them changed or without effect.

    PYTHONPATH=. python eval/ablation.py EMBEDDINGS.safetensors… [--domain NAME…] [--seeds 1] [--output PAGE.md]

The numbers are those of ``Constants`` in clip_tca/adapters/conditional.py. Regimes and test sets are those of
regimes.py, without streams. The files of one folder are a collection, in which they weigh alike; those of the bundled
model ("_demo") are one of their own.
"""

from __future__ import annotations

from pathlib import Path

import torch
from page import arguments, show, side_by_side
from regimes import Case, Gains, calibration_error, cases, gains
from torch import Tensor

from clip_tca.adapters.conditional import Constants, fit_conditional

ALWAYS = 1e-9
CHANGES: dict[str, dict[str, float]] = {
    "as they are": {},
    "g is not cooled (calm = ∞, start = 0)": {"calm": 1e9, "start": 0.0},
    "calm = 1": {"calm": 1.0},
    "calm = ∞ (calm is for heads with far too large logits)": {"calm": 1e9},
    "start = 1": {"start": 1.0},
    "start = 3": {"start": 3.0},
    "neighbours = 1": {"neighbours": 1},
    "neighbours = 8": {"neighbours": 8},
    "sample = 512": {"sample": 512},
    "least_shrinkage = 0.1": {"least_shrinkage": 0.1},
    "least_shrinkage = 0.5": {"least_shrinkage": 0.5},
    "least_kappa = 0 (no shrinkage of means but κ)": {"least_kappa": 0.01},
    "least_kappa = 5": {"least_kappa": 5.0},
    "images = 10": {"images": 10.0},
    "images = 40": {"images": 40.0},
    "full trust (images = 0)": {"images": ALWAYS},
    "no prior (strongest_prior = 0)": {"strongest_prior": 0.0},
    "strongest_prior = 1": {"strongest_prior": 1.0},
    "strongest_prior = 3": {"strongest_prior": 3.0},
    "prior_slope = 15": {"prior_slope": 15.0},
    "prior_slope = 60": {"prior_slope": 60.0},
    "prior_slope = ∞": {"prior_slope": 1e9},
    "g is never kept (sure = 1)": {"sure": 1.1},
    "sure = 0.55": {"sure": 0.55},
    "fewest = 4": {"fewest": 4},
    "fewest = 16": {"fewest": 16},
}
"""What is changed in each row."""


def probabilities(case: Case, changes: dict[str, float]) -> Tensor:
    """What the method says of a case."""
    z = case.classifier.prepared(case.z.float())
    log_p = case.classifier.log_probabilities(z)
    fitted = fit_conditional(z, log_p, constants=Constants(**changes))  # type: ignore[arg-type]
    return (fitted.anchor * log_p + z.double() @ fitted.weight.T + fitted.bias).softmax(dim=1)


def measured(found: list[Case], changes: dict[str, float]) -> tuple[Gains, float]:
    """Gains of all cases and their mean calibration error."""
    errors: list[float] = []

    def predicted(case: Case) -> Tensor:
        p = probabilities(case, changes)
        errors.append(calibration_error(p, case.y))
        return p.argmax(dim=1)

    return gains(found, predicted), sum(errors) / len(errors)


def summary(found: Gains) -> tuple[float, float, float]:
    """Mean gain over the regimes (files weigh alike), mean on whole domains, and the worst case."""
    regimes: dict[str, list[float]] = {}
    for (regime, _), values in found.items():
        regimes.setdefault(regime, []).append(sum(gain for gain, _ in values) / len(values))
    means = {regime: sum(values) / len(values) for regime, values in regimes.items()}
    return (
        sum(means.values()) / len(means),
        means["whole"],
        min(gain for values in found.values() for gain, _ in values),
    )


def main() -> None:
    """Print or write the page."""
    parser = arguments(__doc__)
    parser.set_defaults(seeds=1)
    options = parser.parse_args()
    collections: dict[str, list[str]] = {}
    for path in options.embeddings:
        demo = " (bundled model)" if Path(path).stem.endswith("_demo") else ""
        collections.setdefault(Path(path).parent.name + demo, []).append(path)
    test_sets = {
        name: [case for case in cases(paths, options.domain, options.seeds) if not case.stream]
        for name, paths in collections.items()
    }
    lines = [
        "# What each number of ConditionalTCA is worth",
        "",
        f"Printed by `PYTHONPATH=. python eval/ablation.py {' '.join(Path(p).name for p in options.embeddings)}",
        f"--seeds {options.seeds} --output eval/ablation.md`. Points of accuracy gained over zero-shot: mean of the",
        "regimes without streams (files weigh alike) / mean of the whole domains / worst case of all; last the mean",
        "calibration error in points (15 bins). The numbers are described in clip_tca/adapters/conditional.py.",
        "Labels draw test sets and score; the method sees none.",
        "",
        f"| numbers | {' | '.join(test_sets)} | mean of the means | calibration error |",
        "|---" * (len(test_sets) + 3) + "|",
    ]

    def row(name: str) -> str:
        both = [measured(found, CHANGES[name]) for found in test_sets.values()]
        figures = [summary(found) for found, _ in both]
        cells = [f"{mean:+.2f} / {whole:+.1f} / {worst:+.1f}" for mean, whole, worst in figures]
        means = sum(figure[0] for figure in figures) / len(figures), sum(error for _, error in both) / len(both)
        return f"| {name} | {' | '.join(cells)} | {means[0]:+.2f} | {means[1]:.1f} |"

    torch.set_num_threads(1)
    rows = side_by_side(list(CHANGES), row)
    lines += [rows[name][0] for name in CHANGES]
    show("\n".join(lines) + "\n", options.output)


if __name__ == "__main__":
    main()
