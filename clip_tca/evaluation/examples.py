"""Examples of images whose prediction changed.

There are three kinds: ``fixed`` (wrong before, right now), ``broken`` (right before, wrong now) and
``still_wrong`` (wrong before, another wrong class now); *before* is zero-shot. All of each kind are counted. The
examples are evenly spaced in the data set, so they are not hand-picked and are the same in every run. True labels are
used only to tell the kinds apart.
"""

from __future__ import annotations

import base64
import io
import logging

import torch
from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.datasets.pictures import Domain
from clip_tca.evaluation.inputs import Embedded
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.schema import ExampleGroup, ExampleImage, ExampleKind, Examples

log = logging.getLogger(__name__)

SIDE = 96
"""Longest side of a thumbnail, in pixels."""


def changed(
    predictions: dict[tuple[str, str], Tensor], classifier: LinearClassifier, embedded: Embedded, limit: int
) -> Examples:
    """The record's ``examples``: counts and up to ``limit`` images of each kind, by method and domain.

    ``predictions`` holds classes ``(n,)`` by method and domain, in the order of the data set, −1 for images that were
    not seen. ``classifier`` is zero-shot.
    """
    groups: list[ExampleGroup] = []
    for (method, domain), after in predictions.items():
        if method == ZERO_SHOT:
            continue
        z, labels = embedded.data.domains[domain]
        before = classifier.predict(z.to(classifier.device)).cpu()
        after = torch.where(after >= 0, after, before)  # what was not seen has not changed
        was, now = before == labels, after == labels
        masks: dict[ExampleKind, Tensor] = {
            "fixed": ~was & now,
            "broken": was & ~now,
            "still_wrong": ~was & ~now & (before != after),
        }
        found = {kind: mask.nonzero()[:, 0].tolist() for kind, mask in masks.items()}
        images = {
            kind: [_image(embedded, domain, i, int(before[i]), int(after[i])) for i in spread(positions, limit)]
            for kind, positions in found.items()
        }
        groups.append(
            {
                "method": method,
                "domain": domain,
                "counts": {kind: len(positions) for kind, positions in found.items()},
                "fixed": images["fixed"],
                "broken": images["broken"],
                "still_wrong": images["still_wrong"],
            }
        )
    return {"limit": limit, "seed": 0, "before": ZERO_SHOT, "groups": groups}


def spread(positions: list[int], limit: int) -> list[int]:
    """At most ``limit`` of ``positions``, from the middles of that many equal parts."""
    count = min(limit, len(positions))
    return [positions[(2 * i + 1) * len(positions) // (2 * count)] for i in range(count)]


def _image(embedded: Embedded, domain: str, index: int, before: int, after: int) -> ExampleImage:
    """One image with its classes; with name and thumbnail, a small JPEG in base64, if there is a picture."""
    classes, labels = embedded.about["data"]["classes"], embedded.data.domains[domain][1]
    image: ExampleImage = {
        "position": index,
        "true": classes[labels[index]],
        "before": classes[before],
        "after": classes[after],
    }
    if embedded.pictures is not None:
        pictures = embedded.pictures.domains[domain]
        image["name"], image["thumbnail"] = pictures.names[index], thumbnail(pictures, index)
    return image


def thumbnail(pictures: Domain, index: int, side: int = SIDE) -> str | None:
    """A picture as a small JPEG in base64; None, with a warning, if it can't be read any more."""
    try:
        small, file = pictures.image(index), io.BytesIO()
        small.thumbnail((side, side))
        small.save(file, format="JPEG", quality=80, optimize=True)
        return base64.b64encode(file.getvalue()).decode("ascii")
    except (OSError, ValueError) as error:  # its embedding came from the store: the run no longer needs the picture
        log.warning("no thumbnail of %s: %s", pictures.names[index], error)
        return None
