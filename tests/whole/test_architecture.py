"""docs/architecture.md says what is there: its tree, its layers, and every file and name in it."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TREE, LAYERS = re.findall(r"^```\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
FILE = re.compile(r"`([\w./]+\.(?:py|md|json|toml)|[\w/]+/)`")
PLACE = re.compile(r"`(\w+(?:\.\w+)?)` in\s`([\w/]+\.py)`")
ROWS = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
ASKED = (
    "a solver", "a data set", "a base method", "an adapter", "the classifier head", "the encoder library",
    "the certainty score", "an embedding file format", "what is cached, and under which key", "a table column",
    "a report panel", "a study", "the default k",
)  # fmt: skip


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


def test_the_tree_is_that_of_the_folders():
    lines = [
        re.match(r"( *)(\S+) +\S", line).groups() for line in TREE.splitlines() if not line.startswith("clip_tca/")
    ]
    package = {name.rstrip("/") for indent, name in lines if indent}
    folders = {name.rstrip("/") for indent, name in lines if not indent} | {"clip_tca"}
    beside = {"__init__.py", "__main__.py", "py.typed", "__pycache__", "_resources"}
    assert package == {path.name for path in (ROOT / "clip_tca").iterdir()} - beside
    repository = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert folders == repository - {"build", "dist", "site"}


def test_the_layers_are_those_of_the_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert LAYERS.splitlines() == [layer.replace("clip_tca.", "") for layer in layers]


def test_every_file_on_the_page_exists():
    paths = FILE.findall(PAGE)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_function_on_the_way_of_a_picture_is_defined_where_the_page_says():
    places = PLACE.findall(PAGE)
    assert len(places) >= 20
    assert [f"{name} in {path}" for name, path in places if name not in defined(path)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_every_name_to_edit_is_defined_in_a_file_of_its_row(row):
    _, opened, edit = row
    paths = [path for path in FILE.findall(opened + edit) if path.endswith(".py")]
    names = set().union(*map(defined, paths)) if paths else set()
    wanted = [name for name in re.findall(r"`([A-Za-z_.]+)`", edit) if "/" not in name and not name.endswith(".py")]
    assert [name for name in wanted if name not in names] == []


def test_the_questions_of_a_newcomer_are_answered():
    assert [question for question in ASKED if question not in {row[0].strip() for row in ROWS}] == []
    assert all(len(FILE.findall(opened)) == 1 for _, opened, _ in ROWS)
