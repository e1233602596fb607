"""Images whose prediction a method changed, for a reader to look at.

Three kinds, treated alike: ``fixed`` (wrong before, right now), ``broken`` (right before, wrong now) and
``still_wrong`` (wrong before, another wrong class now); *before* is zero-shot. All of each kind are counted; those kept
are spread evenly over the data set's own order, so that nobody picks them and every run keeps the same. True labels
are for this sorting only.
"""

from __future__ import annotations

import base64
import io
import logging
from typing import Any

from PIL import Image
from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.datasets.image_set import Domain
from clip_tca.datasets.pictures import decode
from clip_tca.evaluation.inputs import Embedded
from clip_tca.evaluation.protocols import order

log = logging.getLogger(__name__)

KINDS = ("fixed", "broken", "still_wrong")

SIDE = 96
"""Longest side of a thumbnail, in pixels."""


def changed(
    predictions: dict[tuple[str, str, int], Tensor],
    classifier: LinearClassifier,
    embedded: Embedded,
    how: tuple[str, int],
    limit: int,
) -> dict[str, Any]:
    """The record's ``examples``: counts and up to ``limit`` images of each kind, by method and domain, of seed 0.

    Args:
        predictions: Predicted classes ``(n,)`` by method, domain and seed, in the order in which images were seen.
        classifier: Zero-shot, which was there before.
        embedded: The data set, with its pictures if there are some.
        how: Protocol and batch size: they decide that order.
        limit: Images of each kind to keep.
    """
    groups = []
    for (method, domain, seed), after in predictions.items():
        if seed or method == "zero-shot":
            continue
        z, truth = embedded.data.domains[domain]
        seen = order(len(truth), *how, seed)
        before = classifier.predict(z.to(classifier.device)).cpu()
        now = before.clone()
        now[seen] = after  # an image that was not seen has not changed
        pictures = embedded.pictures.domains[domain] if embedded.pictures else None
        found = {kind: where.nonzero()[:, 0].tolist() for kind, where in kinds(truth, before, now).items()}
        classes = embedded.about["data"]["classes"]
        groups.append(
            {
                "method": method,
                "domain": domain,
                "counts": {kind: len(positions) for kind, positions in found.items()},
                **{
                    kind: [
                        {
                            **_image(pictures, position, domain),
                            "true": classes[truth[position]],
                            "before": classes[before[position]],
                            "after": classes[now[position]],
                        }
                        for position in spread(positions, limit)
                    ]
                    for kind, positions in found.items()
                },
            }
        )
    return {"limit": limit, "seed": 0, "before": "zero-shot", "groups": groups}


def kinds(truth: Tensor, before: Tensor, after: Tensor) -> dict[str, Tensor]:
    """Which images ``(n,)`` are of each kind; those whose prediction stayed are of none."""
    was, now = before == truth, after == truth
    return dict(zip(KINDS, (~was & now, was & ~now, ~was & ~now & (before != after)), strict=True))


def spread(positions: list[int], limit: int) -> list[int]:
    """At most ``limit`` of ``positions``, from the middles of that many equal parts."""
    count = min(limit, len(positions))
    return [positions[(2 * i + 1) * len(positions) // (2 * count)] for i in range(count)]


def _image(pictures: Domain | None, position: int, domain: str) -> dict[str, Any]:
    """What identifies an image: its position, from 0, in its domain; and, if there is a picture, name and thumbnail."""
    if pictures is None:
        return {"position": position}
    name = pictures.names[position]
    try:
        small = thumbnail(decode(pictures.picture(position)))
    except (OSError, ValueError) as error:  # its embedding came from the store: the run does not need it any more
        log.warning("no thumbnail of %s/%s: %s", domain, name, error)
        small = None
    return {"position": position, "name": name, "thumbnail": small}


def thumbnail(picture: Image.Image) -> str:
    """A small JPEG of an RGB picture, in base64."""
    small = picture.copy()
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, format="JPEG", quality=80, optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")
