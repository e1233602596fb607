"""The command line: any words for any subcommand, on small inputs that may be damaged."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import sys
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.fuzzing.documents import Records
from benchmarks.fuzzing.embeddings import Pipe, Shelf
from benchmarks.fuzzing.mutations import damaged
from benchmarks.fuzzing.states import Sets, States
from benchmarks.fuzzing.target import Target, Unclear, clear

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
    "--balance": ("estimated", "uniform", "predicted", "global", "oracle", "x"),
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
        """Small files that are right."""
        from clip_tca.cli import parser

        self.parser = parser()
        os.environ["HF_HUB_OFFLINE"] = "1"
        npy, npz = Shelf(".npy").seeds, Shelf(".npz").seeds
        recipe = b'[[run]]\ndataset = "set.safetensors"\nmethod = ["zero-shot", "linear-tca"]\n'
        return {
            "set.safetensors": Sets().seeds[0],
            "state.safetensors": States().seeds[0][1],
            "record.json": json.dumps(Records().seeds[0]).encode(),
            "z.npy": npy[0],
            "z.npz": npz[0],
            "text.npy": npy[0],
            "names.txt": b"dog\nhouse = a house\n",
            "r.toml": recipe,
            "-": Pipe().seeds[0],
        }

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """Run it, in a folder with these files, one of them damaged now and then."""
        for name, data in self.seeds.items():
            (folder / name).write_bytes(damaged(data, rng, [data]) if rng.random() < 0.15 else data)
        (folder / "pictures" / "dog").mkdir(parents=True)
        stdin = (folder / "-").read_bytes()
        (folder / "-").unlink()
        os.environ["CLIP_TCA_CACHE"] = str(folder / "store")
        words = self.words(rng)
        longest = 1500 + 3 * max(map(len, words))  # a long word comes back in the answer
        seen: list[BaseException | None] = []
        out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        from clip_tca.cli import main

        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(contextlib.redirect_stdout(out))
                stack.enter_context(contextlib.redirect_stderr(err))
                stack.enter_context(patch("clip_tca.bulk.pipe.standard_input", lambda: io.BytesIO(stdin)))
                stack.enter_context(patch("traceback.print_exc", lambda: seen.append(sys.exc_info()[1])))
                code = main(["--debug", *words])
        except SystemExit as end:
            if end.code not in (0, 2):
                raise Unclear(f"exit {end.code}: {words}") from None
            return end.code == 0
        if any(isinstance(error, Exception) and (wrong := clear(error, (), longest)) for error in seen):
            raise Unclear(f"{wrong}: clip-tca {words}")
        told = [line for line in err.getvalue().split("\n") if line]
        if code not in (0, 1) or any(not line.startswith("clip-tca: ") for line in told if seen):
            raise Unclear(f"exit {code}, {told[-1:]}: {words}")
        return code == 0

    def words(self, rng: random.Random) -> list[str]:
        """A command with some of its options, each with a value that is usual, or any."""
        name = rng.choice(COMMANDS)
        chosen: Any = self.parser._subparsers._group_actions[0].choices[name]  # type: ignore[union-attr,index,call-overload]
        words = [name]
        while inner := [a for a in chosen._actions if isinstance(a, argparse._SubParsersAction)]:
            words.append(rng.choice(sorted(inner[0].choices)))
            chosen = inner[0].choices[words[-1]]
        often = rng.choice((0.02, 0.08, 0.2))
        for action in chosen._actions:
            needed = action.required and rng.random() < 0.95
            likely = action.option_strings[:1] == ["--dataset"] and rng.random() < 0.9
            if not (needed or likely or rng.random() < often):
                continue
            option = max(action.option_strings, key=len, default="")
            words += [option] if option else []
            if action.nargs != 0:
                words.append(self.value(rng, action, option))
        if rng.random() < 0.05:
            words.insert(rng.randrange(len(words) + 1), rng.choice(VALUES))
        return words

    def value(self, rng: random.Random, action: argparse.Action, option: str) -> str:
        """For an option."""
        allowed = [str(word) for word in action.choices or () if word not in SLOW]
        if allowed and rng.random() < 0.9:
            return rng.choice(allowed)
        if option in USUAL and rng.random() < 0.9:
            return rng.choice(USUAL[option])
        return rng.choice([value for value in VALUES if value not in SLOW])
