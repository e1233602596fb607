"""The training photographs: six public sets, read by the package's own loaders and kept as one array of pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from names import ARTIFACTS, OBJECTS, WordNet, imagenet_synsets
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from clip_tca.data.image_source import ImageSource
from clip_tca.data.pictures import Domain, decode

STORED = 160  # pixels; larger than the model's input, for crops
HELD_OUT = 12  # every 12th photograph of a class is for validation

SETS = {
    "caltech101": ("101_ObjectCategories", None),
    "pacs": ("pacs", "photo"),
    "officehome": ("officehome", "Real World"),
    "office31": ("office31", None),
    "natural": ("natural", None),
    "imagenet": ("imagenet", None),
}
"""Folder of each set below ``--photographs``, and the only domain that is trained on."""

LEFT_OUT = frozenset((
    # VLCS' Caltech101 domain is made of these: 1,415 pictures, never trained on
    "flamingo", "flamingo_head", "ibis", "pigeon", "car_side", "chair", "windsor_chair", "dalmatian", "Faces",
    "Faces_easy",
    # not photographs of one thing
    "BACKGROUND_Google", "garfield", "snoopy", "yin_yang",
))  # fmt: skip
"""Folders of Caltech-101."""


@dataclass
class Photographs:
    """Pixels ``(n, 160, 160, 3)`` as bytes, and for each picture its set, class, and whether it is held out.

    ``classes`` has for each class of all sets the set it is of, its own names and the names of what it is a kind of;
    ``answers`` are the names of ImageNet's classes in the order of its head.
    """

    pixels: np.ndarray
    labels: Tensor
    held_out: Tensor
    classes: list[tuple[str, list[str], list[str]]]
    answers: list[str]

    def of(self, name: str) -> list[int]:
        """The classes of one set."""
        return [label for label, (where, _, _) in enumerate(self.classes) if where == name]


class _Squares(Dataset[Tensor]):
    def __init__(self, parts: list[tuple[Domain, list[int]]]) -> None:
        self.items = [(domain, row) for domain, rows in parts for row in rows]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Tensor:
        """The middle square of a picture."""
        domain, row = self.items[index]
        image = decode(domain.picture(row))
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.resize((STORED, STORED), Image.Resampling.BICUBIC, (left, top, left + side, top + side))
        return torch.from_numpy(np.array(square))


def clean(name: str) -> str:
    """A folder's name as words."""
    name = {"Faces": "face", "Motorbikes": "motorbike", "airplanes": "airplane", "Leopards": "leopard"}.get(name, name)
    name = name.removesuffix("_body").removesuffix("_face").removesuffix("_head")
    return {"water_lilly": "water lily", "TV": "TV"}.get(name, name.replace("_", " ").lower())


def load(folder: Path, cache: Path, words: WordNet) -> Photographs:
    """Every photograph below ``folder``; decoded once, then read from ``cache``."""
    classes: list[tuple[str, list[str], list[str]]] = []
    parts: list[tuple[Domain, list[int]]] = []
    labels: list[int] = []
    held: list[bool] = []
    synsets = imagenet_synsets()
    for name, (place, only) in SETS.items():
        reader = name if name == "office31" else "folder"  # its domains have a folder "images" between
        data = ImageSource(reader, data_dir=folder / place, domains=[only] if only else []).load()
        first, seen = len(classes), [0] * len(data.classes)
        for label in data.classes:
            if name == "imagenet":
                synset: int | None = synsets[int(label)]
                own = words.names(synsets[int(label)])[:2]
            else:
                own = [clean(label)] if label not in LEFT_OUT else []
                synset = words.sense(clean(label), ARTIFACTS if name.startswith("office") else OBJECTS)
            kinds = words.names(synset)[:2] + words.kinds(synset) if synset and own else []
            classes.append((name, own, [kind for kind in kinds if kind not in own]))
        for domain in data.domains.values():
            rows = [row for row, label in enumerate(domain.labels) if data.classes[label] not in LEFT_OUT]
            parts.append((domain, rows))
            for row in rows:
                label = domain.labels[row]
                labels.append(first + label)
                held.append(seen[label] % HELD_OUT == HELD_OUT - 1 if name != "imagenet" else seen[label] % 5 == 4)
                seen[label] += 1
    if not cache.is_file():
        loader = DataLoader(_Squares(parts), batch_size=64, num_workers=2)
        np.save(cache, torch.cat(list(loader)).numpy())
    answers = [words.names(synset)[0] for synset in synsets]
    pixels = np.load(cache, mmap_mode="r")
    return Photographs(pixels, torch.tensor(labels), torch.tensor(held), classes, answers)
