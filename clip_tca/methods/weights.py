"""PLC, T3A, BCA and DPE: the class weights (CLIP: text embeddings) follow the test embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import Amount, Count, Flag, Positive, Share, check_whole
from clip_tca.core.tensors import unit
from clip_tca.methods.base import EmbeddingMethod, class_rows, directions, entropy, finite_log, prototypes, scaled_rows
from clip_tca.methods.caches import ClassCache

ADAM_EPSILON = 1e-3  # that of DPE's AdamW


@dataclass(kw_only=True, eq=False, repr=False)
class PLC(EmbeddingMethod):
    """PLC: pseudo-labels, classifier only.

    A step of Adam minimises the cross-entropy of the model's own predictions, −log p(ŷ) with ŷ = arg max p, over the
    images with p(ŷ) above the threshold; only the rows change, in logits = scale · z · rowsᵀ + bias. They are not
    normalised again, and a batch without a confident image still takes a step by Adam's momentum.

    Lee, "Pseudo-Label", ICML workshop 2013, as the baseline PLClf of Iwasawa and Matsuo (T3A), NeurIPS 2021.
    """

    name = "plc"
    summary = "cross-entropy with confident pseudo-labels, on the classifier alone"
    updates = "class weights"
    backpropagation = True
    changed = (
        "The class weights are multiplied by a fixed scale, the bias stays fixed, and a batch is predicted after its "
        "step instead of before."
    )

    lr: Positive = 5e-5
    steps: Count = 1  # for each batch
    threshold: Share = 0.9
    continual: Flag = True  # go on from the last batch, not from the original weights

    def clear(self) -> None:
        rows, self.scale = scaled_rows(self.classifier)
        self.rows, self.bias = rows.clone(), self.classifier.bias.clone().to(rows)
        self.optimizer = torch.optim.Adam([self.rows], lr=self.lr)

    def logits(self, z: Tensor, join: bool) -> Tensor:
        rows = z.clone().to(self.rows)
        if join:
            if not self.continual:
                self.clear()
            self.rows.requires_grad_(True)
            try:
                for _ in range(self.steps):
                    self._step(rows)
            finally:
                self.rows.requires_grad_(False)
        return self._scores(rows).to(z)

    @torch.enable_grad()
    def _step(self, z: Tensor) -> None:
        logits = self._scores(z)
        confidence, label = logits.softmax(dim=1).max(dim=1)
        confident = confidence > self.threshold
        loss = functional.cross_entropy(logits[confident], label[confident], reduction="sum")
        (loss / confident.sum().clamp(min=1)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _scores(self, z: Tensor) -> Tensor:
        return self.scale * z @ self.rows.T + self.bias


@dataclass(kw_only=True, eq=False, repr=False)
class T3A(EmbeddingMethod):
    """T3A: class weights become the mean of the most certain embeddings predicted as that class.

    Every embedding joins the support set S_c of the class that g predicts for it. A set keeps its M members of lowest
    entropy; its normalised sum is the new weight of the class:

        w_c = Σ_{z ∈ S_c} z / ‖Σ_{z ∈ S_c} z‖        logits = scale · z · wᵀ

    with z of unit length in the sums. The sets ``supports_`` start with the class weights. The scale is CLIP's logit
    scale, else the mean length of the class weights. The new classifier has no bias, and all images of a batch join
    before any of them is predicted.

    Iwasawa and Matsuo, "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization", NeurIPS 2021.
    """

    name = "t3a"
    summary = "replaces class weights by the mean of the most certain test embeddings"
    updates = "class weights"

    filter_k: Annotated[int | None, partial(check_whole, also=None)] = 100  # M; None keeps all

    def clear(self) -> None:
        start, self.scale = class_rows(self.classifier), scaled_rows(self.classifier)[1]
        self.supports_ = ClassCache(self.filter_k, start)
        self._join(start)

    def logits(self, z: Tensor, join: bool) -> Tensor:
        if join:
            self._join(z)
        weights = self.weights_.to(z.device)
        return (self.scale * z.to(weights.dtype) @ weights.T).to(z.dtype)

    def _join(self, z: Tensor) -> None:
        log_p = self.classifier.log_probabilities(z)
        if self.supports_.add(directions(self.classifier, z), log_p.argmax(dim=1), entropy(log_p)):
            self.weights_ = functional.normalize(self.supports_.class_sums(self.classifier.n_classes), dim=1)


@dataclass(kw_only=True, eq=False, repr=False)
class BCA(EmbeddingMethod):
    """BCA: class embeddings and class priors follow the posteriors of the test images.

    Class c has an embedding μ_c, which starts at its text, and a prior P(y | μ_c), which starts as one-hot. An image
    with posterior

        p(y) = Σ_c softmax_c(scale · z · μ_c) P(y | μ_c)

    is predicted by it. With s its largest class, counts m_s and n_s,

        μ_s ← unit((m_s μ_s + z) / (m_s + 1)), m_s ← m_s + 1                           if p(s) > τ₁
        P(y | μ_s) ← (n_s P(y | μ_s) + p(y)) / (n_s + 1), n_s ← n_s + 1                if p(s) > τ₂

    So large a count as the default holds the embeddings at their texts, and the priors do most. A classifier's bias is
    added to the cosines.

    Zhou et al., "Bayesian Test-Time Adaptation for Vision-Language Models", CVPR 2025 (arXiv 2503.09248).
    Differs: no views of an image; neither the paper nor its authors' program could be read (docs/methods.md).
    """

    name = "bca"
    summary = "class embeddings and class priors follow the posteriors of the test images"
    updates = "class embeddings and class priors"

    embedding_threshold: Share = 0.05  # τ₁
    embedding_count: Amount = 20000.0  # images that a text counts as
    prior_threshold: Share = 0.65  # τ₂
    prior_count: Amount = 1.0  # images that a one-hot prior counts as

    def clear(self) -> None:
        rows, self.scale_ = scaled_rows(self.classifier)
        c = self.classifier.n_classes
        self.rows_, self.lengths_ = rows.clone(), torch.linalg.vector_norm(rows, dim=1)
        self.priors_ = torch.eye(c, dtype=rows.dtype, device=rows.device)
        self.row_counts_, self.prior_counts_ = [self.embedding_count] * c, [self.prior_count] * c

    def logits(self, z: Tensor, join: bool) -> Tensor:
        rows = z.to(self.rows_)
        p = torch.cat([self._visit(row[None]) for row in rows]) if join else self._posterior(rows)
        return finite_log(p).to(z)

    def _posterior(self, z: Tensor) -> Tensor:
        return (self.scale_ * z @ self.rows_.T + self.classifier.bias.to(z)).softmax(dim=1) @ self.priors_

    def _visit(self, z: Tensor) -> Tensor:
        p = self._posterior(z)
        confidence, s = float(p.max()), int(p.argmax())
        m, n = self.row_counts_[s], self.prior_counts_[s]
        if confidence > self.embedding_threshold:
            self.rows_[s] = self.lengths_[s] * unit((m * self.rows_[s] + z[0]) / (m + 1))
            self.row_counts_[s] += 1
        if confidence > self.prior_threshold:
            self.priors_[s] = (n * self.priors_[s] + p[0]) / (n + 1)
            self.prior_counts_[s] += 1
        return p


@dataclass(kw_only=True, eq=False, repr=False)
class DPE(EmbeddingMethod):
    """DPE: text and image prototypes that evolve with the test images, by one gradient step for each image.

    A cache keeps the most certain embeddings of each predicted class; the image prototype v_c of a class is their mean.
    Every image first tries to enter it. Then residuals r and q of the texts t_c and of the image prototypes, which
    start at 0, take one step of AdamW down

        H(softmax ℓ(z)) + λ L(v, t)        ℓ_c(z) = scale · z · t'_c + α exp(−β (1 − z · v'_c))
        t'_c = unit(t_c + r_c)             v'_c = unit(v_c + q_c)

    where the second term of ℓ is for classes with a cache, and L is the mean cross-entropy of finding the text of a
    class by its image prototype, softmax(scale · v'_c · t'). AdamW's first step from 0 is −η ∇ / (|∇| + 1e-3). The
    image is predicted by ℓ after the step. If the entropy of that is low, the texts become their mean over these
    moments, t ← (m t + t') / (m + 1), m = 1, 2, … The defaults are those for ImageNet.

    Zhang, Stepputtis, Sycara and Xie, "Dual Prototype Evolving for Test-Time Generalization of Vision-Language Models",
    NeurIPS 2024 (arXiv 2410.12790). Differs: no prompts by a language model, no views of an image, and the classifier's
    scale in place of 100. New rows (``predict``) take no step.
    """

    name = "dpe"
    summary = "text and image prototypes evolve by one gradient step for each image"
    updates = "text prototypes and a cache of embeddings"
    backpropagation = True

    shots: Count = 3  # embeddings kept for each class
    image_weight: Amount = 6.0  # α
    image_sharpness: Amount = 5.0  # β
    alignment: Amount = 0.5  # λ
    learning_rate: Amount = 6e-4  # η, of both residuals
    certain: Amount = 0.1  # entropy over log₂ of the number of classes below which an image changes the texts

    def clear(self) -> None:
        self.scale = scaled_rows(self.classifier)[1]
        self.texts_ = prototypes(self.classifier).clone()
        self.cache_, self.averaged_ = ClassCache(self.shots, self.texts_), 1

    def logits(self, z: Tensor, join: bool) -> Tensor:
        u = directions(self.classifier, z).to(self.texts_)
        if join:
            return torch.cat([self._visit(row[None]) for row in u]).to(z)
        return self._logits(u, unit(self.texts_), *self._images()).to(z)

    def _visit(self, u: Tensor) -> Tensor:
        unadapted = self._logits(u, unit(self.texts_))
        self.cache_.add(u, unadapted.argmax(dim=1), entropy(unadapted))
        images, classes = self._images()
        start = [rows.clone().requires_grad_() for rows in (self.texts_, images)]  # the gradient of a residual at 0
        with torch.enable_grad():
            texts, rows = (functional.normalize(prototype, dim=1) for prototype in start)
            matches = self.scale * rows @ texts[classes].T
            aligned = functional.cross_entropy(matches, torch.arange(len(rows), device=u.device))
            loss = entropy(self._logits(u, texts, rows, classes)).sum() + self.alignment * aligned
        slopes = torch.autograd.grad(loss, start)
        steps = [self.learning_rate * slope / (slope.abs() + ADAM_EPSILON) for slope in slopes]
        texts, rows = unit(self.texts_ - steps[0]), unit(images - steps[1])
        logits = self._logits(u, texts, rows, classes)
        if float(entropy(logits)) < self.certain * math.log2(len(texts)):
            self.texts_ = (self.averaged_ * self.texts_ + texts) / (self.averaged_ + 1)
            self.averaged_ += 1
        return logits

    def _images(self) -> tuple[Tensor, Tensor]:
        """The image prototypes ``(m, d)``, and their classes ``(m,)``."""
        counts = torch.bincount(self.cache_.labels, minlength=len(self.texts_))
        classes = counts.nonzero()[:, 0]
        return self.cache_.class_sums(len(self.texts_))[classes] / counts[classes][:, None], classes

    def _logits(self, u: Tensor, texts: Tensor, images: Tensor | None = None, classes: Tensor | None = None) -> Tensor:
        logits = self.scale * u @ texts.T + self.classifier.bias.to(u)
        if images is None or classes is None:
            return logits
        votes = self.image_weight * (self.image_sharpness * (u @ functional.normalize(images, dim=1).T - 1)).exp()
        return logits.index_add(1, classes, votes)
