"""Time and memory of each method, and what ``--profile`` and ``--forgetting`` measured."""

from __future__ import annotations

from dataclasses import replace

from clip_tca.report.html_tables import from_table, single
from clip_tca.report.markup import join, tag
from clip_tca.report.run import Run, Section
from clip_tca.results.schema import MethodCost
from clip_tca.results.side_tables import side_tables
from clip_tca.results.table import Table


def costs(run: Run) -> Section:
    """A line for each method, over all domains and shuffles."""
    cost = run.record["cost"]
    lines = [_line(run, name, spent) for name, spent in cost["methods"].items()]
    if not lines:
        return Section("Cost", None, "the record has none")
    head = ["method", "adapting, s", "predicting, s", "base method, s", "ms per image", "base memory, MB"]
    caption = "Seconds over all domains and shuffles; embeddings were there already, unless a base method made its own"
    notes = [f"Encoding: {cost['encoding_seconds']:.1f} s, {cost['encoded_images']:,} images new to the store."]
    for where, size in cost["peak_memory_bytes"].items():
        if size is not None:
            notes.append(f"Peak memory, {where}: {size / 1e6:,.0f} MB.")
    notes.append("Times vary from run to run; nothing else in the record does.")
    tables = [from_table(_with_labels(run, table)) for table in side_tables(run.record)]
    return Section("Cost", join(single(caption, head, lines), tag("p", " ".join(notes), class_="note"), *tables))


def _with_labels(run: Run, table: Table) -> Table:
    sections = [(name, [[run.method_label(line[0]), *line[1:]] for line in lines]) for name, lines in table.sections]
    return replace(table, sections=sections)


def _line(run: Run, name: str, spent: MethodCost) -> list[str]:
    adapting, predicting, base = spent["adapting_seconds"], spent["predicting_seconds"], spent["base_seconds"]
    memory = spent["base_memory_bytes"]
    return [
        run.method_label(name),
        f"{adapting:.2f}",
        f"{predicting:.2f}",
        f"{base:.2f}" if base else "",
        f"{1000 * (adapting + predicting + base) / spent['images']:.3f}",
        "" if memory is None else f"{memory / 1e6:,.0f}",
    ]
