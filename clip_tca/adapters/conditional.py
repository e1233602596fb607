"""ConditionalTCA: align each class, not the mixture of all.

One covariance of the whole test set is Σ = Σ_within + Σ_between, and Σ_between depends on how often each class occurs.
Aligning Σ therefore aligns class proportions too, which is why LinearTCA gains so much from leaked proportions. Here
the test embeddings are modelled class by class instead, with one shared covariance:

    z | y = c  ~  N(m_c, S)

and the zero-shot prediction p⁰ enters as a second, independent-minded witness. By Bayes, up to a constant in c,

    log q(c | z) = λ log p⁰(c | z) + log N(z; m_c, S) + log π_c                                              (1)
                 = z·(λ·scale·t_c + S⁻¹m_c) − ½ m_cᵀS⁻¹m_c + log π_c ,

because zᵀS⁻¹z is the same for all classes: q is again a linear classifier. Its parameters are estimated from the soft
assignments, starting at q = p⁰ and repeated a few times (EM; p⁰ stays in (1), so the classes keep their names):

    n_c = Σᵢ q_ic ,   m_c = Σᵢ q_ic zᵢ / (n_c + κ) ,   Ŝ = Σᵢ_c q_ic (zᵢ−m_c)(zᵢ−m_c)ᵀ / n      (z centred)     (2)

so soft counts, class sums and the total scatter are sufficient. What keeps it from going wrong:

* **Nobody votes for himself.** m_c contains zᵢ, which in d dimensions pulls zᵢ to the class it is in by d/n_c nats.
  While assigning zᵢ its own share is taken out: zᵢ − m_c becomes (zᵢ − m_c) / (1 − q_ic/(n_c+κ)), exactly.
  What remains of the same effect in the final classifier, E‖m_c‖² too large by d/n_c, is put back into its bias.
* **Means as far as they are known.** κ, the ratio of variance within classes to variance between them, counts as so
  many images at the mean of all (empirical Bayes). With few noisy images the Gaussians fade and zero-shot speaks.
* **Shrinkage**: S = (1−a) Ŝ + a (tr Ŝ/d) I with a = max(0.3, d/(2n+d)): a prior worth d/2 images, never under 0.3.
* **Priors that can't run away**: π_c counts only what both witnesses agree on, π_c ∝ 1 + Σᵢ q_ic p⁰_ic. A class that is
  absent collects soft counts by mistake, but hardly any zero-shot support; n_c alone would feed on itself. The prior
  enters as γ log π_c with γ = 2 + log Σπ_c² / log c: 1 where classes are equally frequent, towards 2 where one
  dominates and the mistakes about it outnumber the images of the others.
* **Too few images**: below max(32, 4c) images the Gaussians say nothing; zero-shot is kept.

In d dimensions (1) is far too sure of itself, so the final logits are divided by one temperature, chosen so that the
mean confidence equals zero-shot's: no label entitles it to more. It does not change a prediction.

``transform`` moves each embedding by the least that makes g agree with q: scale·(t_c − t̄)·z′ equals the centred
logits, z′ = z + (logits − logits⁰)·pinv. (Exact while the class texts are linearly independent; for more classes than
dimensions it is the least-squares answer, and ``logits`` and ``predict`` use (1) itself.)

Related: TransCLIP (Zanella et al., NeurIPS 2024) and StatA (Zanella et al., CVPR 2025) fit Gaussians with a
KL-to-text term by block updates; Wang et al. (ICLR 2024) use Gaussian discriminant analysis with labelled shots;
ADAPT (Zhang et al., NeurIPS 2025) keeps per-class banks and a shared covariance.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from clip_tca.adapters.base import Adapter, log
from clip_tca.adapters.gaussians import as_sure_as_zero_shot, fewest, gaussian_head, least_move
from clip_tca.adapters.reservoir import Sample
from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.checks import check_number, check_whole
from clip_tca.core.tensors import Array, like, to_tensor


class ConditionalTCA(Adapter):
    """Class-conditional correlation alignment: soft class means and one shared, shrunk within-class covariance.

    A stream keeps an evenly spread sample of what it has seen (``memory`` rows), from which the classifier is
    estimated anew when due. ``fit`` does the same with all rows at once, so both give the same state; only the
    predictions made on the way, from fewer images, differ (eval/batch_size.md says by how much).

    Learned state: ``weight_`` (d, c), ``bias_`` (c,), ``counts_`` (c,), ``means_`` (c, d), ``temperature_``,
    ``W_`` (d, d) and ``offset_`` (d,) of ``transform``, ``n_seen_``.
    """

    options = ("shrinkage", "anchor", "rounds", "memory", "normalize", "refresh")

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        *,
        shrinkage: Literal["auto"] | float = "auto",
        anchor: float = 1.0,
        rounds: int = 10,
        memory: Literal["auto"] | int = "auto",
        normalize: bool = True,
        refresh: Literal["auto"] | int = "auto",
    ) -> None:
        """Store the options.

        Args:
            classifier: g, the zero-shot classifier.
            shrinkage: a of the within-class covariance: ``"auto"`` or a number from 0 to 1.
            anchor: λ, the weight of the zero-shot log-probabilities.
            rounds: How often assignments and parameters are re-estimated.
            memory: Rows kept for the estimate; ``"auto"`` is 8192, or 32 for each class if that is more.
            normalize: Scale embeddings to unit length first, as CLIP does.
            refresh: Images after which a stream solves again (see :mod:`clip_tca.adapters.base`).
        """
        self.classifier = classifier
        self.shrinkage = shrinkage
        self.anchor = anchor
        self.rounds = rounds
        self.memory = memory
        self.normalize = normalize
        self.refresh = refresh

    W_ = property(lambda self: self._learned("matrix"), doc="``(d, d)`` matrix of ``transform``.")
    offset_ = property(lambda self: self._learned("offset"), doc="``(d,)`` offset of ``transform``.")
    weight_ = property(lambda self: self._learned("weight"), doc="``(d, c)`` weight of the classifier.")
    bias_ = property(lambda self: self._learned("bias"), doc="``(c,)`` bias of the classifier.")
    counts_ = property(lambda self: self._learned("counts"), doc="``(c,)`` soft class counts in the sample.")
    means_ = property(lambda self: self._learned("means"), doc="``(c, d)`` class means.")
    temperature_ = property(lambda self: self._learned("temperature"), doc="What the logits were divided by.")

    def probabilities(self, z: Array) -> Array:
        """Posterior class probabilities ``(n, c)``."""
        return like(to_tensor(self.logits(z)).softmax(dim=1), z)

    def check_options(self) -> None:
        self._check_common()
        check_number("shrinkage", self.shrinkage, 0, 1, also="auto")
        check_number("anchor", self.anchor)
        check_whole("rounds", self.rounds)
        check_whole("memory", self.memory, 2, also="auto")

    def _begin(self, device: torch.device, dtype: torch.dtype, first: int) -> None:
        c, d = self.classifier.n_classes, self.classifier.dim
        self._sample = Sample(max(8192, 32 * c) if self.memory == "auto" else self.memory, d, device, dtype, first)

    def _samples(self) -> list[Sample]:
        return [self._sample]

    def _observe(self, z: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        if logits is not None:
            raise ValueError("logits: ConditionalTCA estimates class by class from its own classifier; use LinearTCA")
        self._sample.update(z)

    def _solve(self) -> dict[str, Tensor]:
        rows = self._sample.rows()
        head = gaussian_head(rows, self.classifier, self.shrinkage, self.anchor, self.rounds)
        head = as_sure_as_zero_shot(head, rows, self.classifier)
        matrix, offset = least_move(head, self.classifier)
        return {
            "matrix": matrix,
            "offset": offset,
            "weight": head.weight,
            "bias": head.bias,
            "counts": head.counts,
            "means": head.means,
            "temperature": head.temperature,
        }

    def _move(self, z: Tensor) -> Tensor:
        return torch.addmm(self._solved("offset", z), z, self._solved("matrix", z))

    def _score(self, z: Tensor) -> Tensor:
        return torch.addmm(self._solved("bias", z), z, self._solved("weight", z))

    def _state(self) -> dict[str, Tensor]:
        return self._sample.state()

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        self._sample.restore(tensors)

    def warn(self) -> None:
        images, classes = min(self._seen, self._sample.size), self.classifier.n_classes
        if images < fewest(classes):
            least = fewest(classes)
            log.warning("ConditionalTCA: %d images of %d classes; below %d zero-shot is kept", images, classes, least)
