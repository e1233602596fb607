"""A hook of mkdocs: Sphinx roles in docstrings (:meth:`fit`) become plain code on the site."""

import re

ROLE = re.compile(r":(?:meth|class|func|mod|attr|data):<code>(?:[\w.]*\.)?(\w+)</code>")


def on_page_content(html: str, **_: object) -> str:
    """Keep the last part of the name."""
    return ROLE.sub(r"<code>\1</code>", html)
