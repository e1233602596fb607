"""The rules of the house: one printer, and users who need nothing but public names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

import clip_tca
from tests.conftest import ROOT

PACKAGE = ROOT / "clip_tca"


def imports(source: str) -> Iterator[str]:
    """The modules that a source imports, with the names taken from them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def programs() -> dict[str, str]:
    """The examples, and the programs in the README and on the page about Python."""
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))}
    for page in ("README.md", "docs/python.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        found |= {f"{page}, program {number}": block for number, block in enumerate(blocks)}
    return found


@pytest.mark.parametrize(("name", "source"), programs().items(), ids=programs())
def test_what_a_reader_copies_imports_public_names_only(name, source):
    public = {"clip_tca", *(f"clip_tca.{public}" for public in clip_tca.__all__)}
    assert {name for name in imports(source) if name.split(".")[0] == "clip_tca"} <= public


def test_only_the_command_line_prints():
    printing = set()
    for path in PACKAGE.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        if any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls):
            printing.add(path.relative_to(PACKAGE).parts[0])
    assert printing == {"cli", "__main__.py"}
