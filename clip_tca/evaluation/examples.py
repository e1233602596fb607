"""Images whose prediction a method changed, for a reader to look at.

Three kinds, treated alike: ``fixed`` (wrong before, right now), ``broken`` (right before, wrong now) and
``still_wrong`` (wrong before, another wrong class now); *before* is zero-shot. All of each kind are counted; those
listed are evenly spaced in the order of the data set, so that nobody picks them and every run lists the same. True
labels are used for this sorting only.
"""

from __future__ import annotations

import base64
import io
import logging
from typing import get_args

import torch
from PIL import Image
from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.datasets.image_set import Domain
from clip_tca.evaluation.inputs import Embedded
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.schema import ExampleGroup, ExampleImage, ExampleKind, Examples, Thumbnail

log = logging.getLogger(__name__)

EXAMPLE_KINDS: tuple[ExampleKind, ...] = get_args(ExampleKind)

SIDE = 96
"""Longest side of a thumbnail, in pixels."""


def changed(
    predictions: dict[tuple[str, str, int], Tensor], classifier: LinearClassifier, embedded: Embedded, limit: int
) -> Examples:
    """The record's ``examples``: counts and up to ``limit`` images of each kind, by method and domain, of seed 0.

    ``predictions`` holds classes ``(n,)`` by method, domain and seed, in the order of the data set, −1 for images that
    were not seen. ``classifier`` is zero-shot.
    """
    groups: list[ExampleGroup] = []
    classes = embedded.about["data"]["classes"]
    for (method, domain, seed), after in predictions.items():
        if seed or method == ZERO_SHOT:
            continue
        z, labels = embedded.data.domains[domain]
        before = classifier.predict(z.to(classifier.device)).cpu()
        counted = (after >= 0) & (labels < classifier.n_classes)
        now = torch.where(counted, after, before)  # what was not seen, or is of no known class, has not changed
        pictures = embedded.pictures.domains[domain] if embedded.pictures else None
        indices = {kind: mask.nonzero()[:, 0].tolist() for kind, mask in kinds(labels, before, now).items()}
        images: dict[ExampleKind, list[ExampleImage]] = {
            kind: [
                {
                    "position": i,
                    **_picture(pictures, i, domain),
                    "true": classes[labels[i]],
                    "before": classes[before[i]],
                    "after": classes[now[i]],
                }
                for i in spread(indices[kind], limit)
            ]
            for kind in EXAMPLE_KINDS
        }
        groups.append(
            {
                "method": method,
                "domain": domain,
                "counts": {kind: len(indices[kind]) for kind in EXAMPLE_KINDS},
                "fixed": images["fixed"],
                "broken": images["broken"],
                "still_wrong": images["still_wrong"],
            }
        )
    return {"limit": limit, "seed": 0, "before": ZERO_SHOT, "groups": groups}


def kinds(labels: Tensor, before: Tensor, after: Tensor) -> dict[ExampleKind, Tensor]:
    """Masks ``(n,)`` of the images of each kind; an image whose prediction stayed is of none."""
    was, now = before == labels, after == labels
    return dict(zip(EXAMPLE_KINDS, (~was & now, was & ~now, ~was & ~now & (before != after)), strict=True))


def spread(positions: list[int], limit: int) -> list[int]:
    """At most ``limit`` of ``positions``, from the middles of that many equal parts."""
    count = min(limit, len(positions))
    return [positions[(2 * i + 1) * len(positions) // (2 * count)] for i in range(count)]


def _picture(pictures: Domain | None, index: int, domain: str) -> Thumbnail:
    """Name and thumbnail, if there is a picture."""
    if pictures is None:
        return {}
    name = pictures.names[index]
    try:
        small = thumbnail(pictures.image(index))
    except (OSError, ValueError) as error:  # its embedding came from the store: the run no longer needs the picture
        log.warning("no thumbnail of %s/%s: %s", domain, name, error)
        small = None
    return {"name": name, "thumbnail": small}


def thumbnail(picture: Image.Image) -> str:
    """A small JPEG of an RGB picture, in base64."""
    small = picture.copy()
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, format="JPEG", quality=80, optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")
