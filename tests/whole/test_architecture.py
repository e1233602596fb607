"""docs/architecture.md says what is there: its layers, and every file and name in it."""

from __future__ import annotations

import ast
import re
import sys

from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILE = re.compile(r"`([\w./]+\.(?:py|md|json|toml)|[\w/]+/)`")
PLACE = re.compile(r"`(\w+(?:\.\w+)?)` in\s`([\w/]+\.py)`")


def defined(path: str) -> set[str]:
    """Functions, classes, ``Class.method`` and constants of a file."""
    names: set[str] = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_the_layers_are_those_of_the_contract():
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = content["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert "\n".join(["", *(layer.replace("clip_tca.", "") for layer in layers), ""]) in PAGE


def test_every_file_on_the_page_exists():
    assert [path for path in FILE.findall(PAGE) if not (ROOT / path).exists()] == []


def test_every_name_on_the_page_is_defined_in_the_file_beside_it():
    missing = [f"{name} in {path}" for name, path in PLACE.findall(PAGE) if name not in defined(path)]
    rows = [line.split("|")[2:4] for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
    for opened, edit in rows:
        paths = [path for path in FILE.findall(opened + edit) if path.endswith(".py")]
        names = set().union(*map(defined, paths)) if paths else set()
        wanted = [name for name in re.findall(r"`([A-Za-z_.]+)`", edit) if "/" not in name and not name.endswith(".py")]
        missing += [f"{name} in {opened.strip()}" for name in wanted if name not in names]
    assert missing == []
