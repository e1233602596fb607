"""WATT: adapt once for each template, then average the weights.

For each template, ``steps`` gradient steps on CLIPArTT's loss (:func:`clip_tca.methods.clipartt.agreement`), where the
text of an image is that of its most likely class in this template. Then the weights of all templates are averaged,

    θ ← 1/H Σ_h θ_h,

and this ``repetitions`` times. In parallel (WATT-P) every template starts from the last average, in sequence (WATT-S)
from where the one before it ended. Predictions use the mean of the templates. Osowiechi, Noori et al., "WATT: Weight
Average Test-Time Adaptation of CLIP", NeurIPS 2024 (github.com/Mehrdad-Noori/WATT). As in that code, averaging does not
reset Adam's moments; only in the first repetition of WATT-P each template has a new optimiser. It has no form without
reset: ``continual`` here starts a batch from the last average, with a new optimiser. A batch of one image has no
gradient and changes nothing. Of its towers only transformers have LayerNorm; BatchNorm is treated as in CLIPArTT.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import Count, Positive
from clip_tca.methods.base import required_prompts
from clip_tca.methods.clipartt import agreement
from clip_tca.methods.tower import TowerMethod


@dataclass(kw_only=True, eq=False, repr=False)
class WattS(TowerMethod):
    """WATT, every template from the weights of the one before.

    Prompts are required, with all templates, of which one is enough. The defaults are those of the published scripts
    for PACS, OfficeHome and VLCS.

    Args:
        steps: Gradient steps for each template (the paper's L).
        repetitions: Times the weights are averaged (M).
    """

    name = "watt-s"
    summary = "adapts for one template after the other and averages the weights"
    changed = "Towers with BatchNorm and the form without reset are additions."
    ensemble = True
    parallel: ClassVar[bool] = False

    lr: Positive = 1e-4
    steps: Count = 2
    repetitions: Count = 5

    def __post_init__(self) -> None:
        text = required_prompts(self.task, self.name).embeddings
        super().__post_init__()
        with torch.inference_mode(False):
            self.texts = functional.normalize(self._copied(text), dim=-1)

    def adapt(self, batch: Tensor) -> None:
        """``repetitions`` times: the steps for each template, then the average."""
        self.optimizer = self.new_optimizer()
        for repetition in range(self.repetitions):
            start = self.weights()
            total = [torch.zeros_like(weight) for weight in start]
            for text in self.texts:
                if self.parallel:
                    self.load(start)
                    if repetition == 0:
                        self.optimizer = self.new_optimizer()
                for _ in range(self.steps):
                    self.descend(batch, partial(self._loss, text))
                total = [sum_ + weight for sum_, weight in zip(total, self.weights(), strict=True)]
            self.load([weight / len(self.texts) for weight in total])

    def _loss(self, text: Tensor, z: Tensor) -> Tensor:
        return agreement(z, text[(z.detach() @ text.T).argmax(dim=1)], self.scale)


@dataclass(kw_only=True, eq=False, repr=False)
class WattP(WattS):
    """WATT, every template from the same weights, with ten times the repetitions: its scripts have 50."""

    name = "watt-p"
    summary = "adapts for each template in parallel and averages the weights"
    parallel = True

    repetitions: Count = 50
