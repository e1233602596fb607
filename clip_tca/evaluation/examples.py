"""Examples of images whose prediction changed against zero-shot: fixed, broken, or still wrong.

All of each kind are counted. Examples are evenly spaced in the data set: not hand-picked, and the same in every run.
"""

from __future__ import annotations

import base64
import io
import logging

import torch
from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.data.pictures import Domain
from clip_tca.evaluation.inputs import Embedded
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.schema import ExampleGroup, ExampleImage, Examples

log = logging.getLogger(__name__)

SIDE = 96  # longest side of a thumbnail, in pixels


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
        fixed, broken, wrong = (
            mask.nonzero()[:, 0].tolist() for mask in (~was & now, was & ~now, ~was & ~now & (before != after))
        )

        groups.append(
            {
                "method": method,
                "domain": domain,
                "counts": {"fixed": len(fixed), "broken": len(broken), "still_wrong": len(wrong)},
                "fixed": _images(embedded, domain, spread(fixed, limit), before, after),
                "broken": _images(embedded, domain, spread(broken, limit), before, after),
                "still_wrong": _images(embedded, domain, spread(wrong, limit), before, after),
            }
        )
    return {"limit": limit, "seed": 0, "before": ZERO_SHOT, "groups": groups}


def spread(positions: list[int], limit: int) -> list[int]:
    """At most ``limit`` of ``positions``, from the middles of that many equal parts."""
    count = min(limit, len(positions))
    return [positions[(2 * i + 1) * len(positions) // (2 * count)] for i in range(count)]


def _images(embedded: Embedded, domain: str, positions: list[int], before: Tensor, after: Tensor) -> list[ExampleImage]:
    classes, labels = embedded.about["data"]["classes"], embedded.data.domains[domain][1]
    images: list[ExampleImage] = []
    for i in positions:
        image: ExampleImage = {
            "position": i,
            "true": classes[labels[i]],
            "before": classes[before[i]],
            "after": classes[after[i]],
        }
        if embedded.pictures is not None:
            pictures = embedded.pictures.domains[domain]
            image["name"], image["thumbnail"] = pictures.names[i], thumbnail(pictures, i)
        images.append(image)
    return images


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
