"""Files that people write (prompts, class names, recipes), and the JSON records that we write."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from clip_tca.core.resources import resource
from tests.robustness.fuzzing.damage import damaged, damaged_document, damaged_text
from tests.robustness.fuzzing.target import Target, Unclear, command


@st.composite
def text_files(draw: DrawFn, contents: list[str]) -> bytes:
    """Damaged text as a file; at times its bytes are damaged too."""
    data = draw(damaged_text(contents)).encode("utf-8", "surrogatepass")
    return draw(damaged([data])) if draw(st.integers(0, 3)) == 3 else data


class Prompts(Target):
    """Files of templates and of class names."""

    name = "prompt files"

    @cached_property
    def seeds(self) -> list[str]:
        return [resource(f"prompts/{name}.txt").read_text() for name in ("watt", "single", "classes/officehome")]

    def cases(self) -> SearchStrategy[Any]:
        return st.tuples(text_files(self.seeds), st.sampled_from(("templates", "classes", "names")))

    def run(self, case: Any, folder: Path) -> bool | None:
        """Read it as either."""
        from clip_tca.datasets.prompts import class_names, load_prompts, read_classes

        data, use = case
        path = folder / "case.txt"
        path.write_bytes(data)
        if use == "templates":
            prompts = load_prompts(str(path), ["dog", "{}", "house"])
            prompts.fingerprint()
            if len(prompts.texts()) != 3 * len(prompts.templates):
                raise Unclear("prompts are missing")
        elif use == "classes":
            read_classes(path)
        else:
            class_names(["dog", "Alarm_Clock", "<script>"], str(path))
        return None


class Recipes(Target):
    """TOML recipes."""

    name = "recipes"

    @cached_property
    def seeds(self) -> list[str]:
        """Ours, and one with every kind of value."""
        mixed = (
            'title = "x"\n[all]\nset = {steps = 5, lr = 0.1}\nno-cache = true\n[[run]]\ndataset = "synthetic"\nk = 3\n'
        )
        return [mixed, *[resource(f"eval/recipes/{name}.toml").read_text() for name in ("clip", "batch_size")]]

    def cases(self) -> SearchStrategy[Any]:
        return text_files(self.seeds)

    def run(self, case: bytes, folder: Path) -> bool | None:
        """To command lines, and these to options (running them would take hours)."""
        from clip_tca.cli import parser
        from clip_tca.cli.recipe import arguments, find

        path = folder / "case.toml"
        path.write_bytes(case)
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
    """JSON of ``clip-tca eval``, through every command that reads it."""

    name, share = "records", 4.0

    @cached_property
    def seeds(self) -> list[dict[str, Any]]:
        """With examples and an oracle, with shuffles, with forgetting, and two of a recipe."""
        import clip_tca

        domains = ["clean", "skewed"]
        methods = ["zero-shot", "linear-tca", "conditional-tca", "linear-tca:reference"]
        examples = clip_tca.evaluate("synthetic", methods=methods, examples=2, domains=domains)
        shuffled = clip_tca.evaluate(
            "synthetic", methods=["zero-shot", "t3a+tca"], seeds=2, setting="online", domains=["clean"]
        )
        forgetting = clip_tca.evaluate(
            "synthetic", methods=["zero-shot", "linear-tca"], forgetting="clean", domains=domains
        )
        records = (examples, shuffled, forgetting, {"records": [examples, shuffled]})
        return [json.loads(json.dumps(record)) for record in records]

    def cases(self) -> SearchStrategy[Any]:
        table = st.sampled_from(("table", "json", "csv", "markdown", "latex")).map(lambda kind: ["--format", kind])
        compare = st.tuples(st.just("compare"), table)
        others = st.tuples(st.sampled_from(("report", "explain")), st.just([]))
        return st.tuples(damaged_document(self.seeds), compare | others)

    def run(self, case: Any, folder: Path) -> bool | None:
        """Compare, report or explain it."""
        data, (name, options) = case
        (folder / "case.json").write_bytes(data)
        if name == "report":
            options = ["-o", "page.html"]
        done = command([name, "case.json", *options], self.names)
        if done and name == "report":
            page = (folder / "page.html").read_text(encoding="utf-8")
            if "<script>" in page.split("<main")[1].split("</main>")[0]:
                raise Unclear("a script tag from the record is in the page")
        return done
