"""The rules of the house: few entries at the top, tests that mirror the rooms, one printer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import clip_tca
from tests.conftest import ROOT

PACKAGE = ROOT / "clip_tca"
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
FEATURES = {
    "adapters/test_any_classifier.py",  # every adapter, with a classifier that has no text
    "adapters/test_references.py",  # the adapters beside the methods in plain code
    "adapters/test_streaming.py",  # every adapter, batch by batch
    "methods/test_any_classifier.py",  # every method that needs no text
    "methods/test_own_head.py",  # the same methods, on networks with their own heads
    "methods/test_rivals.py",  # the rivals on embeddings, beside the outputs of their authors' code
    "cli/test_commands.py",  # what all subcommands share
    "report/test_browser.py",  # the page in a browser
    "studies/test_toy_and_map.py",
}
"""Test files of several modules of their room."""


def imports(source: str) -> Iterator[str]:
    """The modules that a source imports, with the names taken from them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_package_has_at_most_14_entries():
    beside = {"__init__.py", "__main__.py", "py.typed", "__pycache__", "_resources"}
    assert len({path.name for path in PACKAGE.iterdir()} - beside) <= 14


def test_no_module_is_called_after_nothing():
    vague = {"utils", "util", "helper", "helpers", "common", "misc", "manager", "tools", "shared"}
    assert [path.name for path in MODULES if path.stem in vague] == []


def test_every_folder_of_tests_is_a_room():
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("*/test_*.py")}
    assert folders - ROOMS == {"whole", "robustness"}


@pytest.mark.parametrize("room", sorted(ROOMS & {path.name for path in (ROOT / "tests").iterdir()}))
def test_a_test_file_is_named_after_a_module_of_its_room(room):
    modules = {name for path in (PACKAGE / room).rglob("*.py") for name in (path.stem, path.parent.name)}
    for path in (ROOT / "tests" / room).rglob("test_*.py"):
        name = f"{room}/{path.name}"
        assert (path.stem.removeprefix("test_") in modules) != (name in FEATURES), name


def test_no_test_imports_the_benchmarks():
    for path in (ROOT / "tests").rglob("*.py"):
        assert not [name for name in imports(path.read_text(encoding="utf-8")) if name.startswith("benchmarks")], path


def test_only_the_command_line_prints():
    def prints(path: Path) -> bool:
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        return any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls)

    printing = {path.relative_to(PACKAGE).parts[0] for path in MODULES if prints(path)}
    assert printing == {"cli", "__main__.py"}


PROGRAMS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))}
PROGRAMS |= {
    f"README.md, program {number}": text
    for number, text in enumerate(
        re.findall(
            r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    )
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_readme_and_examples_import_public_names_only(name):
    public = {"clip_tca", *(f"clip_tca.{public}" for public in clip_tca.__all__)}
    assert {name for name in imports(PROGRAMS[name]) if name.split(".")[0] == "clip_tca"} <= public
