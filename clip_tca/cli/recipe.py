"""Recipes: TOML files that list the runs of a table, with the options of the command line.

[all]                       # options of every run
model = "ViT-B-16-quickgelu"
[[run]]                     # one run
dataset = "pacs"
method = ["zero-shot", "linear-tca"]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from clip_tca.core.remote import Location, locate
from clip_tca.core.resources import resource

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_OWN = ("recipe", "output", "format", "help")


def find(name: str) -> Location:
    """A recipe by its path, or one in eval/recipes/ by its name (``clip``)."""
    if (path := locate(name)).is_file():
        return path
    try:
        return resource(f"eval/recipes/{name}.toml")
    except FileNotFoundError:
        raise FileNotFoundError(f"recipe: {name}: no such file, and no recipe of that name in eval/recipes/") from None


def arguments(path: Location, parser: argparse.ArgumentParser, given: Sequence[str]) -> list[list[str]]:
    """The arguments of ``clip-tca eval`` for each run: the options of the recipe, overridden by those given."""
    allowed = {option for action in parser._actions for option in action.option_strings}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not TOML ({error})") from None
    common, runs = content.get("all", {}), content.get("run", [])
    has_runs = isinstance(runs, list) and runs and all(isinstance(run, dict) for run in runs)
    if not has_runs or not isinstance(common, dict):
        raise ValueError(f"{path}: no runs; a recipe has [[run]] sections, and may have one [all]")
    if unknown := set(content) - {"all", "run", "title"}:
        raise ValueError(
            f"{path}: {sorted(unknown)[0]!r} is not part of a recipe; allowed are title, [all] and [[run]]"
        )
    overridden = {word.split("=")[0] for word in given if word.startswith("--")}
    lines = []
    for run in runs:
        line: list[str] = []
        for name, value in {**common, **run}.items():
            option = f"--{name.replace('_', '-')}"
            if option not in allowed or name in _OWN:
                raise ValueError(f"{path}: {name!r} is not an option of clip-tca eval")
            if option not in overridden:
                line += _words(option, value)
        lines.append([*line, *given])
    return lines


def _words(option: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [option] if value else []
    if isinstance(value, dict):
        return [word for name, inner in value.items() for word in (option, f"{name}={inner}")]
    values = value if isinstance(value, list) else [value]
    return [word for inner in values for word in (option, str(inner))]
