"""The classes of a model's own head, and which of its outputs are the classes of a data set."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clip_tca.classifier import LinearClassifier, told_apart
from clip_tca.datasets.prompts import clean

SYNSET = re.compile(r"n\d{8}")
"""A class of ImageNet, by its number in WordNet; the folders of ImageNet are named so."""


def imagenet_names(outputs: int) -> list[str] | None:
    """Names of the classes of an ImageNet head with so many outputs; None if there is no such ImageNet."""
    if outputs == 1000:
        from torchvision.models import ResNet18_Weights

        return list(ResNet18_Weights.DEFAULT.meta["categories"])
    return imagenet_synsets(outputs)


def imagenet_synsets(outputs: int) -> list[str] | None:
    """The same classes as synsets, in the order of the outputs."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": outputs})
    return list(ImageNetInfo(subset).label_names()) if subset else None


def head_for(head: LinearClassifier, classes: Sequence[str], model: str) -> LinearClassifier:
    """g for a data set with these classes: the outputs of the head that they are, in their order.

    A head without names has the classes of the data set, if it has as many. ValueError if the classes are not the
    head's.
    """
    if head.classes is None:
        if head.n_classes != len(classes):
            raise ValueError(
                f"model: the head of {model} has {head.n_classes} classes, the data set {len(classes)} "
                f"({_some(classes)}); name the outputs of the head by --class-names FILE, or give the model for them"
            )
        return LinearClassifier(head.weight, head.bias, classes=told_apart(classes))
    named = imagenet_synsets(head.n_classes) if all(map(SYNSET.fullmatch, classes)) else None
    outputs = [_output(name, named or head.classes, model) for name in classes]
    return LinearClassifier(head.weight[outputs], head.bias[outputs], classes=told_apart(classes))


def _output(name: str, known: Sequence[str], model: str) -> int:
    found = [output for output, other in enumerate(known) if other == name]
    found = found or [output for output, other in enumerate(known) if _plain(other) == _plain(name)]
    if len(found) != 1:
        how = f"is {len(found)} of" if found else "is not one of"
        raise ValueError(
            f"model: class {name!r} of the data set {how} the {len(known)} classes of {model} ({_some(known)}); "
            "give a model with the classes of the data set, or name the outputs of its head by --class-names FILE"
        )
    return found[0]


def _plain(name: str) -> str:
    return clean(name.replace("-", " ")).lower()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if names[3:] else "")
