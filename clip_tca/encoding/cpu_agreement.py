"""Whether a device embeds like the CPU: CLIP's embeddings on Apple's MPS were reported to be wrong without an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from PIL import Image
from torch import Tensor

from clip_tca.encoding.base import Encoder

log = logging.getLogger("clip_tca")

TOLERANCE = 1e-2
"""Largest 1 − cosine between the embeddings of an image on two devices: rounding in fp32 or fp16 stays far below."""

IMAGES = 3


def agrees_with_cpu(encoder: Encoder) -> bool:
    """Embed a few made-up images on the encoder's device and on the CPU; a warning if they differ."""
    batch = torch.stack([encoder.transform(_image(number)) for number in range(IMAGES)])
    there = encoder.encode_images(batch).cpu()
    with _moved(encoder, torch.device("cpu")):
        here = encoder.encode_images(batch)
    worst = deviation(there, here)
    if worst <= TOLERANCE:
        return True
    log.warning(
        "embeddings on %s are wrong: they differ from the CPU's by up to %.2g (1 − cosine; %g is the limit); use "
        "--device cpu, nothing is stored",
        *(encoder.device.type, worst, TOLERANCE),
    )
    return False


def deviation(one: Tensor, other: Tensor) -> float:
    """Largest 1 − cosine of rows ``(n, d)``; 2, the largest there is, if one is not finite."""
    cosines = torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=1)
    return float((1 - cosines).nan_to_num(nan=2.0).max())


@contextmanager
def _moved(encoder: Encoder, device: torch.device) -> Iterator[None]:
    """The encoder on another device, and back."""
    own = encoder.device
    try:
        encoder.device = device
        encoder.model.to(device)
        yield
    finally:
        encoder.device = own
        encoder.model.to(own)


def _image(number: int) -> Image.Image:
    """A picture with edges and gradients, another for each number."""
    ramp = Image.linear_gradient("L").rotate(90 * number)
    return Image.merge("RGB", (ramp, Image.radial_gradient("L"), ramp.transpose(Image.Transpose.ROTATE_90)))
