"""T3A: class weights become the mean of the most certain embeddings predicted as that class.

Every embedding joins the support set S_c of the class that g predicts for it. A set keeps its M members of lowest
entropy; its normalised sum is the new weight of the class:

    w_c = Σ_{z ∈ S_c} z / ‖Σ_{z ∈ S_c} z‖        logits = scale · z · wᵀ

with z of unit length in the sums.

Iwasawa and Matsuo, "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization", NeurIPS 2021
(github.com/matsuolab/T3A). The sets start with the class weights, which for CLIP are the text embeddings; the
scale is CLIP's logit scale, else the mean length of the class weights. As in the original, the new classifier has no
bias, and all images of a batch join before any of them is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.adapters.linear import certain_rows
from clip_tca.core.checks import check_whole
from clip_tca.methods.base import EmbeddingMethod, class_rows, directions, scaled_rows


@dataclass(kw_only=True, eq=False, repr=False)
class T3A(EmbeddingMethod):
    """Class weights from the most certain test embeddings, carried from batch to batch.

    ``supports_`` has the members ``(m, d)`` of all sets, of unit length, in order of arrival, the class weights first;
    ``labels_`` their predicted classes and ``entropy_`` the entropy of those predictions.

    Args:
        filter_k: M, members kept for each class; None keeps all. The authors choose among 1, 5, 20, 50, 100 and all on
            source data; without those, 100 is what the code of the TCA paper takes. (Their ``-1``, meant as "all",
            drops the least certain member of each class at every batch.)
    """

    name = "t3a"
    summary = "replaces class weights by the mean of the most certain test embeddings"
    updates = "class weights"

    filter_k: Annotated[int | None, partial(check_whole, also=None)] = 100

    def __post_init__(self) -> None:
        self.scale = scaled_rows(self.task.classifier)[1]
        super().__post_init__()

    @torch.inference_mode(False)
    @torch.no_grad()
    def reset(self) -> None:
        """Leave only the class weights in the support sets."""
        start = class_rows(self.classifier)
        self.supports_ = start.new_empty(0, self.classifier.dim)
        self.labels_ = torch.empty(0, dtype=torch.int64, device=start.device)
        self.entropy_ = start.new_empty(0)
        self._join(start)

    def logits(self, z: Tensor, join: bool) -> Tensor:
        """scale · z · wᵀ, after the embeddings have joined the support sets."""
        if join:
            self._join(z)
        weights = self.weights_.to(z.device)
        return (self.scale * z.to(weights.dtype) @ weights.T).to(z.dtype)

    def _join(self, z: Tensor) -> None:
        log_p = self.classifier.log_probabilities(z)
        entropy = -(log_p.exp() * log_p).sum(dim=1)
        labels = torch.cat([self.labels_.to(z.device), log_p.argmax(dim=1)])
        entropy = torch.cat([self.entropy_.to(entropy), entropy])
        before = len(self.labels_)
        members = torch.arange(len(labels), device=z.device)
        if self.filter_k is not None:
            members = certain_rows(entropy, labels, labels.new_full((self.classifier.n_classes,), self.filter_k))
            if int(members[-1]) < before and z.device == self.supports_.device:
                return  # no new row is certain enough: the usual case once the sets are full
        self.supports_ = torch.cat([self.supports_.to(z.device), directions(self.classifier, z)])[members]
        self.labels_, self.entropy_ = labels[members], entropy[members]
        sums = self.supports_.new_zeros(self.classifier.weight.shape).index_add_(0, self.labels_, self.supports_)
        self.weights_ = functional.normalize(sums, dim=1)
