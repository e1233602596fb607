"""TPT, ZERO and MTA: an image is seen as itself and as random crops, and each image is predicted alone."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from clip_tca.core.checks import Amount, Count, Natural, Part, Positive, check_fields
from clip_tca.core.tensors import compute_dtype, unit
from clip_tca.methods.base import Method, Task, entropy, finite_log, required_prompts

CONTEXT = "a photo of a"  # of TPT's prompt
LOSS_SCALE = 1024.0  # keeps gradients of half-precision models from vanishing; a power of 2 changes nothing else
NEAREST = 0.3  # part of the other views that decides the bandwidth of one in MTA
SAME = 1e-6  # change of y or m below which MTA's updates end


@dataclass(kw_only=True, eq=False, repr=False)
class ViewMethod(Method):
    """A method that sees every image as itself and as random crops.

    Crops are those of TPT: 8 to 100 % of the picture's area, with flips. Nothing is carried over.
    """

    sees = "images"
    nature = "batch"

    task: Task = field(kw_only=False)
    views: Count = 64  # the image and views − 1 crops
    seed: Natural = 0  # the same picture with the same seed has the same crops

    def __post_init__(self) -> None:
        check_fields(self)
        self.task.model.eval().requires_grad_(False)

    def reset(self) -> None:
        """Do nothing: every image starts anew."""

    def prepare(self, picture: Image.Image, transform: Callable[[Image.Image], Tensor]) -> Tensor:
        """The picture and its crops, ``(views, 3, height, width)``."""
        from torchvision.transforms import RandomHorizontalFlip, RandomResizedCrop

        picture = picture.convert("RGB")
        original = transform(picture)
        crop, flip = RandomResizedCrop(tuple(original.shape[-2:])), RandomHorizontalFlip()
        content = f"{self.seed} {picture.size} ".encode() + picture.tobytes()
        seed = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            torch.default_generator.manual_seed(seed)
            crops = [flip(crop(picture)) for _ in range(self.views - 1)]
        return torch.stack([original, *map(transform, crops)])  # a crop has the final size: only its colours change


def check_views(batch: Tensor) -> Tensor:
    """The batch; ValueError unless it has views."""
    if batch.ndim != 5 or 0 in batch.shape:
        raise ValueError(f"batch: shape {tuple(batch.shape)}; expected (n, views, 3, height, width) as by prepare")
    return batch


@dataclass(kw_only=True, eq=False, repr=False)
class TPT(ViewMethod):
    """TPT: tune the prompt on one image, so that its views agree.

    Of the views those with predictions of lowest entropy are kept (set K). The embeddings of the prompt's context
    words, at first "a photo of a", take a step of AdamW down the entropy of the mean prediction:

        L = −Σ_c p̄_c log p̄_c        p̄ = 1/|K| Σ_{v ∈ K} softmax(scale · z_v · text(context)ᵀ)

    Then the image itself is predicted with the tuned prompt, and the context is put back. The model never changes.

    Shu et al., "Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language Models", NeurIPS 2022.
    Differs: no AugMix; class names are taken as they are, underscores too.
    """

    name = "tpt"
    summary = "tunes the prompt on each image until its crops agree"
    updates = "4 context tokens of the prompt"
    backpropagation = True

    lr: Positive = 5e-3
    steps: Natural = 1  # for each image; 0 predicts with the untuned prompt
    keep: Part = 0.1  # part of the views that is kept, rounded down, at least one

    def __post_init__(self) -> None:
        prompts = required_prompts(self.task, self.name)
        super().__post_init__()
        self.scale = prompts.scale
        self._embedding = token_embedding(self.task.model)
        with torch.inference_mode(False), torch.no_grad():
            device = next(self._embedding.parameters()).device
            self._tokens = prompts.tokenizer([f"{CONTEXT} {name}." for name in prompts.classes]).clone().to(device)
            context_tokens, empty_tokens = prompts.tokenizer([CONTEXT, ""]).to(device)
            # the context: the tokens that all prompts begin with, without one that starts every text
            shared = int((self._tokens == context_tokens).all(dim=0).long().cumprod(dim=0).sum())
            self._start = int(shared > 0 and bool(empty_tokens[0] == context_tokens[0]))
            if shared <= self._start:
                raise ValueError(f"tokenizer: no tokens of {CONTEXT!r} are shared by all prompts; TPT can't tune them")
            context = self._embedding(context_tokens[None])[0, self._start : shared]
            self.context = context.to(compute_dtype(context.dtype))  # (words, width), untuned

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self._images(check_views(batch), self.steps)

    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self._images(check_views(batch)[:, :1], 0)

    @torch.inference_mode(False)
    def _images(self, batch: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            start = self.context.clone().requires_grad_(steps > 0)
            text = self._texts(start)  # the first step of every image goes back through this
            pairs = [self._image(batch[i], start, text, steps) for i in range(len(batch))]
        z, logits = zip(*pairs, strict=True)
        return torch.stack(z), torch.stack(logits)

    def _image(self, views: Tensor, start: Tensor, text: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            z = unit(self.task.model.encode_image(views))
        context = start.detach().clone().requires_grad_()
        optimizer = torch.optim.AdamW([context], lr=self.lr)
        selected: Tensor | None = None
        for step in range(steps):
            if step > 0:
                start, text = context, self._texts(context)
            log_p = self._logits(z, text).log_softmax(dim=1)
            if selected is None:  # selected once, as in the original
                selected = entropy(log_p.detach()).argsort(stable=True)[: max(1, int(len(z) * self.keep))]
            mean = log_p[selected].logsumexp(dim=0) - math.log(len(selected))
            loss = -LOSS_SCALE * (mean.exp() * mean).sum()  # entropy of the mean prediction
            context.grad = torch.autograd.grad(loss, start, retain_graph=step == 0)[0] / LOSS_SCALE
            optimizer.step()
        if steps > 0:
            with torch.no_grad():
                text = self._texts(context)
        return z[0], self._logits(z[:1], text.detach())[0]

    def _logits(self, z: Tensor, text: Tensor) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):  # half precision is too coarse for logits of this size
            return self.scale * z @ text.to(z.dtype).T

    def _texts(self, context: Tensor) -> Tensor:
        """Unit text embeddings ``(classes, d)`` of the prompts with this context."""

        def insert(_module: nn.Module, _tokens: tuple[Any, ...], embedded: Tensor) -> Tensor:
            tuned = context.to(embedded.dtype).expand(len(embedded), -1, -1)
            after = self._start + tuned.shape[1]
            return torch.cat([embedded[:, : self._start], tuned, embedded[:, after:]], dim=1)

        hook = self._embedding.register_forward_hook(insert)
        try:
            text: Tensor = self.task.model.encode_text(self._tokens)
        finally:
            hook.remove()
        return functional.normalize(text.to(compute_dtype(text.dtype)), dim=1)


def token_embedding(model: Any) -> nn.Module:
    """The module that turns tokens into vectors, in open_clip's own text towers and in those of transformers."""
    for name, module in model.named_modules():
        if name.split(".")[-1] == "token_embedding":
            return module  # type: ignore[no-any-return]
    get_embeddings = getattr(getattr(getattr(model, "text", None), "transformer", None), "get_input_embeddings", None)
    if get_embeddings is None:
        raise ValueError(f"{type(model).__name__}: a text tower without token embeddings; TPT has no prompt to tune")
    return get_embeddings()  # type: ignore[no-any-return]


@dataclass(kw_only=True, eq=False, repr=False)
class PooledViews(ViewMethod):
    """A method that makes one prediction of the embeddings of an image's views, without gradients."""

    updates = "nothing"
    backpropagation = False

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        z, logits = zip(*[self.pool(views) for views in self._embedded(batch)], strict=True)
        return torch.stack(z), torch.stack(logits)

    @torch.inference_mode(False)
    @torch.no_grad()
    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.cat(self._embedded(check_views(batch)[:, :1]))
        return z, self.task.classifier.logits(z)

    def _embedded(self, batch: Tensor) -> list[Tensor]:
        """The embeddings ``(views, d)`` of each image, as g takes them."""
        g = self.task.classifier
        return [g.prepared(self.task.model.encode_image(views.clone())) for views in check_views(batch)]

    @abstractmethod
    def pool(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The embedding ``(d,)`` and the logits ``(classes,)`` of an image with these views ``(views, d)``."""


@dataclass(kw_only=True, eq=False, repr=False)
class Zero(PooledViews):
    """ZERO: the most certain views of an image vote for its class.

    Of the views those with predictions of lowest entropy are kept (set K), and the softmax of each is taken at
    temperature 0, which leaves a vote for its largest class. The mean of the votes is the prediction:

        p̄ = 1/|K| Σ_{v ∈ K} lim_{τ→0} softmax(g(z_v) / τ)

    Equal votes are decided by the other views, the most certain first: by the first that votes for one of the tied
    classes. If none does, the first of them decides by its scores of these classes. Logits are log p̄, with a vote more
    for the winner of a tie.

    Farina, Franchi, Iacca, Mancini and Ricci, "Frustratingly Easy Test-Time Adaptation of Vision-Language Models",
    NeurIPS 2024 (arXiv 2405.18330). Differs: in the last case of a tie the authors may name a class that is not tied.
    """

    name = "zero"
    summary = "the most certain crops of each image vote for its class"

    keep: Part = 0.3  # part of the views that votes, rounded down, at least one

    def pool(self, z: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.task.classifier.logits(z)
        logits = logits[entropy(logits).argsort(stable=True)]
        classes, kept = logits.argmax(dim=1), max(1, int(len(z) * self.keep))
        votes = classes[:kept].bincount(minlength=logits.shape[1])
        tied = votes == votes.max()
        if int(tied.sum()) > 1:
            others = classes[kept:]
            deciding = others[tied[others]]
            nearest = logits[min(kept, len(z) - 1)].masked_fill(~tied, -torch.inf).argmax()
            votes[deciding[0] if len(deciding) else nearest] += 1
        return z[0], finite_log((votes / votes.sum()).to(z.dtype))


@dataclass(kw_only=True, eq=False, repr=False)
class MTA(PooledViews):
    """MTA: the mode of an image's views, sought by a mean shift that weighs every view by how well it fits.

    With embeddings f_p and zero-shot probabilities s_p of the views, an inlierness y_p of every view, Σ_p y_p = 1, and
    the mode m decrease in turn

        −Σ_p y_p K(f_p − m) − λ/2 Σ_pq s_p·s_q y_p y_q + λ_y Σ_p y_p log y_p        K(f_p − m) = exp(−‖f_p − m‖² / h_p²)

    by a few rounds of

        y_p ∝ exp((K(f_p − m) + λ Σ_q s_p·s_q y_q) / λ_y)        m ← unit(Σ_p y_p K(f_p − m) f_p)

    where h_p² is the mean squared distance of f_p from the nearest 30 % of the other views. The mode starts at the
    image itself, y at 1/n, and g predicts the mode.

    Zanella and Ben Ayed, "On the test-time zero-shot generalization of vision-language models: Do we really need prompt
    learning?", CVPR 2024 (arXiv 2405.02266). Differs: a head on raw features has a mode that is not scaled.
    """

    name = "mta"
    summary = "predicts the mode of each image's crops, sought by a robust mean shift"

    affinity_weight: Amount = 4.0  # λ, of the agreement of predictions
    entropy_weight: Positive = 0.2  # λ_y
    rounds: Count = 5  # of both updates in turn, and at most so many of each in a round

    def pool(self, z: Tensor) -> tuple[Tensor, Tensor]:
        g, n = self.task.classifier, len(z)
        p = g.log_probabilities(z).exp().to(z.dtype)
        affinity = p @ p.T
        squares = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").square().sort(dim=1).values
        bandwidth = squares[:, 1 : max(2, int(NEAREST * (n - 1)) + 1)].mean(dim=1).clamp_min(torch.finfo(z.dtype).eps)
        mode, inlierness = z[0], z.new_full((n,), 1 / n)
        for _ in range(self.rounds if n > 1 else 0):
            kernel = self._kernel(z, mode, bandwidth)
            for _ in range(self.rounds):
                old = inlierness
                fits = kernel + self.affinity_weight * affinity @ inlierness
                inlierness = (fits / self.entropy_weight).softmax(dim=0)
                if torch.linalg.vector_norm(old - inlierness) < SAME:
                    break
            for _ in range(self.rounds):
                old, weights = mode, self._kernel(z, mode, bandwidth) * inlierness
                mode = weights @ z / weights.sum()
                mode = unit(mode[None])[0] if g.unit_rows else mode
                if torch.linalg.vector_norm(old - mode) < SAME:
                    break
        return mode, g.logits(mode[None])[0]

    def _kernel(self, z: Tensor, mode: Tensor, bandwidth: Tensor) -> Tensor:
        return (-(z - mode).square().sum(dim=1) / bandwidth).exp()
