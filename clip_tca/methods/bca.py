"""BCA: class embeddings and class priors that follow the posteriors of the test images.

Class c has an embedding μ_c, which starts at its text, and a prior P(y | μ_c), which starts as one-hot. An image with
posterior

    p(y) = Σ_c softmax_c(scale · z · μ_c) P(y | μ_c)

is predicted by it. With s its largest class, counts m_s and n_s,

    μ_s ← unit((m_s μ_s + z) / (m_s + 1)), m_s ← m_s + 1                           if p(s) > τ₁
    P(y | μ_s) ← (n_s P(y | μ_s) + p(y)) / (n_s + 1), n_s ← n_s + 1                if p(s) > τ₂

Zhou et al., "Bayesian Test-Time Adaptation for Vision-Language Models", CVPR 2025 (arXiv 2503.09248). We could read
neither the paper nor its authors' program. The equations are those of a note on the paper. The thresholds τ₁ = 0.05 and
τ₂ = 0.65 and the counts at the start, 20000 and 1, are the defaults of the benchmark TTABC
(github.com/walawalagoose/TTABC, MIT), which computes the same. So large a count holds the embeddings at their texts,
and the priors do most. The views of an image are left out: it has one embedding. A classifier's bias is added to the
cosines.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Share
from clip_tca.core.tensors import unit
from clip_tca.methods.base import EmbeddingMethod, scaled_rows


@dataclass(kw_only=True, eq=False, repr=False)
class BCA(EmbeddingMethod):
    """Class embeddings and priors, updated image by image and carried from batch to batch.

    Args:
        embedding_threshold: τ₁, the posterior above which an image moves a class embedding.
        embedding_count: Images that a text counts as.
        prior_threshold: τ₂, the posterior above which an image moves a prior.
        prior_count: Images that a one-hot prior counts as.
    """

    name = "bca"
    summary = "class embeddings and class priors follow the posteriors of the test images"
    updates = "class embeddings and class priors"

    embedding_threshold: Share = 0.05
    embedding_count: Amount = 20000.0
    prior_threshold: Share = 0.65
    prior_count: Amount = 1.0

    @torch.inference_mode(False)
    @torch.no_grad()
    def reset(self) -> None:
        """Texts and one-hot priors."""
        rows, self.scale_ = scaled_rows(self.classifier)
        c = self.classifier.n_classes
        self.rows_, self.lengths_ = rows.clone(), torch.linalg.vector_norm(rows, dim=1)
        self.priors_ = torch.eye(c, dtype=rows.dtype, device=rows.device)
        self.moved_, self.noted_ = [self.embedding_count] * c, [self.prior_count] * c

    def logits(self, z: Tensor, join: bool) -> Tensor:
        """Logarithm of the posterior; each image in turn is predicted and then moves its class."""
        if not join:
            return self._log(self._posterior(z.to(self.rows_))).to(z.dtype)
        return torch.cat([self._visit(row[None]) for row in z.to(self.rows_)]).to(z)

    def _posterior(self, z: Tensor) -> Tensor:
        return (self.scale_ * z @ self.rows_.T + self.classifier.bias.to(z)).softmax(dim=1) @ self.priors_

    def _visit(self, z: Tensor) -> Tensor:
        p = self._posterior(z)
        confidence, s = float(p.max()), int(p.argmax())
        if confidence > self.embedding_threshold:
            moved = (self.moved_[s] * self.rows_[s] + z[0]) / (self.moved_[s] + 1)
            self.rows_[s], self.moved_[s] = self.lengths_[s] * unit(moved[None])[0], self.moved_[s] + 1
        if confidence > self.prior_threshold:
            self.priors_[s] = (self.noted_[s] * self.priors_[s] + p[0]) / (self.noted_[s] + 1)
            self.noted_[s] += 1
        return self._log(p)

    def _log(self, p: Tensor) -> Tensor:
        return p.clamp_min(torch.finfo(torch.float32).tiny).log()
