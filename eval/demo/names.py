"""What a photograph can be called: the names of its class, and of everything that WordNet says the class is a kind of.

A picture of a golden retriever is also one of a retriever and of a dog. Captions are drawn from all these names, so
that the model learns the common words that people use as classes, not only those of its training labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

OBJECTS = (5, 6, 13, 17, 18, 20)
"""WordNet's files of animals, artifacts, food, natural objects, persons and plants."""

ARTIFACTS = (6,)

TOO_GENERAL = frozenset((
    "entity", "physical entity", "object", "whole", "thing", "artifact", "instrumentality", "living thing",
    "organism", "matter", "unit", "substance", "causal agent", "article", "commodity", "consumer goods", "way",
    "creation", "surface", "block", "part", "equipment", "covering", "solid", "food", "conveyance", "placental",
    "chordate", "vertebrate", "vascular plant", "woody plant", "spermatophyte", "angiosperm", "product", "system",
    "structure", "geological formation", "natural object", "mechanism", "device", "container", "implement",
    "durables", "facility", "area", "psychological feature", "diapsid", "measuring instrument", "instrument",
    "publication", "work", "nutriment", "foodstuff",
))  # fmt: skip
"""Names that nobody uses for what a picture shows."""

TEMPLATES = (
    "{}", "a {}", "the {}", "a photo of a {}", "a photo of a {}.", "a photo of the {}.", "a picture of a {}",
    "an image of a {}", "itap of a {}", "itap of the {}.", "my {}", "a bad photo of the {}.", "a good photo of a {}.",
    "a close-up photo of the {}.", "a photo of the large {}.", "a photo of the small {}.", "a photo of one {}.",
    "a photo of a nice {}.", "a cropped photo of a {}.", "a bright photo of the {}.", "a dark photo of a {}.",
    "a blurry photo of the {}.", "a black and white photo of a {}.", "a low resolution photo of the {}.",
    "art of the {}.", "a drawing of a {}.", "a painting of a {}.", "a sketch of a {}.", "a cartoon {}.",
    "a doodle of a {}.", "an icon of a {}.", "clip art of a {}.", "a rendition of the {}.", "a origami {}.",
    "a {} in a video game.", "a toy {}.", "this is a {}", "there is a {} in the picture", "a photo of a {}, an object.",
    "a photo of many {}.",
)  # fmt: skip

COLOURS = (
    "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white", "grey", "colourful",
    "old", "new", "big", "small",
)  # fmt: skip
PLACES = (
    "on a table", "on grass", "in the snow", "on the street", "in a room", "on a white background", "at night",
    "in the water", "in the sky", "in a garden", "on a shelf", "in front of a house", "on the beach", "in a forest",
)  # fmt: skip


class WordNet:
    """The nouns of WordNet 3.0, whose offsets are ImageNet's synset numbers."""

    def __init__(self, folder: Path) -> None:
        """Read ``data.noun`` and ``index.noun`` from ``folder`` (Debian: package wordnet-base, /usr/share/wordnet)."""
        self._words: dict[int, list[str]] = {}
        self._above: dict[int, list[int]] = {}
        self._file: dict[int, int] = {}
        for line in (folder / "data.noun").read_text(encoding="latin-1").splitlines():
            if not line.startswith(" "):
                fields = line.split(" | ")[0].split()
                offset, count = int(fields[0]), int(fields[3], 16)
                self._words[offset] = [word.replace("_", " ") for word in fields[4 : 4 + 2 * count : 2]]
                self._file[offset] = int(fields[1])
                links = fields[5 + 2 * count :]
                self._above[offset] = [int(links[i + 1]) for i in range(0, len(links), 4) if links[i] in ("@", "@i")]
        self._senses: dict[str, list[int]] = {}
        for line in (folder / "index.noun").read_text(encoding="latin-1").splitlines():
            if not line.startswith(" "):
                fields = line.split()
                self._senses[fields[0].replace("_", " ")] = [int(field) for field in fields[-int(fields[2]) :]]

    def names(self, synset: int) -> list[str]:
        """The names of a synset; scientific ones, written with capitals, only if there is no other."""
        words = self._words[synset]
        return [word for word in words if word == word.lower()] or words[:1]

    def kinds(self, synset: int) -> list[str]:
        """What a synset is a kind of, from near to far: the first name of each, without those too general."""
        found: list[str] = []
        while self._above[synset]:
            synset = self._above[synset][0]
            found += [name for name in self.names(synset)[:1] if name not in TOO_GENERAL and name not in found]
        return found

    def sense(self, name: str, among: Sequence[int]) -> int | None:
        """The first sense of a name (in the singular, or of its last word) in the files ``among``."""
        last = name.split()[-1]
        for word in (name, name.removesuffix("s"), name.replace(" ", ""), last, last.removesuffix("s")):
            for synset in self._senses.get(word, []):
                if self._file[synset] in among:
                    return synset
        return None


def timm_names(file: str) -> list[str]:
    """The lines of one of timm's lists."""
    return files("timm").joinpath("data", "_info", file).read_text(encoding="utf-8").splitlines()


def imagenet_synsets() -> list[int]:
    """ImageNet-1k's synsets in the order of the classes."""
    return [int(line[1:]) for line in timm_names("imagenet_synsets.txt")]


def many_nouns() -> list[str]:
    """The names of ImageNet-22k's synsets with one or two words, for the text tower to have read."""
    lemmas = (line.split("\t")[1].split(", ") for line in timm_names("imagenet_synset_to_lemma.txt"))
    return sorted({name for names in lemmas for name in names if len(name.split()) < 3 and name == name.lower()})
