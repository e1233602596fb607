"""Bad options of every method are named, with their value and what is allowed."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from clip_tca.classifier import LinearClassifier
from clip_tca.methods.base import Task
from clip_tca.methods.entropy import Tent
from clip_tca.methods.registry import BASES, base_method
from clip_tca.methods.tower import BN
from clip_tca.methods.views import TPT
from tests.methods.small import RESNET, VIT, clip, pictures, prompted, task, timm_clip, tiny_task

STEPS = {"lr": [0.0, "fast"], "steps": [0, 1.5], "continual": ["no"]}
TOWER = {**STEPS, "micro_batch": [0]}
MIXTURE = {"neighbours": [-1], "text_weight": ["much"], "likelihood_weight": [-1], "rounds": [0]}
BAD: dict[str, dict[str, list[Any]]] = {
    "tent": TOWER,
    "bn": {"prior": [-1, math.inf, "some"]},
    "clipartt": {**TOWER, "k": [0, 6, 2.0, True]},
    "watt-p": {**TOWER, "repetitions": [0]},
    "watt-s": {**TOWER, "repetitions": [0]},
    "tpt": {"lr": [0], "steps": [-1], "views": [0], "keep": [1.5], "seed": [0.5]},
    "zero": {"keep": [0], "views": [0]},
    "mta": {"affinity_weight": [-1], "entropy_weight": [0], "rounds": [0]},
    "eata": {**TOWER, "margin": [1.5, math.nan], "redundancy": [-0.1]},
    "sar": {**TOWER, "margin": [-0.1], "rho": [-1, None], "recovery": [-1]},
    "tsd": {**TOWER, "entries": [0], "similarity": ["dot"]},
    "tea": {
        **TOWER,
        "langevin_steps": [-1],
        "langevin_lr": [-1],
        "langevin_std": [-1],
        "buffer": [0],
        "restart": [2],
        "seed": [0.5],
    },
    "tipi": {**TOWER, "epsilon": [-1], "entropy_weight": [-1], "seed": [-1]},
    "plc": {**STEPS, "threshold": [1.1, "high"]},
    "t3a": {"filter_k": [2.5, 0]},
    "adanpc": {"k": [0], "temperature": [0], "threshold": [-1], "labels": ["truth"]},
    "tda": {"positive_shots": [-1], "negative_alpha": [math.nan], "mask_low": ["low"]},
    "dmn": {"memory_weight": [-1], "memory_shots": [0.5]},
    "oga": {"shots": [0], "divide_by": ["8"]},
    "transclip": {**MIXTURE, "start_shots": [0]},
    "stata": {**MIXTURE, "soft_counts": ["yes"], "anchor_strength": [-1]},
    "zlap": {"graph_k": [0], "propagation": [1.0]},
    "gmm": {"ridge": [0], "em_rounds": [0], "kmeans_rounds": [-1]},
    "dota": {"rows_at_once": [0], "shrinkage": [0], "mean_start": [2]},
    "bca": {"prior_threshold": [65], "embedding_count": [-1]},
    "ecalp": {"rounds": [0], "edge_power": [-1]},
    "dpe": {"learning_rate": [-1], "shots": [0]},
}


@pytest.mark.parametrize("name", BASES)
def test_a_bad_option_is_named_with_what_is_allowed(name: str) -> None:
    kind: Any = base_method(name)
    made = {"bn": lambda: task(clip(RESNET)), "tpt": lambda: task(clip(VIT))}.get(name, tiny_task)()
    kind(made)
    for option, values in BAD[name].items():
        for value in values:
            with pytest.raises(ValueError, match=rf"^{option}: {re.escape(repr(value))}.*; allowed are "):
                kind(made, **{option: value})


def no_text() -> Task:
    return Task(LinearClassifier(torch.eye(5, 16)), tiny_task().model)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: base_method("tda")(tiny_task(), entropy_low=0.6), "entropy_low, entropy_high: 0.6, 0.5"),
        (lambda: Tent(task(clip(RESNET)), micro_batch=2), "micro_batch: 2, but the image tower has BatchNorm"),
        (lambda: Tent(task(timm_clip("test_nfnet"))), "NormFreeNet: an image tower without normalisation weights"),
        (lambda: Tent(task(clip(VIT).half())), "VisionTransformer: normalisation weights in torch.float16"),
        (lambda: Tent(task(clip(VIT)))(pictures(4)[:0]), "no images"),
        (lambda: BN(task(clip(VIT))), "'bn' changes the statistics of BatchNorm layers, and VisionTransformer has"),
        (lambda: BN(task(clip(RESNET)))(pictures(4)[:0]), "no images"),
        (lambda: base_method("mta")(tiny_task())(torch.zeros(2, 3, 2, 2)), "batch: shape (2, 3, 2, 2); expected (n, "),
        (lambda: base_method("zero")(tiny_task()).predict(torch.zeros(2, 3, 2, 2)), "batch: shape (2, 3, 2, 2)"),
        (lambda: TPT(task(clip(VIT)))(torch.zeros(2, 3, 2, 2)), "batch: shape (2, 3, 2, 2); expected (n, views, 3, "),
        (lambda: TPT(tiny_task()), "tokenizer: no tokens of 'a photo of a' are shared by all prompts"),
        (
            lambda: TPT(prompted(torch.ones(1, 5, 2), 1.0, torch.nn.Linear(2, 2))),
            "Linear: a text tower without token embeddings",
        ),
        (lambda: base_method("t3a")(tiny_task())(torch.ones(2, 3)), "dimension 3, but the classifier has 16"),
        (lambda: base_method("clipartt")(no_text()), "'clipartt' puts class names into templates, and this classifier"),
        (lambda: base_method("watt-p")(no_text()), "'watt-p' puts class names into templates, and this classifier"),
        (lambda: base_method("watt-s")(no_text()), "'watt-s' puts class names into templates, and this classifier"),
        (lambda: TPT(no_text()), "'tpt' puts class names into templates, and this classifier has none"),
    ],
)
def test_what_does_not_fit_is_named(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
