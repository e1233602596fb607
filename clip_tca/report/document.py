"""The document around a page's content: one self-contained file that loads nothing and runs only its own script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from clip_tca.report.markup import Content, Safe, join, tag


def document(title: str, body: Sequence[Content], files: Sequence[str], kind: str | None = None) -> str:
    """The whole document; ``files`` are styles and scripts beside this module, ``kind`` is the class of the body."""
    text = {name: Path(__file__).with_name(name).read_text(encoding="utf-8") for name in files}
    style, script = ("".join(text[name] for name in files if name.endswith(suffix)) for suffix in (".css", ".js"))
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(script)),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Safe(style)),
    )
    content = tag("body", *body, tag("script", Safe(script)), class_=kind)
    return f"<!doctype html>\n{tag('html', tag('head', head), content, lang='en')}\n"


def policy(script: str) -> str:
    """The Content-Security-Policy: our own script by its hash, inline styles, and images in the page."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
