"""The command line: any words for any subcommand, on small inputs that may be damaged."""

from __future__ import annotations

import argparse
import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.robustness.fuzzing.damage import damaged
from tests.robustness.fuzzing.documents import Records
from tests.robustness.fuzzing.embeddings import encodings
from tests.robustness.fuzzing.states import Sets, States
from tests.robustness.fuzzing.target import Target, command

FILES = ("set.safetensors", "state.safetensors", "record.json", "z.npy", "z.npz", "text.npy", "names.txt", "r.toml")
VALUES = (
    "", "-", "--", "-1", "0", "1", "2", "7", "0.5", "1e999", "nan", "auto", "none", "true", "x", "é犬", "a\nb",
    "\udcff", ".", "..", "/", "../x", "~", "*", "[", "x" * 300, "synthetic", "zero-shot", "linear-tca",
    "conditional-tca", "photo", "single", "watt", "raw", "clean", "cpu", "cuda:9", "k=3", "steps=2", "k=", "=3",
    "seed=-1", "labels,scores", "embeddings", "out.json", "out.html", "out.onnx", "out.safetensors", "out.npy", "out",
    "no/where.json", "0x10", "٣", "1" * 5000, *FILES,
)  # fmt: skip
USUAL = {
    "--dataset": ("set.safetensors", "set.safetensors", "synthetic", "folder", "x.safetensors"),
    "--seeds": ("1", "2", "0", "x"),
    "--seed": ("0", "1", "-5", "x", "9" * 30),
    "--method": ("zero-shot", "linear-tca", "t3a", "tda+tca", "conditional-tca", "linear-tca:reference", "tent", "x"),
    "--data-dir": ("pictures", "nowhere", "z.npy", "", "."),
    "--text": ("text.npy", "text.npy", "z.npy", "state.safetensors", "names.txt", "x"),
    "--output": ("out.json", "out.npy", "out.npz", "out", "out.onnx", "out.html", "nowhere/x", ".", ""),
    "--hub-id": ("", "nowhere", "z.npy", "../x", "a/b/c"),
    "--model": ("x", "", "local-dir:.", "local-dir:", "hf-hub:", "ViT-B-16", "é"),
    "--k": ("3", "auto", "0", "-1", "x", "1e999", "0.5", "99999999999"),
    "--set": (
        "k=3", "steps=2", "seed=-1", "rounds=0", "rounds=2", "memory=2", "memory=none", "lr=nan", "lr=-1",
        "shrinkage=2", "layers=9", "refresh=0", "refresh=1", "hidden=0", "anchor=-1", "anchor=1e30", "normalize=maybe",
        "uncertainty=entropy", "uncertainty=", "k=1e3", "lr=1e30", "classifier=1", "steps=true", "normalize=false",
    ),
    "--solver": ("monge", "coral", "gradient", "mean", "x", ""),
    "--shares": ("estimated", "uniform", "predicted", "global", "oracle", "x"),
    "--batch-size": ("1", "2", "7", "128", "0", "x", "1" * 30),
    "--scale": ("100", "1e-30", "1e30", "-1", "x"),
    "--examples": ("1", "-1", "x"),
    "--recipe": ("r.toml", "x", "../clip", "", "\0"),
    "": ("z.npy", "z.npy", "z.npz", "record.json", "record.json", "state.safetensors", "state.safetensors", "-"),
}  # fmt: skip
COMMANDS = ("eval", "adapt", "explain", "report", "compare", "export", "embed", "data", "cache", "study", "methods")
SLOW = ("demo", "k", "map", "toy", "efficiency", "alignment", "batch-size", "test-size", "upper-bound", "forgetting")
"""Words that are right, and ask for much work."""


class Commands(Target):
    """``main()``: exit code 0, 1 with one clear line, or 2."""

    name, share, names = "commands", 3.0, ()

    @cached_property
    def seeds(self) -> dict[str, bytes]:
        """Small valid files."""
        from clip_tca.cli import parser

        self.parser = parser()
        os.environ["HF_HUB_OFFLINE"] = "1"
        recipe = b'[[run]]\ndataset = "set.safetensors"\nmethod = ["zero-shot", "linear-tca"]\n'
        return {
            "set.safetensors": Sets().seeds[0],
            "state.safetensors": States().seeds[0][1],
            "record.json": json.dumps(Records().seeds[0]).encode(),
            "z.npy": encodings(".npy")[0],
            "z.npz": encodings(".npz")[0],
            "text.npy": encodings(".npy")[2],
            "names.txt": b"dog\nhouse = a house\n",
            "r.toml": recipe,
            "-": encodings(".arrow")[0],
        }

    def cases(self) -> SearchStrategy[Any]:
        name = st.sampled_from(sorted(self.seeds))
        one_file = name.flatmap(lambda name: st.tuples(st.just(name), damaged([self.seeds[name]])))
        return st.tuples(words(self.parser), st.none() | one_file)

    def run(self, case: Any, folder: Path) -> bool | None:
        """Run it in a folder with these files, of which one may be damaged."""
        arguments, damage = case
        contents = {**self.seeds, **(dict([damage]) if damage else {})}
        stdin = contents.pop("-")
        for name, data in contents.items():
            (folder / name).write_bytes(data)
        (folder / "pictures" / "dog").mkdir(parents=True)
        os.environ["CLIP_TCA_CACHE"] = str(folder / "store")
        return command(arguments, (), stdin, codes=(0, 1, 2))


@st.composite
def words(draw: DrawFn, parser: argparse.ArgumentParser) -> list[str]:
    """A command with some of its options, each with a usual value, or any."""
    name = draw(st.sampled_from(COMMANDS))
    chosen: Any = parser._subparsers._group_actions[0].choices[name]  # type: ignore[union-attr,index,call-overload]
    arguments = [name]
    while inner := [action for action in chosen._actions if isinstance(action, argparse._SubParsersAction)]:
        arguments.append(draw(st.sampled_from(sorted(inner[0].choices))))
        chosen = inner[0].choices[arguments[-1]]
    needed = [a for a in chosen._actions if a.required or a.option_strings[:1] in ([], ["--dataset"])]
    others = [action for action in chosen._actions if action not in needed]
    actions = needed[draw(st.integers(0, 19)) == 19 :]  # at times without the first of them
    if others:
        actions += draw(st.lists(st.sampled_from(others), max_size=4))
    for action in actions:
        option = max(action.option_strings, key=len, default="")
        arguments += [option] if option else []
        if action.nargs != 0:
            arguments.append(draw(_value(action, option)))
    if draw(st.integers(0, 19)) == 19:
        arguments.insert(draw(st.integers(0, len(arguments))), draw(st.sampled_from(VALUES)))
    return arguments


def _value(action: argparse.Action, option: str) -> SearchStrategy[str]:
    """A value of an option: most often one that is allowed or usual."""
    allowed = [str(word) for word in action.choices or () if word not in SLOW]
    usual = allowed or USUAL.get(option, ())
    any_value = st.sampled_from([value for value in VALUES if value not in SLOW])
    return st.integers(0, 9).flatmap(lambda draw: st.sampled_from(usual) if usual and draw < 9 else any_value)
