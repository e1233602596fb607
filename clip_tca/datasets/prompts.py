"""Prompts: templates and class names in text files that you can edit, or descriptions of each class.

A template file has one template a line, with ``{}`` where the class name goes. A class-name file has one class a line,
in the order of the labels: ``raw`` or ``raw = readable name``. Lines that begin with ``#`` are comments. Descriptions
are whole sentences, in a JSON file as CuPL's: ``{"class name": ["a sentence", …], …}``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from clip_tca.core.folders import resource
from clip_tca.core.remote import Location, is_url, locate

NAMED = ("single", "watt", "clip80")
"""Templates for any data set; ``clip80`` are OpenAI's for ImageNet."""

BY_DATASET = ("clip", "coop")
"""Templates that depend on the data set: OpenAI's, and CoOp's, which most publications use."""

CLASS_NAMES = ("clean", "raw")

SAME_CLASSES = {"imagenet-c": "imagenet", "imagenet-v2": "imagenet", "imagenet-sketch": "imagenet"}
"""Data sets that share the class list of another one."""


@dataclass(frozen=True)
class Prompts:
    """Templates filled with the class names, or descriptions of each class.

    The name is that of the templates, or that of the file.
    """

    name: str
    templates: tuple[str, ...]
    classes: tuple[str, ...]
    descriptions: tuple[tuple[str, ...], ...] = ()

    def texts(self) -> list[str]:
        """All prompts: template by template (templates · classes,), or the descriptions class by class."""
        if self.descriptions:
            return [sentence for sentences in self.descriptions for sentence in sentences]
        return [template.replace("{}", name) for template in self.templates for name in self.classes]

    def fingerprint(self) -> str:
        """Hash of all prompts, in order, and of how many describe each class."""
        counts = "".join(f"\n{len(sentences)}" for sentences in self.descriptions)
        return hashlib.sha256(("\n".join(self.texts()) + counts).encode()).hexdigest()


def load_prompts(
    name: str, classes: Sequence[str], dataset: str | None = None, raw: Sequence[str] | None = None
) -> Prompts:
    """The templates ``name`` for the class names given.

    Args:
        name: One of :data:`NAMED`; one of :data:`BY_DATASET`; a file of templates; a ``.json`` file of descriptions.
        classes: Readable class names.
        dataset: The data set, for the templates that depend on it.
        raw: Raw class names, by which descriptions may name the classes too.
    """
    if name in BY_DATASET:
        return Prompts(name, tuple(_of_dataset(name, dataset)), tuple(classes))
    path = resource(f"prompts/{name}.txt") if name in NAMED else locate(name)
    if name not in NAMED and path.suffix.lower() == ".json":
        return Prompts(path.name, (), tuple(classes), _descriptions(path, classes, raw or classes))
    return Prompts(name if name in NAMED else path.name, tuple(_templates(path, name)), tuple(classes))


def _of_dataset(name: str, dataset: str | None) -> list[str]:
    """The templates of ``clip`` or ``coop`` for a data set."""
    known = dict(line.split(" = ", 1) for _, line in _lines(resource("prompts/coop.txt"), "coop.txt is missing"))
    if dataset not in known:
        where = f"has none for {dataset}" if dataset else "depends on a data set of the registry, and this is none"
        raise ValueError(f"prompts: {name!r} {where}; allowed are {', '.join(NAMED)} and a file")
    if name == "coop":
        return [known[dataset]]
    file = "clip80" if dataset.startswith("imagenet") else f"clip/{dataset}"
    return _templates(resource(f"prompts/{file}.txt"), name)


def _templates(path: Location, name: str) -> list[str]:
    lines = _lines(path, f"prompts: {name!r} is neither a file nor one of {', '.join((*NAMED, *BY_DATASET))}")
    for number, line in lines:
        if "{}" not in line:
            raise ValueError(f"{path}, line {number}: {line!r} has no {{}}; write it where the class name goes")
    if not lines:
        raise ValueError(f"{path}: no template; write one a line, such as: a photo of a {{}}")
    return [line for _, line in lines]


def _descriptions(path: Location, classes: Sequence[str], raw: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The sentences for each class, which a file names by its readable or its raw name, in any spelling."""
    import msgspec

    sentences = Annotated[list[Annotated[str, msgspec.Meta(pattern=r"\S")]], msgspec.Meta(min_length=1)]
    try:
        content = msgspec.json.decode(_text(path, f"prompts: {path} is not a file"), type=dict[str, sentences])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f'{path}: {error}; write {{"class name": ["a sentence", …], …}}') from None
    found = {_letters(name): tuple(texts) for name, texts in content.items()}
    described = []
    for name, other in zip(classes, raw, strict=True):
        own = found.get(_letters(name)) or found.get(_letters(other))
        if own is None:
            raise ValueError(
                f"{path}: no description of the class {name!r}; its {len(content)} names begin with "
                f"{', '.join(map(repr, list(content)[:3]))}; add it, or rename the classes with --class-names FILE"
            )
        described.append(own)
    return tuple(described)


def _letters(name: str) -> str:
    """A class name in lower case, with letters and digits only."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def read_classes(path: Location) -> dict[str, str]:
    """Readable class names by raw ones, in the order of a class-name file."""
    names: dict[str, str] = {}
    for number, line in _lines(path, f"class names: {path} is not a file"):
        raw, _, readable = (part.strip() for part in line.partition("="))
        if not raw or raw in names:
            raise ValueError(f"{path}, line {number}: {line!r} {'repeats a class' if raw else 'has no class'}")
        names[raw] = readable or clean(raw)
    if not names:
        raise ValueError(f"{path}: no class; write one a line: folder name, or folder name = readable name")
    return names


def given_classes(classes: str | Sequence[str]) -> dict[str, str]:
    """Readable class names by those that were given: a list, ``"dog, cat, horse"``, or a class-name file.

    Raises:
        ValueError: If there are fewer than two, or two are the same but for case and spaces.
    """
    if isinstance(classes, str) and not is_url(classes) and ("," in classes or not locate(classes).is_file()):
        classes = classes.split(",")
    names = read_classes(locate(classes)) if isinstance(classes, str) else {}
    spelled: dict[str, str] = {_letters(name) or name: name for name in names}
    for name in (" ".join(str(one).split()) for one in ([] if isinstance(classes, str) else classes)):
        if name and (other := spelled.setdefault(_letters(name) or name, name)) in names:
            raise ValueError(f"classes: {name!r} is there twice{f' (as {other!r})' * (other != name)}; name it once")
        names |= {name: name} if name else {}
    if len(names) < 2:
        found = f"only {next(iter(names))!r}" if names else "none"
        raise ValueError(
            f"classes: {found}; at least 2 are needed, or every picture gets the same label. Name what else the "
            'pictures may show, such as "dog, cat, something else", or give a file with one class a line'
        )
    return names


@lru_cache
def known_classes(dataset: str) -> dict[str, str]:
    """Readable class names by raw ones, of a data set of the registry."""
    return read_classes(resource(f"prompts/classes/{SAME_CLASSES.get(dataset, dataset)}.txt"))


def class_names(raw: Sequence[str], how: str, dataset: str | None = None) -> list[str]:
    """Names for the prompts, from the folder names ``raw`` in the order of the labels.

    ``how`` is ``raw``, ``clean`` (readable names, those of the registry for a ``dataset`` in it), or a class-name file
    that renames some or all of them.
    """
    if how == "raw":
        return list(raw)
    if how == "clean":
        readable = known_classes(dataset) if dataset else {}
    else:
        readable = read_classes(locate(how)) if locate(how).is_file() else {}
        if not readable:
            raise ValueError(f"class names: {how!r} is neither a file nor one of {', '.join(CLASS_NAMES)}")
        if unknown := [name for name in readable if name not in raw]:
            raise ValueError(f"{how}: {unknown[0]!r} is not a class of this data set ({', '.join(raw[:8])}, …)")
    names = [readable.get(name, clean(name)) for name in raw]
    for name in [] if how == "clean" and dataset else names:  # CLIP's own names for ImageNet have two pairs
        if names.count(name) > 1:
            same = [raw_name for raw_name, readable_name in zip(raw, names, strict=True) if readable_name == name]
            raise ValueError(f"class names: {' and '.join(same)} are both {name!r}; use --class-names raw, or a file")
    return names


def clean(raw: str) -> str:
    """A folder name as words: underscores become spaces."""
    return " ".join(raw.replace("_", " ").split()) or raw


def _lines(path: Location, missing: str) -> list[tuple[int, str]]:
    """Lines with their numbers, without empty lines and comments."""
    numbered = ((number, line.strip()) for number, line in enumerate(_text(path, missing).splitlines(), 1))
    return [(number, line) for number, line in numbered if line and not line.startswith("#")]


def _text(path: Location, missing: str) -> str:
    """The text of a file; ``missing`` is the error if there is none."""
    if not path.is_file():
        raise FileNotFoundError(missing)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
