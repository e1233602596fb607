"""g: a linear classifier, logits = z · weightᵀ + bias, built from text prompts or from any linear head.

:meth:`clip_tca.LinearTCA.folded` turns an adapter into such a classifier, for plain code and other runtimes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any, Literal, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn

from clip_tca.core.conversion import as_number
from clip_tca.core.tensors import CHUNK, Array, check_labels, check_rows, compute_dtype, double, like, to_tensor, unit
from clip_tca.core.text_towers import Template, bias_of, encode_texts, fill, scale_of

C = TypeVar("C", bound="LinearClassifier")

LARGEST_WEIGHT = 1e15
"""The largest weight or bias that an adapter accepts."""


class LinearClassifier:
    """A linear classifier: logits = z · weightᵀ + bias, p = softmax(logits).

    Examples:
        >>> g = LinearClassifier.from_module(model.fc, classes=names)
        >>> tca = ConditionalTCA(g).fit(features)

    Attributes:
        weight: ``(c, d)``, one row for each class.
        bias: ``(c,)``.
        classes: Names of the classes; None if they are not known.
        normalize: Whether embeddings are scaled to unit length first.
    """

    def __init__(
        self,
        weight: Tensor | np.ndarray,
        bias: Tensor | np.ndarray | None = None,
        *,
        classes: Sequence[str] | None = None,
        normalize: bool = False,
    ) -> None:
        """Create a classifier from weight ``(c, d)`` and bias ``(c,)``; the default bias is zero.

        Raises:
            ValueError: If the shapes do not fit, there are fewer than 2 classes, or a number is not finite.
        """
        rows = to_tensor(weight, "weight")
        check_rows(rows, name="weight")
        if rows.shape[0] < 2:
            raise ValueError(f"weight: {rows.shape[0]} class; at least 2 are needed to classify")
        self.weight = rows.to(compute_dtype(rows.dtype))
        given = rows.new_zeros(len(rows)) if bias is None else to_tensor(bias, "bias")
        if given.shape != rows.shape[:1]:
            raise ValueError(f"bias: shape {tuple(given.shape)}, but the weight has {len(rows)} classes")
        check_rows(given[:, None], name="bias")
        self.bias = given.to(self.weight)
        self.classes = _checked_names(classes, len(rows))
        self.normalize = normalize

    @classmethod
    def from_module(cls, module: nn.Module, *, classes: Sequence[str] | None = None) -> LinearClassifier:
        """Create a classifier from the last layer of a model, such as ``model.fc``: a ``torch.nn.Linear``."""
        if not isinstance(module, nn.Linear):
            kind = type(module).__name__
            raise TypeError(f"module: a {kind}; a torch.nn.Linear is needed, the model's last layer (model.fc)")
        bias = None if module.bias is None else module.bias.detach().clone()
        return LinearClassifier(module.weight.detach().clone(), bias, classes=classes)

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return self.weight.shape[0]

    @property
    def dim(self) -> int:
        """Dimension d of the embeddings."""
        return self.weight.shape[1]

    @property
    def unit_rows(self) -> bool:
        """Whether it expects embeddings of unit length, as with prompts; other heads take features unchanged."""
        return self.normalize or isinstance(self, ZeroShotClassifier)

    def prepared(self, z: Tensor) -> Tensor:
        """Embeddings ``(n, d)`` as the classifier expects them: of unit length, or unchanged."""
        return unit(z) if self.unit_rows else z.to(compute_dtype(z.dtype))

    @property
    def device(self) -> torch.device:
        """The device of the weight."""
        return self.weight.device

    def fingerprint(self) -> str:
        """A short hash of everything that decides its scores."""
        parts = (self.weight, self.bias, torch.tensor(self.normalize))
        content = b"".join(part.cpu().to(torch.float32).numpy().tobytes() for part in parts)
        return hashlib.sha256(content).hexdigest()[:16]

    def logits(self, z: Array) -> Array:
        """Class scores ``(n, c)`` of embeddings ``(n, d)``, in float32 (float64 for float64 input)."""
        rows = to_tensor(z)
        check_rows(rows, self.dim)
        dtype = compute_dtype(rows.dtype)
        weight, bias = self.weight.to(rows.device, dtype), self.bias.to(rows.device, dtype)
        parts = (unit(part) if self.normalize else part.to(dtype) for part in rows.split(CHUNK))
        return like(torch.cat([torch.addmm(bias, part, weight.T) for part in parts]), z)

    def predict_proba(self, z: Array) -> Array:
        """Class probabilities ``(n, c)``: the softmax of :meth:`logits`."""
        return like(to_tensor(self.logits(z)).softmax(dim=1), z)

    @overload
    def predict(self, z: Array, *, names: Literal[False] = False) -> Array: ...
    @overload
    def predict(self, z: Array, *, names: bool) -> Array | np.ndarray: ...
    def predict(self, z: Array, *, names: bool = False) -> Array | np.ndarray:
        """The most likely class ``(n,)`` of each embedding, as numbers, or as names with ``names=True``."""
        best = to_tensor(self.logits(z)).argmax(dim=1)
        return self.names_of(best) if names else like(best, z)

    def score(self, z: Array, y: Any) -> float:
        """Accuracy, from 0 to 1, given the true classes ``y`` ``(n,)`` as numbers or names."""
        return self.accuracy(to_tensor(self.logits(z)).argmax(dim=1), y)

    def accuracy(self, predicted: Tensor, y: Any) -> float:
        """Accuracy of ``predicted`` classes ``(n,)``, given the true classes ``y`` ``(n,)`` as numbers or names."""
        given = np.asarray(y.cpu() if hasattr(y, "cpu") else y)
        if given.dtype.kind in "OUS":
            given = np.array(self.numbers_of(given.reshape(-1).tolist(), "y"))
        truth = check_labels(given, len(predicted), self.n_classes, predicted.device)
        return float((predicted == truth).double().mean())

    def class_names(self) -> list[str]:
        """The names of the classes, or "class 0", "class 1" and so on."""
        return list(self.classes or (f"class {c}" for c in range(self.n_classes)))

    def named(self: C, classes: Sequence[str] | None) -> C:
        """The same classifier with names for its classes; with None, itself."""
        if classes is None:
            return self
        other = copy(self)
        other.classes = _checked_names(classes, self.n_classes)
        return other

    def names_of(self, indices: Tensor) -> np.ndarray:
        """Names ``(n,)`` of classes ``(n,)``; ValueError if the classifier has none."""
        if self.classes is None:
            raise ValueError("names: the classifier has none; give it names: ZeroShotClassifier(text, classes=[…])")
        named: np.ndarray = np.array(self.classes)[indices.cpu().numpy()]
        return named

    def numbers_of(self, names: Collection[str], what: str) -> list[int]:
        """The numbers of classes by their names; ValueError, with ``what`` they are, if one is no class."""
        if self.classes is None:
            raise ValueError(f"{what}: class names, but the classifier has none; give classes= to it, or use numbers")
        number = {name: i for i, name in enumerate(self.classes)}
        if strange := [name for name in names if name not in number]:
            raise ValueError(f"{what}: {strange[0]!r} is no class; the classes are {', '.join(self.classes[:10])}")
        return [number[name] for name in names]

    def __sklearn_clone__(self) -> LinearClassifier:
        """Return itself: scikit-learn's ``clone`` copies adapters, and g never changes."""
        return self

    def __repr__(self) -> str:
        named = "" if self.classes is None else f": {', '.join(self.classes[:3])}{', …' * (self.n_classes > 3)}"
        return f"{type(self).__name__}({self.n_classes} classes of {self.dim} dimensions{named})"

    def log_probabilities(self, z: Tensor) -> Tensor:
        """log p ``(n, c)`` of prepared rows, in float64."""
        weight, bias = double(self.weight.to(z.device)), double(self.bias.to(z.device))
        parts = [torch.addmm(bias, double(part), weight.T).log_softmax(dim=1) for part in z.split(CHUNK)]
        return torch.cat(parts)

    def least_move(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest move of embeddings after which this classifier scores them as ``weight`` and ``bias`` do.

        z′ = z + (scores − logits) · pinv(W), with W the centred weights: a matrix ``(d, d)`` and an offset ``(d,)``.
        """
        own, own_bias = double(self.weight.to(weight.device)), double(self.bias.to(weight.device))
        w = own - own.mean(dim=0)
        inverse = torch.linalg.pinv(w, rtol=1e-6).T
        difference, gap = bias - own_bias, weight - weight.mean(dim=0) - w
        matrix = gap.T @ inverse
        matrix.diagonal().add_(1.0)
        return matrix, (difference - difference.mean()) @ inverse

    def check_size(self) -> None:
        """Raise ValueError if weight or bias are so large that products with embeddings could overflow float32."""
        peak = float(torch.maximum(self.weight.abs().max(), self.bias.abs().max()))
        if peak > LARGEST_WEIGHT:
            allowed = f"values up to {LARGEST_WEIGHT:.0e} are allowed, so that logits do not overflow"
            raise ValueError(f"weight and bias reach {peak:.0e}; {allowed}; repair the head, or scale it down")


class ZeroShotClassifier(LinearClassifier):
    """CLIP's zero-shot classifier: logits = scale · z · textᵀ + bias.

    ``logits`` does not scale the embeddings to unit length. The adapters do (``normalize=True``).

    Examples:
        >>> g = ZeroShotClassifier(text, scale=100.0, classes=["cat", "dog"])
        >>> g.predict(z, names=True)

    Attributes:
        text: ``(c, d)`` unit text embeddings, one row for each class.
        scale: The model's logit scale (100 for OpenAI's CLIP).
    """

    def __init__(
        self,
        text: Tensor | np.ndarray,
        scale: float | Tensor = 100.0,
        *,
        bias: float | Tensor = 0.0,
        classes: Sequence[str] | None = None,
    ) -> None:
        """Create a classifier from text embeddings.

        Args:
            text: ``(c, d)``, or ``(templates, c, d)``. With several templates, each embedding is normalised, averaged
                over the templates and normalised again, as in CLIP's prompt ensembles.
            scale: The model's logit scale, such as ``model.logit_scale.exp()``; 100 for OpenAI's CLIP.
            bias: The logit bias of SigLIP.
            classes: Names of the classes, for ``predict(z, names=True)`` and for saved states.
        """
        rows = to_tensor(text, "text")
        if rows.ndim not in (2, 3):
            raise ValueError(f"text: expected (classes, d) or (templates, classes, d), got shape {tuple(rows.shape)}")
        check_rows(rows.flatten(0, -2), name="text")
        if rows.shape[-2] < 2:
            raise ValueError(f"text: {rows.shape[-2]} class; at least 2 are needed to classify")
        empty = (rows == 0).all(dim=-1).reshape(-1)
        if bool(empty.any()):
            raise ValueError(f"text: row {int(empty.nonzero()[0, 0])} is all zeros; every class needs a text embedding")
        self.scale = as_number("scale", scale)
        if self.scale <= 0:
            raise ValueError(f"scale: {self.scale}; a positive number is needed (100 for OpenAI's CLIP)")
        exact_rows = unit(double(rows))
        mean = exact_rows.mean(dim=0) if rows.ndim == 3 else exact_rows
        self.text = unit(mean).to(compute_dtype(rows.dtype))
        weight = self.scale * double(self.text)  # as exact as the statistics need it
        super().__init__(weight, weight.new_full(weight.shape[:1], as_number("bias", bias)), classes=classes)

    @classmethod
    def from_prompts(
        cls,
        model: Any,
        tokenizer: Any,
        classes: Sequence[str],
        templates: Template | Sequence[Template] = "a photo of a {}",
        *,
        scale: float | Tensor | None = None,
        bias: float | Tensor | None = None,
    ) -> ZeroShotClassifier:
        """Encode prompts with a loaded model of open_clip or transformers.

        Args:
            model: A model with ``encode_text`` or ``get_text_features``. It is not changed or moved.
            tokenizer: Its tokenizer: ``open_clip.get_tokenizer(…)``, ``AutoTokenizer`` or ``AutoProcessor``.
            classes: Names of the classes.
            templates: One or several templates, with ``{}`` for the name, or functions of the name.
            scale: Logit scale; the default is ``model.logit_scale.exp()``.
            bias: Logit bias; the default is that of the model, if it has one (SigLIP).
        """
        names = _checked_names(classes, len(classes)) or ()
        text = encode_texts(model, tokenizer, fill(templates, names))
        return cls(
            text.unflatten(0, (-1, len(names))),
            scale_of(model) if scale is None else scale,
            bias=bias_of(model) if bias is None else bias,
            classes=names,
        )


def reader(d: int, c: int, classes: Sequence[str] | None, device: torch.device) -> LinearClassifier:
    """A classifier of rows ``(n, d + c)`` that reads the logits beside the embeddings."""
    eye = torch.eye(c, device=device)
    return LinearClassifier(torch.cat([eye.new_zeros(c, d), eye], dim=1), classes=classes)


def told_apart(names: Sequence[str]) -> list[str]:
    """Make names unique: the second ``missile`` of ImageNet becomes ``missile (2)``."""
    return [name if name not in names[:i] else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)]


def _checked_names(classes: Sequence[str] | None, count: int) -> tuple[str, ...] | None:
    if classes is None:
        return None
    names = () if isinstance(classes, (str, Mapping)) or not hasattr(classes, "__iter__") else tuple(classes)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"classes: {classes!r}; a list of names is needed")
    if len(names) != count:
        raise ValueError(f"classes: {len(names)} names, but there are {count} classes; one name for each is needed")
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"classes: {twice[0]!r} occurs twice; every class needs a name of its own")
    return names
