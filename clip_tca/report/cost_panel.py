"""What it cost: seconds and memory of each method, and what ``--profile`` and ``--forgetting`` measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clip_tca.report.html_tables import from_plain, grid, without_empty
from clip_tca.report.markup import join, tag
from clip_tca.report.run import Run, Section
from clip_tca.results.side_tables import extra_tables
from clip_tca.results.table import Table


def costs(run: Run) -> Section:
    """A line for each method, over all domains and shuffles."""
    cost = run.record["cost"]
    lines = [_line(run, name, spent) for name, spent in cost.get("methods", {}).items()]
    if not lines:
        return Section("Cost", None, "the record has none")
    head = ["method", "adapting, s", "predicting, s", "base method, s", "ms per image", "base memory, MB"]
    caption = "Seconds over all domains and shuffles; embeddings were there already, unless a base method made its own"
    told = [f"Encoding: {cost['encoding_seconds']:.1f} s, {cost['encoded_images']:,} images new to the store."]
    for where, size in (cost.get("peak_memory_bytes") or {}).items():
        if size is not None:
            told.append(f"Peak memory, {where}: {size / 1e6:,.0f} MB.")
    told.append("Times vary from run to run; nothing else in the record does.")
    extra = [from_plain(_marked(run, shown)) for shown in extra_tables(run.record)]
    head, lines = without_empty(head, lines)
    return Section("Cost", join(grid(caption, head, [("", lines)]), tag("p", " ".join(told), class_="note"), *extra))


def _marked(run: Run, shown: Table) -> Table:
    sections = [(name, [[run.shown(line[0]), *line[1:]] for line in lines]) for name, lines in shown.sections]
    return replace(shown, sections=sections)


def _line(run: Run, name: str, spent: dict[str, Any]) -> list[str]:
    adapting, predicting, base = (spent[f"{part}_seconds"] for part in ("adapting", "predicting", "base"))
    memory = spent.get("base_memory_bytes")
    return [
        run.shown(name),
        f"{adapting:.2f}",
        f"{predicting:.2f}",
        f"{base:.2f}" if base else "",
        f"{1000 * (adapting + predicting + base) / spent['images']:.3f}" if spent["images"] else "",
        "" if memory is None else f"{memory / 1e6:,.0f}",
    ]
