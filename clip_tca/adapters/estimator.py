"""What scikit-learn expects of an estimator, kept without depending on it.

``clone``, ``Pipeline``, ``GridSearchCV`` and scorers work with adapters as they do with scikit-learn's own estimators.
An adapter is a classifier there whose classes are fixed by g: ``classes_`` are the numbers that ``predict`` gives, and
their names, if g has them, come with ``predict(z, names=True)``. A ``y`` is never looked at but by ``score``.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from inspect import signature
from typing import Any, Literal, TypeVar, cast, overload

import numpy as np

from clip_tca.classifier import LinearClassifier
from clip_tca.core.tensors import Array, check_labels, like, to_tensor

E = TypeVar("E", bound="Estimator")


class NotFittedError(ValueError, AttributeError):
    """An adapter is used before it has seen anything; what is learned is not there yet."""


def not_fitted(message: str) -> Exception:
    """The error to raise: scikit-learn's own, which is a ValueError and AttributeError too, where it is in use."""
    theirs: Any = sys.modules.get("sklearn.exceptions")
    kind: type[Exception] = NotFittedError if theirs is None else theirs.NotFittedError
    return kind(message)


class Estimator(ABC):
    """An adapter as scikit-learn sees it."""

    classifier: LinearClassifier
    _estimator_type = "classifier"  # what scikit-learn before 1.6 asks for

    @classmethod
    @abstractmethod
    def options(cls) -> tuple[str, ...]:
        """Names of the constructor's arguments after the classifier."""

    @abstractmethod
    def fit(self: E, z: Any, y: object = None) -> E:
        """Adapt to embeddings."""

    @abstractmethod
    def transform(self, z: Array) -> Array:
        """Adapted embeddings."""

    @abstractmethod
    def logits(self, z: Array) -> Array:
        """Class scores after adaptation."""

    @property
    @abstractmethod
    def fitted(self) -> bool:
        """Whether anything was seen."""

    # -- parameters ----------------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments as they were given, the classifier among them; ``deep`` changes nothing."""
        return {name: vars(self)[name] for name in ("classifier", *self.options())}

    def set_params(self: E, **params: Any) -> E:
        """Change arguments of the constructor; what was learned with the earlier ones is forgotten.

        Raises:
            ValueError: If there is no such argument.
        """
        allowed = list(signature(type(self)).parameters)
        if unknown := [name for name in params if name not in allowed]:
            raise ValueError(f"{type(self).__name__}: no parameter {unknown[0]!r}; allowed are {', '.join(allowed)}")
        if params:
            make = cast("Any", type(self))
            self.__dict__ = vars(make(**{**self.get_params(), **params}))
        return self

    def __repr__(self) -> str:
        defaults = {name: getattr(type(self), name, None) for name in self.options()}
        options = {name: getattr(self, name) for name in defaults}
        changed = [f"{name}={value!r}" for name, value in options.items() if value != defaults[name]]
        return f"{type(self).__name__}({', '.join([repr(self.classifier), *changed])})"

    # -- fitting and predicting ----------------------------------------------------------------------------------------

    def fit_transform(self, z: Array, y: object = None) -> Array:
        """:meth:`fit`, then the adapted embeddings; ``y`` is ignored."""
        return self.fit(z).transform(z)

    def fit_predict(self, z: Array, y: object = None) -> Array:
        """:meth:`fit`, then the predicted classes; ``y`` is ignored."""
        return self.fit(z).predict(z)

    @overload
    def predict(self, z: Array, *, names: Literal[False] = False) -> Array: ...
    @overload
    def predict(self, z: Array, *, names: bool) -> Array | np.ndarray: ...
    def predict(self, z: Array, *, names: bool = False) -> Array | np.ndarray:
        """Predicted classes ``(n,)`` after adaptation; with ``names`` those that the classifier has, in an array.

        In a stream, a batch no larger than the last one may be read with a map up to ``refresh`` images old; anything
        larger, ``W_`` or :meth:`save` bring it up to date first.
        """
        best = to_tensor(self.logits(z)).argmax(dim=1)
        return self.classifier.names_of(best) if names else like(best, z)

    def probabilities(self, z: Array) -> Array:
        """Class probabilities ``(n, c)`` after adaptation: softmax of :meth:`logits`."""
        return like(to_tensor(self.logits(z)).softmax(dim=1), z)

    def predict_proba(self, z: Array) -> Array:
        """The same as :meth:`probabilities`, under scikit-learn's name."""
        return self.probabilities(z)

    def score(self, z: Array, y: Any) -> float:
        """Accuracy: the share of rows whose predicted class is ``y`` ``(n,)``, given as numbers or as names."""
        predicted = to_tensor(self.logits(z)).argmax(dim=1)
        n, names = len(predicted), self.classifier.classes
        given = np.asarray(y.cpu() if hasattr(y, "cpu") else y)
        if given.dtype.kind in "OUS" and names is not None:
            number = {name: i for i, name in enumerate(names)}
            if strange := [name for name in given.reshape(-1).tolist() if name not in number]:
                raise ValueError(f"y: {strange[0]!r} is no class; the classes are {', '.join(names[:10])}")
            given = np.array([number[name] for name in given.reshape(-1).tolist()])
        truth = check_labels(given, n, self.classifier.n_classes, predicted.device)
        return float((predicted == truth).double().mean())

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        """The classes ``(c,)`` as :meth:`predict` gives them: 0 to c - 1, in the order of the classifier."""
        return np.arange(self.classifier.n_classes)

    @property
    def n_features_in_(self) -> int:
        """Dimension of the embeddings; not there before the first is seen."""
        self._require_fitted()
        return self.classifier.dim

    def _require_fitted(self) -> None:
        if not self.fitted:
            raise not_fitted(f"{type(self).__name__} is not fitted yet; call fit(z) or partial_fit(batch) first")

    def __sklearn_is_fitted__(self) -> bool:
        return self.fitted

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=["float64", "float32"]),
            classifier_tags=ClassifierTags(poor_score=True),
            input_tags=InputTags(),
        )
