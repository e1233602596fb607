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
    """Templates filled with the class names, or descriptions of each class."""

    name: str  # of the templates, or of the file
    templates: tuple[str, ...]
    classes: tuple[str, ...]
    descriptions: tuple[tuple[str, ...], ...] = ()

    def texts(self) -> list[str]:
        """All prompts: template by template (templates · classes,), or the descriptions class by class."""
        if self.descriptions:
            return [sentence for sentences in self.descriptions for sentence in sentences]
        from clip_tca.core.text_towers import fill  # it imports torch, and --help reads this module

        return fill(self.templates, self.classes)

    def fingerprint(self) -> str:
        """Hash of all prompts, in order, and of how many describe each class."""
        counts = "".join(f"\n{len(sentences)}" for sentences in self.descriptions)
        return hashlib.sha256(("\n".join(self.texts()) + counts).encode()).hexdigest()


def load_prompts(
    name: str, classes: Sequence[str], dataset: str | None = None, raw: Sequence[str] | None = None
) -> Prompts:
    """The templates ``name`` for readable class names.

    Args:
        name: One of :data:`NAMED`; one of :data:`BY_DATASET`; a file of templates; a ``.json`` file of descriptions.
        classes: Readable class names.
        dataset: The data set, for the templates that depend on it.
        raw: Raw class names, by which descriptions may name the classes too.
    """
    if name in NAMED:
        return Prompts(name, _templates(resource(f"prompts/{name}.txt")), tuple(classes))
    if name in BY_DATASET:
        return Prompts(name, _of_dataset(name, dataset), tuple(classes))
    path = locate(name)
    if path.suffix.lower() == ".json":
        return Prompts(path.name, (), tuple(classes), _descriptions(path, classes, raw or classes))
    if not path.is_file():
        raise FileNotFoundError(f"prompts: {name!r} is neither a file nor one of {', '.join((*NAMED, *BY_DATASET))}")
    return Prompts(path.name, _templates(path), tuple(classes))


def _of_dataset(name: str, dataset: str | None) -> tuple[str, ...]:
    templates = dict(line.split(" = ", 1) for _, line in _lines(resource("prompts/coop.txt")))
    if dataset not in templates:
        reason = f"has none for {dataset}" if dataset else "depends on a data set of the registry, and this is none"
        raise ValueError(f"prompts: {name!r} {reason}; allowed are {', '.join(NAMED)} and a file")
    if name == "coop":
        return (templates[dataset],)
    return _templates(resource(f"prompts/{'clip80' if dataset.startswith('imagenet') else f'clip/{dataset}'}.txt"))


def _templates(path: Location) -> tuple[str, ...]:
    lines = _lines(path)
    for number, line in lines:
        if "{}" not in line:
            raise ValueError(f"{path}, line {number}: {line!r} has no {{}}; write it where the class name goes")
    if not lines:
        raise ValueError(f"{path}: no template; write one a line, such as: a photo of a {{}}")
    return tuple(line for _, line in lines)


def _descriptions(path: Location, classes: Sequence[str], raw: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The sentences for each class, which a file names by its readable or its raw name, in any spelling."""
    import msgspec

    sentences = Annotated[list[Annotated[str, msgspec.Meta(pattern=r"\S")]], msgspec.Meta(min_length=1)]
    try:
        content = msgspec.json.decode(_text(path, "prompts"), type=dict[str, sentences])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f'{path}: {error}; write {{"class name": ["a sentence", …], …}}') from None
    by_name = {_letters(name): tuple(texts) for name, texts in content.items()}
    described = []
    for name, other in zip(classes, raw, strict=True):
        own = by_name.get(_letters(name)) or by_name.get(_letters(other))
        if own is None:
            raise ValueError(
                f"{path}: no description of the class {name!r}; its {len(content)} names begin with "
                f"{', '.join(map(repr, list(content)[:3]))}; add it, or rename the classes with --class-names FILE"
            )
        described.append(own)
    return tuple(described)


def _letters(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def read_classes(path: Location) -> dict[str, str]:
    """Readable class names by raw ones, in the order of a class-name file."""
    names: dict[str, str] = {}
    for number, line in _lines(path, "class names"):
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
    if isinstance(classes, str) and (is_url(classes) or ("," not in classes and locate(classes).is_file())):
        names = read_classes(locate(classes))
    else:
        names = {}
        spelled: dict[str, str] = {}
        for one in classes.split(",") if isinstance(classes, str) else classes:
            if name := " ".join(str(one).split()):
                if (other := spelled.setdefault(_letters(name) or name, name)) in names:
                    as_other = f" (as {other!r})" if other != name else ""
                    raise ValueError(f"classes: {name!r} is there twice{as_other}; name it once")
                names[name] = name
    if len(names) < 2:
        given = f"only {next(iter(names))!r}" if names else "none"
        raise ValueError(
            f"classes: {given}; at least 2 are needed, or every picture gets the same label. Name what else the "
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
    readable = known_classes(dataset) if dataset else {}
    if how != "clean":
        if not locate(how).is_file():
            raise ValueError(f"class names: {how!r} is neither a file nor one of {', '.join(CLASS_NAMES)}")
        readable = read_classes(locate(how))
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


def _lines(path: Location, what: str = "prompts") -> list[tuple[int, str]]:
    numbered = ((number, line.strip()) for number, line in enumerate(_text(path, what).splitlines(), 1))
    return [(number, line) for number, line in numbered if line and not line.startswith("#")]


def _text(path: Location, what: str) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{what}: {path} is not a file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
