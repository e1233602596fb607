"""Methods that make predictions certain, or images likely, by gradient steps on the image tower.

TENT, EATA, SAR and TIPI lower the entropy H(p) = −Σ p log p of predictions p. TSD and TEA have losses of their own.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from clip_tca.core.checks import Amount, Count, Flag, Natural, Positive, Share, check_number
from clip_tca.methods.base import class_rows, directions, entropy
from clip_tca.methods.caches import ClassCache
from clip_tca.methods.tower import ContinualMethod, ScaledMethod, TowerMethod, norm_parameters

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's, of pixels
# a block or stage in the name of a module, such as transformer.resblocks.3, layer3 or encoder_layer_3
LAYER_NUMBER = re.compile(r"(?:^|\.)(?:resblocks|blocks|stages|features|layers?|encoder_layer_)\.?(\d+)(?:\.|$)")


@dataclass(kw_only=True, eq=False, repr=False)
class Tent(TowerMethod):
    """TENT: each step lowers the mean entropy of the predictions of a batch.

    Of several templates the first predicts. The defaults are those of CLIPArTT's code.

    Wang et al., "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021.
    """

    name = "tent"
    summary = "lowers the entropy of the predictions of a batch"
    changed = "As in CLIPArTT's code: LayerNorm too, 10 steps, and a batch is predicted after its last step."

    lr: Positive = 1e-3
    steps: Count = 10

    def adapt(self, batch: Tensor) -> None:
        for _ in range(self.steps):
            self.descend(batch, lambda z: entropy(self.logits(z)).mean())


@dataclass(kw_only=True, eq=False, repr=False)
class ReliableMethod(ScaledMethod):
    """A method that learns from images whose entropy is below E₀."""

    margin: Share = 0.4  # E₀ as a share of ln C, the largest entropy of C classes

    @property
    def limit(self) -> float:
        """E₀."""
        return self.margin * math.log(self.task.classifier.n_classes)


@dataclass(kw_only=True, eq=False, repr=False)
class EATA(ReliableMethod):
    """EATA: entropy minimisation on images that are reliable and not redundant.

    With m the moving average of the predictions used so far, a step minimises the mean of exp(E₀ − H(p)) · H(p) over
    the images with H(p) < E₀ and |cos(p, m)| < ε; the factor carries no gradient.

    The published ε is 0.4 for 10 classes and 0.05 for 1000. The default is the power law through both: a certain
    prediction has cosine 1/√C with an even average, so that with 7 classes 0.05 would drop every image.

    Niu et al., "Efficient Test-Time Model Adaptation without Forgetting", ICML 2022.
    """

    name = "eata"
    summary = "entropy minimisation on reliable, non-redundant images, weighted by certainty"
    changed = (
        "No Fisher regulariser, which needs source data (so this is the authors' ETA), and a batch is predicted after "
        "its step instead of before."
    )

    redundancy: Annotated[float | None, partial(check_number, also=None)] = None  # ε

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.redundancy is None:
            self.redundancy = 0.4 * (self.task.classifier.n_classes / 10) ** math.log(0.125, 100)

    def reset(self) -> None:
        super().reset()
        self.average: Tensor | None = None

    def adapt(self, batch: Tensor) -> None:
        self.scale_rate(len(batch))
        for _ in range(self.steps):
            with torch.no_grad():
                chosen = self.choose(self.logits(self.embed_parts(batch)))
            if chosen.any():
                self.descend(batch, partial(self._loss, chosen))

    def _loss(self, chosen: Tensor, z: Tensor) -> Tensor:
        uncertainty = entropy(self.logits(z[chosen]))
        return ((self.limit - uncertainty.detach()).exp() * uncertainty).mean()

    def choose(self, logits: Tensor) -> Tensor:
        """Which images are reliable and not redundant ``(n,)``; they enter the moving average."""
        p = logits.softmax(dim=1)
        chosen = entropy(logits) < self.limit
        if self.average is not None:
            chosen &= functional.cosine_similarity(self.average[None], p, dim=1).abs() < cast(float, self.redundancy)
        if chosen.any():
            mean = p[chosen].mean(dim=0)
            self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean
        return chosen


def lower_parameters(tower: nn.Module, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    """The parameters below the last quarter of the tower's blocks; all of them if there are none below.

    In a ViT-B these are blocks 0 to 8 of 12 and what comes before them, in a ResNet stages 1 to 3 of 4.
    """
    names = {id(parameter): name for name, parameter in tower.named_parameters()}
    matches = [LAYER_NUMBER.search(names[id(parameter)]) for parameter in parameters]
    blocks = sorted({int(match[1]) for match in matches if match})
    if not blocks:
        return parameters
    top = blocks[len(blocks) - max(1, len(blocks) // 4)]
    first = next(number for number, match in enumerate(matches) if match)
    lower = [
        parameter
        for number, (parameter, match) in enumerate(zip(parameters, matches, strict=True))
        if (int(match[1]) < top if match else number < first)
    ]
    return lower or parameters


@dataclass(kw_only=True, eq=False, repr=False)
class SAR(ReliableMethod):
    """SAR: sharpness-aware entropy minimisation on reliable images, with recovery from collapse.

    A step first climbs to the sharpest point near the weights θ, θ + ρ · g / ‖g‖ with g the gradient of the mean
    entropy of the reliable images, and then descends from θ along the gradient there. When the moving average of that
    loss falls below ``recovery``, the model is about to collapse and the weights are restored; momentum and moving
    average stay. The last quarter of the blocks and the norm after them stay as they are. The learning rate is doubled
    for a single image.

    With few classes and certain predictions the loss may lie below 0.2 from the start; then every step is taken back,
    and ``recovery=0`` turns that off.

    Niu et al., "Towards Stable Test-Time Adaptation in Dynamic Wild World", ICLR 2023.
    """

    name = "sar"
    summary = "sharpness-aware entropy minimisation on reliable images, with recovery"
    updates = "normalisation weights of the image tower below its last quarter of blocks"
    changed = "A batch is predicted after its step instead of before."

    rho: Amount = 0.05  # ρ, how far the first half of a step climbs
    recovery: Amount = 0.2

    def adapted(self, tower: nn.Module) -> list[nn.Parameter]:
        return lower_parameters(tower, norm_parameters(tower))

    def reset(self) -> None:
        super().reset()
        self.average: float | None = None

    def adapt(self, batch: Tensor) -> None:
        self.scale_rate(max(2, len(batch)))
        for _ in range(self.steps):
            self._reliable = torch.ones(len(batch), dtype=torch.bool, device=batch.device)
            self.backward(batch, self._loss)
            before = self.weights()
            self.climb()
            self.backward(batch, self._loss)
            self.load(before)
            self.step()
            if self._reliable.any():
                self.average = self._value if self.average is None else 0.9 * self.average + 0.1 * self._value
            if self.average is not None and self.average < self.recovery:
                self.load(self._original)

    def _loss(self, z: Tensor) -> Tensor:
        """The mean entropy of the images that are still reliable; without any 0, and momentum alone makes the step."""
        uncertainty = entropy(self.logits(z))
        self._reliable &= uncertainty.detach() < self.limit
        loss = uncertainty[self._reliable].sum() / self._reliable.sum().clamp(min=1)
        self._value = loss.item()
        return loss

    @torch.no_grad()
    def climb(self) -> None:
        """Move the weights by ρ along the gradient, which is cleared."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad * (self.rho / (norm + 1e-12)))
        self.optimizer.zero_grad()


@dataclass(kw_only=True, eq=False, repr=False)
class TIPI(ScaledMethod):
    """TIPI: predictions become invariant to the input change of a given size that moves them most.

    That change, ‖δ‖_∞ ≤ ε in the model's normalised input, is found by one signed gradient step from a random point
    (at δ = 0 the divergence has no gradient). A step minimises KL(p(x + δ) ‖ p(x)) + H(p(x)) with p(x) fixed in the
    first term, the reverse of the usual divergence. The shifted image is not clamped. The defaults are for ImageNet.

    Nguyen et al., "TIPI: Test Time Adaptation with Transformation Invariance", CVPR 2023.
    """

    name = "tipi"
    summary = "invariance to an adversarial input shift, with entropy minimisation"
    changed = (
        "The model runs in its own precision instead of half, and a tower with BatchNorm predicts unshifted images by "
        "the statistics of their batch instead of running ones."
    )

    lr: Positive = 2.5e-4
    epsilon: Amount = 2 / 255  # ε
    entropy_weight: Amount = 1.0
    seed: Natural = 0  # of the random points

    def reset(self) -> None:
        super().reset()
        self.generator = torch.Generator().manual_seed(self.seed)

    def adapt(self, batch: Tensor) -> None:
        self.scale_rate(len(batch))
        for _ in range(self.steps):
            starts = torch.rand(batch.shape, generator=self.generator).to(batch)  # by the CPU: the same on every device
            for part, start in zip(self.parts(batch), self.parts(starts), strict=True):
                plain = self.logits(self.embed(part))
                shifted = self.shift(part, (2 * start - 1) * self.epsilon, plain.detach())
                loss = self.divergence(shifted, plain.detach()) + self.entropy_weight * entropy(plain)
                (loss.sum() / len(batch)).backward()
            self.step()

    def shift(self, batch: Tensor, delta: Tensor, plain: Tensor) -> Tensor:
        """Images changed by at most ε in every value, so that their predictions move away from ``plain``."""
        delta = delta.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.divergence(batch + delta, plain).sum(), delta)
        return batch + (delta.detach() + self.epsilon * gradient.sign()).clamp(-self.epsilon, self.epsilon)

    def divergence(self, batch: Tensor, plain: Tensor) -> Tensor:
        """KL(p(x) ‖ softmax(plain)) of each image, ``(n,)``."""
        log_p = self.logits(self.embed(batch)).log_softmax(dim=1)
        return (log_p.exp() * (log_p - plain.log_softmax(dim=1))).sum(dim=1)


@dataclass(kw_only=True, eq=False, repr=False)
class TSD(ContinualMethod):
    """TSD: embeddings move so that prototypes from a memory predict them as the classifier does.

    The memory holds the most certain embeddings of each predicted class. Their mean directions c_k classify by
    y = softmax(cos(z, c_k)). A step minimises the mean of KL(y ‖ softmax(p)) with p the classifier's probabilities,
    without gradient in p and c, over the images on which both agree: arg max y = arg max p.

    Wang et al., "Feature Alignment and Uniformity for Test Time Adaptation", CVPR 2023.
    """

    name = "tsd"
    summary = "self-distillation between the classifier and prototypes from a memory"
    changed = (
        "The memory starts with the class weights (text embeddings), only normalisation weights change (the original "
        "changes all by default), and a batch is predicted after its step instead of before."
    )

    entries: Count = 100  # embeddings remembered for each class
    similarity: Literal["cosine", "l1"] = "cosine"  # l1 is the published code, cosine the paper
    consistent: Flag = True  # learn only where both agree; the published code has no such filter

    def reset(self) -> None:
        super().reset()
        with torch.inference_mode(False), torch.no_grad():
            start = self.rows if self.task.prompts else self._copied(class_rows(self.task.classifier))
            self.memory = ClassCache(self.entries, start)
            self.remember(start, self.logits(start))

    def adapt(self, batch: Tensor) -> None:
        for step in range(self.steps):
            self.descend(batch, partial(self._loss, step == 0))

    def _loss(self, new: bool, z: Tensor) -> Tensor:
        logits = self.logits(z.detach())
        if new:
            self.remember(z.detach(), logits)
        prototypes = self.memory.class_sums(len(self.rows))
        order = 2.0 if self.similarity == "cosine" else 1.0
        similarity = functional.normalize(z, p=order) @ functional.normalize(prototypes, p=order).T
        log_y, log_target = similarity.log_softmax(dim=1), logits.softmax(dim=1).log_softmax(dim=1)
        consistent = self.agree(logits, similarity)
        return (log_y.exp() * (log_y - log_target)).sum(dim=1)[consistent].sum() / consistent.sum().clamp(min=1)

    def agree(self, logits: Tensor, similarity: Tensor) -> Tensor:
        """Which images get the same class from classifier and prototypes ``(n,)``; all of them without the filter."""
        if not self.consistent:
            return torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        return logits.argmax(dim=1) == similarity.argmax(dim=1)

    def remember(self, z: Tensor, logits: Tensor) -> None:
        self.memory.add(directions(self.task.classifier, z), logits.argmax(dim=1), entropy(logits))


@dataclass(kw_only=True, eq=False, repr=False)
class TEA(ContinualMethod):
    """TEA: test images get a lower energy, samples from the model a higher one.

    The classifier is read as an energy model, E(x) = −log Σ_k exp f_k(x). A step lowers mean E(x) − mean E(x̃). The
    samples x̃ come from Langevin dynamics, x̃ ← x̃ − α ∇E(x̃) + σ noise, that goes on where an earlier chain ended or
    starts from uniform noise between −1 and 1. Samples are pixels and are not clamped. A chain is stored in main memory
    after its first visit (0.6 MB at 224 × 224).

    Yuan et al., "TEA: Test-time Energy Adaptation", CVPR 2024.
    """

    name = "tea"
    summary = "lower energy for test images, higher energy for samples from the model"
    changed = (
        "Samples are drawn in pixels and pass through CLIP's normalisation, since CLIP's inputs are normalised and the "
        "original's are not."
    )

    langevin_steps: Natural = 20  # of a chain each time it is visited
    langevin_lr: Amount = 0.1  # α
    langevin_std: Amount = 0.01  # σ
    buffer: Count = 10_000  # number of chains
    restart: Share = 0.05  # share of chains that start from noise again
    seed: Natural = 0  # of the samples

    def __post_init__(self) -> None:
        config = getattr(self.task.model.visual, "preprocess_cfg", None) or {}
        self._normalisation = config.get("mean", MEAN), config.get("std", STD)
        super().__post_init__()

    def reset(self) -> None:
        super().reset()
        self.chains: dict[int, Tensor] = {}
        self.generator = torch.Generator().manual_seed(self.seed)

    def adapt(self, batch: Tensor) -> None:
        for _ in range(self.steps):
            for images, sign in ((self.sample(batch), -1), (batch, 1)):
                for part in self.parts(images):
                    (sign * self.energy(part).sum() / len(batch)).backward()
            self.step()

    def energy(self, batch: Tensor) -> Tensor:
        """E of preprocessed images, ``(n,)``."""
        return -self.logits(self.embed(batch)).logsumexp(dim=1)

    def sample(self, batch: Tensor) -> Tensor:
        """As many samples from the model as there are images, in the shape and range of the model's input."""
        mean, std = (batch.new_tensor(values)[:, None, None] for values in self._normalisation)
        # drawn on the CPU, so that a seed gives the same samples on every device
        chains = torch.randint(self.buffer, (len(batch),), generator=self.generator).tolist()
        start = torch.empty(batch.shape).uniform_(-1, 1, generator=self.generator)
        restarts = (torch.rand(len(batch), generator=self.generator) < self.restart).tolist()
        for row, (chain, again) in enumerate(zip(chains, restarts, strict=True)):
            if chain in self.chains and not again:
                start[row] = self.chains[chain]
        x = start.to(batch)
        for _ in range(self.langevin_steps):
            slopes: list[Tensor] = []
            for part in self.parts(x.requires_grad_()):
                slopes += torch.autograd.grad(self.energy((part - mean) / std).sum(), part)
            noise = torch.randn(batch.shape, generator=self.generator).to(batch)
            x = x.detach() - self.langevin_lr * torch.cat(slopes) + self.langevin_std * noise
        self.chains.update((chain, row.clone()) for chain, row in zip(chains, x.float().cpu(), strict=True))
        return (x - mean) / std
