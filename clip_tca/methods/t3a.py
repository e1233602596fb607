"""T3A: class weights become the mean of the most certain embeddings predicted as that class.

Every embedding joins the support set S_c of the class that the text classifier g predicts for it; a set keeps its M
members of lowest entropy; its normalised sum is the new weight of the class:

    w_c = Σ_{z ∈ S_c} z / ‖Σ_{z ∈ S_c} z‖        logits = scale · z · wᵀ

Iwasawa and Matsuo, "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization", NeurIPS 2021
(github.com/matsuolab/T3A). The sets start with the classifier's own weights, which for CLIP are the text embeddings.
As in the original, all images of a batch join before any of them is predicted.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.checks import check_whole
from clip_tca.core.tensors import check_rows, unit
from clip_tca.methods.base import Method, Task


class T3A(Method):
    """Class weights from the most certain test embeddings, carried from batch to batch.

    Attributes:
        filter_k: M, the members that a support set keeps.
        supports_: ``(m, d)`` members of all sets in order of arrival, the texts first.
        labels_: ``(m,)`` their predicted classes.
        entropy_: ``(m,)`` the entropy of those predictions.
    """

    name: ClassVar[str] = "t3a"
    summary: ClassVar[str] = "replaces class weights by the mean of the most certain test embeddings"
    updates: ClassVar[str] = "class weights"
    backpropagation: ClassVar[bool] = False
    sees: ClassVar[Literal["images", "embeddings"]] = "embeddings"

    def __init__(self, task: Task, *, filter_k: int | None = 100) -> None:
        """Start from the text embeddings.

        Args:
            task: Prompts; the mean of the templates is the classifier.
            filter_k: Members kept for each class; None keeps all. The authors choose among 1, 5, 20, 50, 100 and all
                on source data; without those, 100 is what the code of the TCA paper takes. (Their ``-1``, meant as
                "all", drops the least certain member of each class at every batch.)

        Raises:
            ValueError: If ``filter_k`` is not a whole number of at least 1.
        """
        check_whole("filter_k", filter_k, also=None)
        self.filter_k = filter_k
        self.classifier = ZeroShotClassifier(task.text, task.scale)
        self.reset()

    @torch.inference_mode(False)
    @torch.no_grad()
    def reset(self) -> None:
        """The support sets hold the texts only."""
        text = self.classifier.text
        self.supports_ = text.new_empty(0, text.shape[1])
        self.labels_ = torch.empty(0, dtype=torch.int64, device=text.device)
        self.entropy_ = text.new_empty(0)
        self._join(text)

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Let the batch join the support sets, then predict it by them; the embeddings stay as they are."""
        check_rows(batch, self.classifier.dim)
        z = unit(batch)
        self._join(z)
        return z, self._logits(z)

    @torch.inference_mode(False)
    @torch.no_grad()
    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Predict by the support sets as they are."""
        check_rows(batch, self.classifier.dim)
        z = unit(batch)
        return z, self._logits(z)

    def _logits(self, z: Tensor) -> Tensor:
        weights = self.weights_.to(z.device)
        return (self.classifier.scale * z.to(weights.dtype) @ weights.T).to(z.dtype)

    def _join(self, z: Tensor) -> None:
        log_p = self.classifier.log_probabilities(z)
        entropy = -(log_p.exp() * log_p).sum(dim=1)
        labels = torch.cat([self.labels_.to(z.device), log_p.argmax(dim=1)])
        entropy = torch.cat([self.entropy_.to(entropy), entropy])
        before = len(self.labels_)
        kept = torch.arange(len(labels), device=z.device)
        if self.filter_k is not None:
            kept = most_certain(labels, entropy, self.filter_k)
            if int(kept[-1]) < before and z.device == self.supports_.device:
                return  # none of them is certain enough: the usual case once the sets are full
        self.supports_ = torch.cat([self.supports_.to(z.device), z])[kept]
        self.labels_, self.entropy_ = labels[kept], entropy[kept]
        sums = self.supports_.new_zeros(self.classifier.text.shape).index_add_(0, self.labels_, self.supports_)
        self.weights_ = functional.normalize(sums, dim=1)


def most_certain(labels: Tensor, entropy: Tensor, k: int) -> Tensor:
    """Indices, ascending, of the ``k`` rows of lowest entropy of every class; of equal rows the first come stay."""
    order = entropy.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # by class, and by entropy within a class
    grouped = labels[order]
    rank = torch.arange(len(order), device=order.device) - torch.searchsorted(grouped, grouped)
    return order[rank < k].sort().values
