"""What people write: prompts, class names, recipes; and the JSON records that we write."""

from __future__ import annotations

import json
import random
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.fuzzing.mutations import as_file, damaged, damaged_json, damaged_text
from benchmarks.fuzzing.target import Target, Unclear


class Prompts(Target):
    """Files of templates and of class names."""

    name = "prompt files"

    @cached_property
    def seeds(self) -> list[str]:
        """Ours."""
        from clip_tca.core.resources import resource

        return [resource(f"prompts/{name}.txt").read_text() for name in ("watt", "single", "classes/officehome")]

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """Read as either."""
        from clip_tca.datasets.prompts import class_names, load_prompts, read_classes

        path = folder / "case.txt"
        text = damaged_text(rng.choice(self.seeds), rng)
        data = text.encode("utf-8", "surrogatepass")
        path.write_bytes(damaged(data, rng, [data]) if rng.random() < 0.3 else data)
        kind = rng.randrange(3)
        if kind == 0:
            chosen = load_prompts(str(path), ["dog", "{}", "house"])
            chosen.fingerprint()
            if len(chosen.texts()) != 3 * len(chosen.templates):
                raise Unclear("prompts are missing")
        elif kind == 1:
            read_classes(path)
        else:
            class_names(["dog", "Alarm_Clock", "<script>"], str(path))
        return None


class Recipes(Target):
    """TOML."""

    name = "recipes"

    @cached_property
    def seeds(self) -> list[str]:
        """Ours, and one with every kind of value."""
        from clip_tca.core.resources import resource

        mixed = (
            'title = "x"\n[all]\nset = {steps = 5, lr = 0.1}\nno-cache = true\n[[run]]\ndataset = "synthetic"\nk = 3\n'
        )
        return [mixed, *[resource(f"eval/recipes/{name}.toml").read_text() for name in ("clip", "batch_size")]]

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """To command lines, and these to options."""
        from clip_tca.cli import parser
        from clip_tca.cli.recipe import arguments, find

        path = folder / "case.toml"
        data = damaged_text(rng.choice(self.seeds), rng).encode("utf-8", "surrogatepass")
        path.write_bytes(damaged(data, rng, [data]) if rng.random() < 0.2 else data)
        command = parser()._subparsers._group_actions[0].choices["eval"]  # type: ignore[union-attr,index,call-overload]
        for line in arguments(find(str(path)), command, []):
            try:
                command.parse_args(line)
            except SystemExit as end:
                if end.code != 2:
                    raise Unclear(f"exit {end.code} for {line}") from None
                return False
        return None


class Records(Target):
    """JSON of ``eval``, through all that reads it."""

    name, share = "records", 4.0

    @cached_property
    def seeds(self) -> list[dict[str, Any]]:
        """Small ones: with examples and an oracle, with shuffles, and of a recipe."""
        import clip_tca

        methods = ["zero-shot", "linear-tca", "conditional-tca", "linear-tca:reference"]
        one = clip_tca.evaluate("synthetic", methods=methods, examples=2, domains=["clean", "skewed"])
        two = clip_tca.evaluate(
            "synthetic", methods=["zero-shot", "t3a+tca"], seeds=2, setting="online", domains=["clean"]
        )
        three = clip_tca.evaluate(
            "synthetic", methods=["zero-shot", "linear-tca"], forgetting="clean", domains=["clean", "skewed"]
        )
        return [json.loads(json.dumps(record)) for record in (one, two, three, {"records": [one, two]})]

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """Compare, report or explain."""
        from clip_tca.cli import explain
        from clip_tca.report.page import page
        from clip_tca.report.sources import read
        from clip_tca.results.record import read_all
        from clip_tca.results.rendering import RENDERERS, printable
        from clip_tca.results.table import comparison

        path = folder / "case.json"
        path.write_bytes(as_file(damaged_json(rng.choice(self.seeds), rng), rng))
        kind = rng.randrange(3)
        if kind == 0:
            for shown in comparison(read_all([path])):
                RENDERERS[rng.choice(sorted(RENDERERS))](printable(shown))
        elif kind == 1:
            if "<script>" in page(read([path])).split("<main")[1].split("</main>")[0]:
                raise Unclear("a script tag from the record is in the page")
        else:
            from argparse import Namespace

            explain._record(path, Namespace(class_names=None))
        return None
