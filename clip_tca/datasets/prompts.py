"""Prompts: templates and class names, in text files that people can edit.

A template file has one template a line, with ``{}`` where the class name goes. A class-name file has one class a line,
in the order of the labels: ``raw`` or ``raw = readable name``. Lines that begin with ``#`` are comments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from clip_tca.core.remote import Location, locate
from clip_tca.core.resources import resource

NAMED = ("single", "watt")
CLASS_NAMES = ("clean", "raw")


@dataclass(frozen=True)
class Prompts:
    """Every class name in every template, in place of its ``{}``; the name is ``single``, ``watt`` or the file's."""

    name: str
    templates: tuple[str, ...]
    classes: tuple[str, ...]

    def texts(self) -> list[str]:
        """All prompts, template by template: (templates · classes,)."""
        return [template.replace("{}", name) for template in self.templates for name in self.classes]

    def fingerprint(self) -> str:
        """Hash of all prompts, in order."""
        return hashlib.sha256("\n".join(self.texts()).encode()).hexdigest()


def load_prompts(name: str, classes: Sequence[str]) -> Prompts:
    """The templates ``name`` (``single``, ``watt`` or a file) for the class names given."""
    path = resource(f"prompts/{name}.txt") if name in NAMED else locate(name)
    lines = _lines(path, f"prompts: {name!r} is neither a file nor one of {', '.join(NAMED)}")
    for number, line in lines:
        if "{}" not in line:
            raise ValueError(f"{path}, line {number}: {line!r} has no {{}}; write it where the class name goes")
    if not lines:
        raise ValueError(f"{path}: no template; write one a line, such as: a photo of a {{}}")
    return Prompts(name if name in NAMED else path.name, tuple(line for _, line in lines), tuple(classes))


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


@lru_cache
def known_classes(dataset: str) -> dict[str, str]:
    """Readable class names by raw ones, of a data set of the registry."""
    return read_classes(resource(f"prompts/classes/{dataset}.txt"))


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
    """Numbered lines that are neither empty nor comments."""
    if not path.is_file():
        raise FileNotFoundError(missing)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    numbered = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in numbered if line and not line.startswith("#")]
