"""Test-time Correlation Alignment (You, Lu and Huang, ICML 2025): LinearTCA.

From unlabeled test embeddings the most certain are picked (:mod:`clip_tca.adapters.pseudo_source`), and all are mapped
so that their mean and covariance match those, z′ = (z − μ_t)W + μ̂_s (:mod:`clip_tca.adapters.solvers`).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from clip_tca.adapters.pseudo_source import Balance, Uncertainty
from clip_tca.adapters.pseudo_source_adapter import SOLVERS, PseudoSourceAdapter, Shrinkage, Solver
from clip_tca.adapters.solvers import EXACT
from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.checks import check_number, check_positive, check_whole, one_of
from clip_tca.core.tensors import exact


class LinearTCA(PseudoSourceAdapter):
    """Linear map of all test embeddings onto the mean and covariance of the most certain ones.

    The defaults need no labels and were chosen by the evidence in eval/defaults.md. The paper's method as printed is
    :meth:`paper`, the public code's is :meth:`reference`.

    Learned state: ``W_`` (d, d), ``mean_`` (d,), ``pseudo_source_mean_`` (d,), ``covariance_`` and
    ``pseudo_source_covariance_`` (d, d), ``pseudo_source_counts_`` (c,), ``n_seen_``.
    """

    options = ("k", "balance", "uncertainty", "solver", "shrinkage", "steps", "lr", "normalize", "refresh")

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        *,
        k: Literal["auto"] | int = "auto",
        balance: Balance = "estimated",
        uncertainty: Uncertainty = "distance",
        solver: Solver = "monge",
        shrinkage: Shrinkage = "auto",
        steps: int = 20,
        lr: float = 1e-3,
        normalize: bool = True,
        refresh: Literal["auto"] | int = "auto",
    ) -> None:
        """Store the options.

        Args:
            classifier: g, the zero-shot classifier.
            k: Size of the pseudo-source: overall for ``global``, for each class for ``uniform``, of the largest class
                for ``estimated`` and ``predicted``, of class 0 for ``oracle``. ``"auto"`` is a fifth of the largest
                predicted class, but 10 to 20.
            balance: How classes share the pseudo-source (see :mod:`clip_tca.adapters.pseudo_source`).
            uncertainty: ``"distance"`` (the paper's) or ``"entropy"`` (its code's).
            solver: ``"monge"``, ``"coral"``, ``"gradient"`` or ``"mean"`` (shift only).
            shrinkage: Of both covariances, for ``monge`` and ``coral``: ``"auto"`` (Ledoit–Wolf) or a number.
            steps: Adam steps of ``gradient``.
            lr: Learning rate of ``gradient``.
            normalize: Scale embeddings to unit length first, as CLIP does.
            refresh: Images after which a stream solves again (see :mod:`clip_tca.adapters.base`).
        """
        self.classifier = classifier
        self.k = k
        self.balance = balance
        self.uncertainty = uncertainty
        self.solver = solver
        self.shrinkage = shrinkage
        self.steps = steps
        self.lr = lr
        self.normalize = normalize
        self.refresh = refresh

    @classmethod
    def paper(cls, classifier: ZeroShotClassifier, k: int = 20, **options: Any) -> LinearTCA:
        """As printed: the k most certain **overall** by ‖onehot − p‖², W by 20 gradient steps.

        The paper tunes k between 5 and 300. With few, a single class can fill the pseudo-source.
        """
        return cls(classifier, **{"k": k, "balance": "global", "solver": "gradient", **options})

    @classmethod
    def reference(cls, classifier: ZeroShotClassifier, k: int = 20, **options: Any) -> LinearTCA:
        """As the public code does it: entropy, ⌊k·nᵢ/n₀⌋ by **true** class counts. An oracle: ``fit(z, labels=…)``.

        Embeddings are scaled to unit length as CLIP's are; that code has raw features (``normalize=False``).
        """
        fixed = {"k": k, "balance": "oracle", "uncertainty": "entropy", "solver": "gradient"}
        return cls(classifier, **{**fixed, **options})

    def check_options(self) -> None:
        super().check_options()
        one_of("solver", self.solver, SOLVERS)
        check_number("shrinkage", self.shrinkage, 0, 1, also="auto")
        check_whole("steps", self.steps, 0)
        check_positive("lr", self.lr)

    def _solve(self) -> dict[str, Tensor]:
        shrinkage = self.shrinkage if self.solver in EXACT else 0.0
        state = self._linear(self.solver, shrinkage, int(self.steps), float(self.lr))
        text = self.classifier.scale * exact(self.classifier.text.to(state["W"].device)).T
        return {**state, "weight": state["W"] @ text, "bias": state["offset"] @ text}

    def _move(self, z: Tensor) -> Tensor:
        return torch.addmm(self._solved("offset", z), z, self._solved("W", z))

    def _score(self, z: Tensor) -> Tensor:
        return torch.addmm(self._solved("bias", z), z, self._solved("weight", z))
