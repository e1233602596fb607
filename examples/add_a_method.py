"""Write your own test-time method, evaluate it, and put LinearTCA on top of it.

    python examples/add_a_method.py [DATASET]

DATASET is a value of ``clip-tca eval --dataset`` (demo, a .safetensors file of embeddings, …). The default is a small
synthetic set. The method, Debias, assumes that all classes are equally frequent. Then the mean prediction over all
images is a bias of the classifier, and Debias subtracts it. The program prints the accuracy of zero-shot, debias,
LinearTCA and debias+tca.
"""

from __future__ import annotations

import sys
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clip_tca import Method, Task, evaluate, register, render


@register
class Debias(Method):
    """Logits minus the log of the mean prediction so far. The contract is in clip_tca/methods/base.py."""

    name: ClassVar[str] = "debias"
    summary: ClassVar[str] = "subtracts the mean prediction from the logits"
    updates: ClassVar[str] = "a bias for each class"
    backpropagation: ClassVar[bool] = False
    sees: ClassVar[Literal["images", "embeddings"]] = "embeddings"

    def __init__(self, task: Task, *, strength: float = 1.0) -> None:
        """Options come after the task, and are set by ``evaluate(options={"strength": 0.5})``."""
        self.classifier, self.strength = task.classifier, strength
        self.reset()

    def reset(self) -> None:
        """Start again: every class has been predicted once."""
        self.total = torch.ones(self.classifier.n_classes, device=self.classifier.device)

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Count the batch, then predict it."""
        self.total = self.total + self.classifier.predict_proba(batch).sum(dim=0)
        return self.predict(batch)

    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unchanged embeddings and the corrected logits."""
        bias = (self.total / self.total.sum()).log()
        return batch, self.classifier.logits(batch) - self.strength * bias


if __name__ == "__main__":
    dataset = sys.argv[1] if len(sys.argv) > 1 else "synthetic"
    record = evaluate(dataset, methods=["zero-shot", "debias", "linear-tca", "debias+tca"])
    print(render([record], "table"))
