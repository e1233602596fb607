"""ConditionalTCA: align each class, not the mixture of all.

The covariance of the whole test set is Σ = Σ_within + Σ_between, and Σ_between depends on how often each class occurs.
Aligning Σ therefore aligns class proportions too, which is why LinearTCA gains so much from leaked proportions. Here
the test embeddings are modelled class by class instead, with one shared covariance:

    z | y = c  ~  N(m_c, S)

The prediction p⁰ of the classifier g (weight w_c, bias b_c) is the second source of evidence. By Bayes, up to a
constant in c,

    log q(c | z) = λ log p⁰(c | z) + β log N(z; m_c, S) + γ log π_c                                          (1)
                 = z·(λ w_c + β S⁻¹m_c) + λ b_c − ½ β m_cᵀS⁻¹m_c + γ log π_c ,

because zᵀS⁻¹z is the same for all classes: q is again a linear classifier. Its parameters are estimated from the soft
assignments by a few EM rounds that start at q = p⁰, cooled where g is over-confident (p⁰ stays in (1), so the classes
keep their names):

    n_c = Σᵢ q_ic ,   m_c = Σᵢ q_ic zᵢ / (n_c + κ) ,   Ŝ = Σᵢ_c q_ic (zᵢ−m_c)(zᵢ−m_c)ᵀ / n      (z centred)     (2)

so soft counts, class sums and the total scatter are sufficient. Of many classes, a round leaves out those of which rows
have less than rounding, and rounds end when they change nothing (:mod:`clip_tca.adapters.candidates`). Nine safeguards:

* **A start that doubts an over-confident g.** A fine-tuned network is sure also where it errs, and the rounds would
  settle on its errors. The first q is g at the temperature that its opinions of neighbouring images ask for, about 1
  for zero-shot classifiers, and a g that is far too sure is cooled for good (n ≥ 8c;
  :mod:`clip_tca.adapters.overconfidence`).
* **The first S from neighbours.** Errors of g put scatter between classes into the first Ŝ, which hides the directions
  that separate them. Nearest neighbours are mostly of one class whatever g takes them for, so the first S has the shape
  of the covariance of their differences, and the trace of Ŝ.
* **Trust that grows.** In d dimensions N outweighs everything. β rises to its full weight over up to five rounds: at
  once where there are 30 images a class and the classes look equally frequent, slowly where they don't, so that absent
  classes are starved by the prior before the Gaussians settle on them. Its full weight is min(1, n/8c): with fewer
  images than 8 a class p⁰ decides more and more.

* **Leave-one-out assignment.** m_c contains zᵢ, which in d dimensions pulls zᵢ to the class it is in by d/n_c nats.
  When zᵢ is assigned, its own share is taken out: zᵢ − m_c becomes (zᵢ − m_c) / (1 − q_ic/(n_c+κ)), exactly.
  The same bias in the final classifier, E‖m_c‖² too large by d/n_c, is corrected in its bias.
* **Shrunken means.** κ, the ratio of variance within classes to variance between them, counts as that many images at
  the mean of all (empirical Bayes). With few noisy images the Gaussians fade out and p⁰ decides.
* **Shrunken covariance.** S = (1−a) Ŝ + a (tr Ŝ/d) I with a = max(0.3, d/(2n+d)): a prior worth d/2 images.
* **Class priors from agreement.** π_c ∝ 1 + Σᵢ q_ic p⁰_ic counts only what q and p⁰ agree on. An absent class collects
  soft counts by mistake, but hardly any support from p⁰; n_c alone would reinforce itself. γ goes by how unequal the
  classes are, u = 1 + log Σπ_c² / log c less what chance adds: γ = min(2, 6u), nothing for equally frequent classes.
  Two rounds without a prior are made first, and their u is the most that is believed, because the shares that g
  predicts exaggerate what it is partial to. If they are hardly more unequal than what g predicts, a class attracts
  images of others, and all are taken as equally frequent (n ≥ 8c). Shares that are given (``shares``) are the prior,
  with γ = 1.
* **No quarrel with a g that knows.** On images like those it was trained on, g is right and clusters can only spoil it.
  There it is also sure of the predictions that would change. Where its mean confidence in those (at the temperature
  that its neighbours ask for, ``disputed_``) is above 0.65, g is kept as it is; on shifted domains it is lower.
* **Too few images.** Below 8 images g is kept as it is.

In d dimensions (1) is overconfident, so the final logits are divided by one temperature, chosen so that the mean
confidence is that of g and 0.3 for each changed prediction. It does not change a prediction.

``transform`` moves each embedding by the least that makes g agree with q: with W the centred weights of g,
z′ = z + (logits − logits⁰)·pinv(W). (Exact while those weights are linearly independent; for more classes than
dimensions it is the least-squares answer, and ``logits`` and ``predict`` use (1) itself.)

Related: TransCLIP (Zanella et al., NeurIPS 2024) and StatA (Zanella et al., CVPR 2025) fit Gaussians with a
KL-to-text term by block updates; Wang et al. (ICLR 2024) use Gaussian discriminant analysis with labelled shots;
ADAPT (Zhang et al., NeurIPS 2025) keeps per-class banks and a shared covariance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clip_tca.adapters import diagnosis
from clip_tca.adapters.accumulator import Accumulator
from clip_tca.adapters.attributes import Learned
from clip_tca.adapters.base import Adapter, log
from clip_tca.adapters.diagnosis_record import Diagnosis
from clip_tca.adapters.gaussian_fit import FEWEST_IMAGES, KEPT, fit_gaussians, least_move, match_confidence
from clip_tca.adapters.reservoir import Reservoir
from clip_tca.adapters.shares import Shares, check_shares, plain, share_vector
from clip_tca.adapters.state import SavedState
from clip_tca.adapters.statistics import Moments
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_number, check_whole


@dataclass(eq=False, repr=False, kw_only=True)
class ConditionalTCA(Adapter):
    """Class-conditional correlation alignment: soft class means and one shared, shrunk within-class covariance.

    A stream keeps an evenly spread sample of what it has seen (``memory`` rows), from which the classifier is
    estimated anew when due. ``fit`` does the same with all rows at once, so both give the same state; only the
    predictions made on the way, from fewer images, differ (eval/batch_size.md says by how much).

    Attributes:
        classifier: g, a zero-shot classifier or any linear one.
        shares: How frequent the classes are, the prior π: a number for each class or ``{class name: number}`` where it
            is known; else ``"estimated"``, ``"uniform"`` or ``"predicted"`` (as g predicts).
        shrinkage: a of the within-class covariance: ``"auto"`` or a number from 0 to 1.
        anchor: λ, the weight of the log-probabilities of g.
        rounds: How often assignments and parameters are re-estimated.
        memory: Rows kept for the estimate; ``"auto"`` is 8192, or 32 for each class if that is more.
        normalize: Scale embeddings to unit length first; None is True for prompts, False for any other head.
        refresh: Images after which a stream solves again (see :mod:`clip_tca.adapters.base`).

    Learned state: ``weight_`` (d, c), ``bias_`` (c,), ``counts_`` (c,), ``means_`` (c, d), ``temperature_``,
    ``start_temperature_``, ``disputed_``, ``W_`` (d, d) and ``offset_`` (d,) of ``transform``, ``n_seen_``.
    """

    shares: Shares = "estimated"
    shrinkage: Literal["auto"] | float = "auto"
    anchor: float = 1.0
    rounds: int = 8
    memory: Literal["auto"] | int = "auto"

    linear: ClassVar[bool] = True

    W_ = Learned("matrix", "``(d, d)`` matrix of ``transform``.")
    offset_ = Learned("offset", "``(d,)`` offset of ``transform``.")
    weight_ = Learned("weight", "``(d, c)`` weight of the classifier.")
    bias_ = Learned("bias", "``(c,)`` bias of the classifier.")
    counts_ = Learned("counts", "``(c,)`` soft class counts in the sample.")
    means_ = Learned("means", "``(c, d)`` class means.")
    temperature_ = Learned("temperature", "``()`` what the logits were divided by.")
    start_temperature_ = Learned("start_temperature", "``()`` what those of g were divided by in the first assignment.")
    disputed_ = Learned("disputed", "``()`` mean confidence of g in the predictions that would change.")

    def __post_init__(self) -> None:
        """Take shares in any form."""
        self.shares = plain(self.shares)

    def check_options(self) -> None:
        """Raise ValueError for an option that is not allowed."""
        super().check_options()
        check_shares(self.shares, self.classifier, ("estimated", "uniform", "predicted"))
        check_number("shrinkage", self.shrinkage, 0, 1, also="auto")
        check_number("anchor", self.anchor)
        check_whole("rounds", self.rounds)
        check_whole("memory", self.memory, 2, also="auto")

    def _declare(self, device: torch.device, dtype: torch.dtype, first: int) -> dict[str, Accumulator]:
        c, d = self.classifier.n_classes, self.classifier.dim
        self._sample = Reservoir(max(8192, 32 * c) if self.memory == "auto" else self.memory, d, device, dtype, first)
        return {"sample": self._sample}

    def _observe(self, z: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        if logits is not None:
            raise ValueError("logits: ConditionalTCA estimates class by class from its own classifier; use LinearTCA")
        self._sample.update(z)

    def _solve(self) -> dict[str, Tensor]:
        rows = self._sample.rows()
        shares = self._shares(rows)
        fitted = fit_gaussians(rows, self.classifier, self.shrinkage, self.anchor, self.rounds, shares=shares)
        fitted = match_confidence(fitted, rows)
        matrix, offset = least_move(fitted.classifier, self.classifier)
        return {
            "matrix": matrix,
            "offset": offset,
            "weight": fitted.classifier.weight.T.contiguous(),
            "bias": fitted.classifier.bias,
            "counts": fitted.counts,
            "means": fitted.means,
            "temperature": fitted.temperature,
            "start_temperature": fitted.start_temperature,
            "disputed": fitted.disputed,
        }

    def _shares(self, rows: Tensor) -> Tensor | None:
        """Class shares ``(c,)``; None where they are estimated with the classes."""
        c = self.classifier.n_classes
        if self.shares == "uniform":
            return torch.ones(c, device=rows.device)
        if self.shares == "predicted":
            return torch.bincount(self.classifier.exact_logits(rows).argmax(dim=1), minlength=c)
        return None if isinstance(self.shares, str) else share_vector(self.shares, self.classifier)

    def _about(self) -> tuple[Tensor, Tensor]:
        rows = self._sample.rows()
        mean = rows.mean(dim=0)
        return mean, rows.square().sum(dim=1).mean() - mean.square().sum()

    def _move(self, z: Tensor) -> Tensor:
        return torch.addmm(self._solved("offset", z), z, self._solved("matrix", z))

    def _score(self, z: Tensor) -> Tensor:
        return torch.addmm(self._solved("bias", z), z, self._solved("weight", z))

    def warn(self) -> None:
        """Log what the user should know about the fit."""
        images = min(self._seen, self._sample.size)
        if images < FEWEST_IMAGES:
            log.warning("ConditionalTCA: %d images; below %d zero-shot is kept", images, FEWEST_IMAGES)

    @classmethod
    def diagnose(cls, saved: SavedState, classifier: LinearClassifier | None) -> Diagnosis:
        """Figures of a fitted state that need no labels."""
        solution, rows = saved.part("solution"), saved.tensors["sample.rows"]
        counts, moments = solution["counts"], Moments.of(rows)
        spread = (moments.scatter.diagonal().sum() / moments.n).sqrt()
        shift = solution["offset"] + moments.mean @ solution["matrix"] - moments.mean
        squares = diagnosis.movement(moments.scatter, moments.n, shift, solution["matrix"])
        g = classifier
        if g is None and len(counts) <= len(shift):
            weight, bias = solution["weight"], solution["bias"]
            centred = {"weight": weight - weight.mean(dim=1, keepdim=True), "bias": bias - bias.mean()}
            g = diagnosis.recovered_classifier(solution["matrix"], solution["offset"], centred)
        predicted = None if g is None else g.exact_logits(rows).argmax(dim=1)
        after = LinearClassifier(solution["weight"].T, solution["bias"]).exact_logits(rows).argmax(dim=1)
        gaps = (solution["means"] - moments.mean).square().sum(dim=1)
        return {
            **diagnosis.common_figures(saved, spread, shift, squares, diagnosis.changed(rows, g, after)),
            "predicted": None if predicted is None else torch.bincount(predicted, minlength=len(counts)).tolist(),
            "counts": [round(count, 2) for count in counts.tolist()],
            "between": diagnosis.ratio((counts * gaps).sum() / moments.n, spread.square()),
            "temperature": float(solution["temperature"]),
            "kept": "disputed" in solution and float(solution["disputed"]) > KEPT,
        }
