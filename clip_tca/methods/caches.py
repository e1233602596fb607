"""TDA, DMN and AdaNPC: memories of test embeddings correct the logits; and the cache of the most certain rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import Amount, Count, Natural, Positive
from clip_tca.methods.base import EmbeddingMethod, directions, entropy, prototypes, scaled_rows

ROWS_AT_ONCE = 256  # compared at a time with a memory and with each other; the result is that of one after another


def class_ranks(labels: Tensor, score: Tensor) -> Tensor:
    """The rank ``(n,)`` of each row among those of its class, the smallest score first; of equals the earlier row."""
    order = score.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]
    grouped = labels[order]
    rank = torch.arange(len(order), device=order.device) - torch.searchsorted(grouped, grouped)
    return torch.empty_like(rank).index_copy_(0, order, rank)


class ClassCache:
    """For each class the ``shots`` rows of lowest entropy so far, in order of arrival; of equals the first come stay.

    ``rows`` ``(m, d)``, their classes ``labels`` ``(m,)`` and their ``entropy`` ``(m,)``. Without ``shots`` all stay.
    """

    def __init__(self, shots: int | None, like: Tensor) -> None:
        """An empty cache of rows in the dimension, dtype and on the device of ``like`` ``(n, d)``."""
        self.shots = math.inf if shots is None else shots
        self.rows, self.entropy = like[:0], like.new_empty(0)
        self.labels = torch.empty(0, dtype=torch.int64, device=like.device)

    def add(self, rows: Tensor, labels: Tensor, entropy: Tensor) -> bool:
        """Offer rows ``(n, d)`` all at once; returns whether any of them stays."""
        old = len(self.labels)
        labels, entropy = self._joined(self.labels, labels), self._joined(self.entropy, entropy)
        stay = class_ranks(labels, entropy) < self.shots
        if not bool(stay[old:].any()):
            return False
        self.rows = self._joined(self.rows, rows)[stay]
        self.labels, self.entropy = labels[stay], entropy[stay]
        return True

    def visit(self, rows: Tensor, labels: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Offer rows ``(n, d)`` one after another; infinite entropy keeps a row out.

        Returns:
            All rows ``(m, d)``, cached before or offered now, their classes ``(m,)``, and which of them are in the
            cache ``(n, m)`` after each offer.
        """
        old, turn = len(self.labels), torch.arange(len(rows), device=rows.device)[:, None]
        new_labels, new_entropy = labels[:, None], entropy[:, None]
        rows, labels = self._joined(self.rows, rows), self._joined(self.labels, labels)
        entropy = self._joined(self.entropy, entropy)
        arrival = torch.arange(len(rows), device=rows.device) - old
        certain = (new_entropy < entropy) | ((new_entropy == entropy) & (turn < arrival))
        ahead = certain & (new_labels == labels)  # a new row pushes others of its class back
        later = ahead.sum(dim=0) - ahead.cumsum(dim=0, dtype=torch.int32)  # not yet pushed at this turn
        present = (class_ranks(labels, entropy) - later < self.shots) & (arrival <= turn) & entropy.isfinite()
        stay = present[-1]
        if bool(stay[old:].any()):  # seldom once a cache is full
            self.rows, self.labels, self.entropy = rows[stay], labels[stay], entropy[stay]
        return rows, labels, present

    def class_sums(self, classes: int) -> Tensor:
        """The sum of the rows of each class ``(classes, d)``."""
        return self.rows.new_zeros(classes, self.rows.shape[1]).index_add_(0, self.labels, self.rows)

    @staticmethod
    def _joined(cached: Tensor, new: Tensor) -> Tensor:
        return torch.cat([cached.to(new.device), new])


@dataclass(kw_only=True, eq=False, repr=False)
class TDA(EmbeddingMethod):
    """TDA: a positive and a negative cache, filled image by image, correct the logits.

    The positive cache keeps for each predicted class its most certain embeddings k_j, with one-hot labels v_j; the
    negative cache those of medium entropy, with a mask m_j of the classes that are possible for them. Every image first
    tries to enter the caches and is then predicted:

        logits = g(z) + α⁺ Σ_j exp(−β⁺ (1 − z·k_j)) v_j − α⁻ Σ_j exp(−β⁻ (1 − z·k_j)) m_j

    The defaults are those for ImageNet. Entropies are in nats over log₂ of the number of classes, so they end at ln 2.

    Karmanov et al., "Efficient Test-Time Adaptation of Vision-Language Models", CVPR 2024.
    Differs: no views of an image.
    """

    name = "tda"
    summary = "corrects the logits by caches of certain and of doubtful test embeddings"
    updates = "two caches of embeddings"

    positive_shots: Natural = 3  # embeddings kept for each class; 0 turns the positive cache off
    positive_alpha: Amount = 2.0
    positive_beta: Amount = 5.0
    negative_shots: Natural = 2  # 0 turns the negative cache off
    negative_alpha: Amount = 0.117
    negative_beta: Amount = 1.0
    entropy_low: Amount = 0.2  # above this entropy an image may enter the negative cache …
    entropy_high: Amount = 0.5  # … and below this one
    mask_low: Amount = 0.03  # above this probability a class is possible …
    mask_high: Amount = 1.0  # … and below this one

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("entropy", "mask"):
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            if low >= high:
                raise ValueError(f"{name}_low, {name}_high: {low!r}, {high!r}; the first must be below the second")

    def clear(self) -> None:
        texts = prototypes(self.classifier)
        self.positive_ = ClassCache(self.positive_shots, texts)
        self.negative_ = ClassCache(self.negative_shots, texts.new_empty(0, sum(texts.shape)))  # rows [z | m]

    def logits(self, z: Tensor, join: bool) -> Tensor:
        return torch.cat([self._block(part, join) for part in z.split(ROWS_AT_ONCE)])

    def _block(self, z: Tensor, join: bool) -> Tensor:
        log_p, u = self.classifier.log_probabilities(z), directions(self.classifier, z)
        p, labels = log_p.exp(), log_p.argmax(dim=1)
        c, logits = p.shape[1], self.classifier.logits(z)
        uncertainty = entropy(log_p) if join else torch.full_like(p[:, 0], torch.inf)
        if self.positive_shots:
            keys, classes, present = self.positive_.visit(u, labels, uncertainty)
            one_hot = functional.one_hot(classes, c).to(keys)
            logits += self.positive_alpha * self._votes(u, keys, one_hot, present, self.positive_beta)
        if self.negative_shots:
            low, high = self.entropy_low * math.log2(c), self.entropy_high * math.log2(c)
            doubtful = uncertainty.masked_fill((uncertainty <= low) | (uncertainty >= high), torch.inf)
            mask = ((p > self.mask_low) & (p < self.mask_high)).to(u)
            rows, _, present = self.negative_.visit(torch.cat([u, mask], dim=1), labels, doubtful)
            keys, masks = rows.split([len(u.T), c], dim=1)
            logits -= self.negative_alpha * self._votes(u, keys, masks, present, self.negative_beta)
        return logits

    def _votes(self, u: Tensor, keys: Tensor, values: Tensor, present: Tensor, beta: float) -> Tensor:
        """Σ_j exp(−β (1 − z·k_j)) v_j over what is in the cache at each image's turn."""
        return (((beta * (u.to(keys) @ keys.T - 1)).exp() * present) @ values).to(u)


@dataclass(kw_only=True, eq=False, repr=False)
class DMN(EmbeddingMethod):
    """DMN: a dynamic memory of test embeddings, read by similarity to each image; training-free, zero-shot form.

    The memory keeps for each predicted class its most certain embeddings, and its text embedding. An image first tries
    to enter it. Then the members m of each class, weighted by their similarity to the image, make a classifier:

        w_c(z) = Σ_{m ∈ class c} exp(−β (1 − z·m)) m, scaled to unit length
        p(z) = softmax(scale · z · text) + weight · softmax(scale · z · w(z))

    Zhang, Zhu, He and Zhang, "Dual Memory Networks: A Versatile Adaptation Approach for Vision-Language Models", CVPR
    2024. Differs: no views of an image, the prompts of the task, one weight for all data sets.
    """

    name = "dmn"
    summary = "adds the prediction of a memory of test embeddings, read by similarity"
    updates = "a memory of embeddings"
    tuned_on_test = "the weight of its memory, for each data set; here it is 1 (github.com/YBZh/DMN/issues/2)"

    memory_shots: Count = 50  # embeddings kept for each class
    memory_sharpness: Amount = 5.5  # β
    memory_weight: Amount = 1.0  # of the memory's probabilities; those of the text count 1

    def clear(self) -> None:
        self.scale = scaled_rows(self.classifier)[1]
        self.memory_ = ClassCache(self.memory_shots, prototypes(self.classifier))

    def logits(self, z: Tensor, join: bool) -> Tensor:
        return torch.cat([self._block(part, join) for part in z.split(ROWS_AT_ONCE)])

    def _block(self, z: Tensor, join: bool) -> Tensor:
        log_p, u = self.classifier.log_probabilities(z), directions(self.classifier, z)
        uncertainty = entropy(log_p) if join else torch.full_like(log_p[:, 0], torch.inf)
        keys, labels, present = self.memory_.visit(u, log_p.argmax(dim=1), uncertainty)
        used = present.any(dim=0)
        read = self._read(u, keys[used].to(u), labels[used], present[:, used])
        both = torch.stack([log_p.to(z.dtype), read.log_softmax(dim=1)])
        weights = both.new_tensor([1.0, self.memory_weight]).log()  # of weight 0, −∞: the text alone
        return (both + weights[:, None, None]).logsumexp(dim=0)

    def _read(self, u: Tensor, keys: Tensor, labels: Tensor, present: Tensor) -> Tensor:
        """Logits ``(n, classes)`` of the memory's classifiers, without forming these: z·w and ‖w‖ from similarities."""
        texts = prototypes(self.classifier).to(u)
        c = len(texts)
        keys = torch.cat([texts, keys])
        labels = torch.cat([torch.arange(c, device=u.device), labels])
        present = torch.cat([present.new_ones(len(u), c), present], dim=1)
        rank = class_ranks(labels, labels)
        members = torch.full((c, int(rank.max()) + 1), -1, device=u.device)  # of each class, padded
        members[labels, rank] = torch.arange(len(labels), device=u.device)
        real, members = members >= 0, members.clamp_min(0)
        similarity = u @ keys.T
        weights = (self.memory_sharpness * (similarity - 1)).exp() * present
        weights = weights[:, members].transpose(0, 1) * real[:, None]
        product = (weights * similarity[:, members].transpose(0, 1)).sum(dim=2)
        square = (weights @ (keys[members] @ keys[members].transpose(1, 2)) * weights).sum(dim=2)
        return self.scale * (product / square.clamp_min(torch.finfo(u.dtype).tiny).sqrt()).T


@dataclass(kw_only=True, eq=False, repr=False)
class AdaNPC(EmbeddingMethod):
    """AdaNPC: a vote of the nearest neighbours in a memory of embeddings.

    With N(z) the k embeddings of the memory most similar to z, and their labels y_j:

        p_c = Σ_{j ∈ N(z)} w_j [y_j = c]    w = softmax over N(z) of z·k_j / temperature    logits = log(p + 1e-5)

    The memory ``memory_`` ``(m, d)`` starts with the unit class weights (CLIP: text embeddings). Images join it before
    their batch is predicted, under the class that g predicts, if its probability reaches the threshold.

    Zhang et al., "AdaNPC: Exploring Non-Parametric Classifier for Test-Time Adaptation", ICML 2023. Differs: the
    original's memory holds labelled source data. ``labels="votes"`` keeps its rule for test images: predict a batch,
    then add those whose softmax of the votes reaches the threshold.
    """

    name = "adanpc"
    summary = "nearest-neighbour vote in a memory of test embeddings (the original's: source data)"
    updates = "a memory of embeddings"

    k: Count = 100  # neighbours that vote; this and the next two are where the authors' grid search starts
    temperature: Positive = 0.1  # of the votes
    threshold: Amount = 0.1  # confidence from which an image joins (the original's beta); above 1 none does
    labels: Literal["zero-shot", "votes"] = "zero-shot"  # the class under which it joins

    def clear(self) -> None:
        self.memory_ = prototypes(self.classifier)
        self.memory_labels_ = torch.arange(self.classifier.n_classes, device=self.memory_.device)

    def logits(self, z: Tensor, join: bool) -> Tensor:
        self.memory_ = self.memory_.to(z.device, torch.promote_types(self.memory_.dtype, z.dtype))
        self.memory_labels_ = self.memory_labels_.to(z.device)
        u = directions(self.classifier, z)
        if join and self.labels == "zero-shot":
            self._join(u, self.classifier.log_probabilities(z).exp())
        votes = torch.cat([self._votes(part) for part in u.split(ROWS_AT_ONCE)])
        if join and self.labels == "votes":
            self._join(u, votes.softmax(dim=1))
        return votes.log()

    def _join(self, u: Tensor, p: Tensor) -> None:
        confidence, labels = p.max(dim=1)
        confident = confidence >= self.threshold
        self.memory_ = torch.cat([self.memory_, u[confident]])
        self.memory_labels_ = torch.cat([self.memory_labels_, labels[confident]])

    def _votes(self, u: Tensor) -> Tensor:
        similarity = u.to(self.memory_.dtype) @ self.memory_.T
        nearest = similarity.topk(min(self.k, len(self.memory_)))
        weights = (nearest.values / self.temperature).softmax(dim=1)
        votes = weights.new_zeros(len(u), self.classifier.n_classes)
        votes.scatter_add_(1, self.memory_labels_[nearest.indices], weights)
        return (votes + 1e-5).clamp(max=1.0).to(u.dtype)
