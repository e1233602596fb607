"""HTML elements as functions. Everything that is not :class:`Safe` is text of a record, and is escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape

from clip_tca.core.checks import visible

VOID = ("img", "input", "meta")


class Safe(str):
    """Markup that this package made: it is not escaped."""

    __slots__ = ()


Content = Safe | str | int | float | None
Attribute = str | int | float | bool | None


def text(value: Content) -> Safe:
    """A value as markup: escaped, with control characters and broken Unicode written out; None is empty."""
    if isinstance(value, Safe):
        return value
    return Safe("" if value is None else escape(visible(str(value)), quote=True))


def join(*parts: Content) -> Safe:
    """Parts concatenated as markup."""
    return Safe("".join(map(text, parts)))


def tag(name: str, *content: Content, **attributes: Attribute) -> Safe:
    """An element; ``class_`` is ``class``, ``aria_label`` is ``aria-label``. True is a bare attribute, None is none."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = key.rstrip("_").replace("_", "-")
        words.append(spelled if value is True else f'{spelled}="{text(value)}"')
    inner = "" if name in VOID else f"{join(*content)}</{name}>"
    return Safe(f"<{' '.join(words)}>{inner}")


def folded(parts: Iterable[tuple[Content, Content]]) -> Safe:
    """Parts that fold under their titles, the first one open."""
    return join(*[tag("details", tag("summary", title), body, open=i == 0) for i, (title, body) in enumerate(parts)])


def data_uri(kind: str, content: bytes) -> str:
    """Bytes as a data URI: base64 has no character that could end an attribute."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def count(number: int, singular: str, plural: str) -> str:
    """``1 class``, ``2 classes``."""
    return f"{number:,} {singular if number == 1 else plural}"


def signed(number: float, digits: int = 2) -> str:
    """A change: ``+0.36``, ``−0.36``, ``0.00``."""
    rounded = f"{number:+.{digits}f}"
    return rounded[1:] if float(rounded) == 0 else rounded.replace("-", "−")
