"""The tables beside accuracy: what methods cost (``--profile``) and what they forget (``--forgetting``)."""

from __future__ import annotations

from statistics import fmean

from clip_tca.results.schema import PLAIN_CLIP, EvaluationRecord, ForgettingRow
from clip_tca.results.table import Table


def side_tables(record: EvaluationRecord) -> list[Table]:
    """Those that the record has figures for."""
    tables = [cost_table(record)] if PLAIN_CLIP in record["cost"]["methods"] else []
    return [*tables, forgetting_table(record["forgetting"])] if "forgetting" in record else tables


def cost_table(record: EvaluationRecord) -> Table:
    """Milliseconds per image and memory of each method against plain CLIP, with the share of TCA.

    An adapter's cost comes on top of plain CLIP, which has to embed the images first; a base method embeds them itself.
    """
    costs, model = record["cost"]["methods"], record["model"]
    plain = costs[PLAIN_CLIP]["base_seconds"] / costs[PLAIN_CLIP]["images"]
    lines = []
    for name, cost in costs.items():
        adapter = (cost["adapting_seconds"] + cost["predicting_seconds"]) / cost["images"]
        total = adapter + cost["base_seconds"] / cost["images"] + (0 if cost["embeds"] else plain)
        relative = f"{total / plain:.2f}" if plain else ""
        own = f"{1000 * adapter:.3f}" if name != PLAIN_CLIP else ""
        memory = cost["base_memory_bytes"]
        lines.append([name, f"{1000 * total:.2f}", relative, own, "" if memory is None else f"{memory / 1e6:.0f}"])
    head = ["method", "ms/image", "of plain CLIP", "adapter, ms/image", "extra memory, MB"]
    conditions = [*([model["model"], model["device"]] if model else []), f"batch {record['batch_size']}"]
    notes = ["Extra memory is the peak beyond what was allocated before; on a CPU it is sampled from resident memory."]
    return Table([f"Cost ({', '.join(conditions)}); decoding included."], head, [("cost", lines)], notes)


def forgetting_table(rows: list[ForgettingRow]) -> Table:
    """Accuracy on the source-like domain after adapting to each other one, and its difference from zero-shot."""
    reference, without = rows[0]["domain"], rows[0]["accuracy_without_state"]
    domains = list(dict.fromkeys(row["adapted_to"] for row in rows))
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        accuracy = {row["adapted_to"]: row["accuracy_with_state"] for row in rows if row["method"] == method}
        mean = fmean(accuracy.values())
        cells = [f"{accuracy[domain]:.2f}" for domain in domains]
        lines.append([method, *cells, f"{mean:.2f}", f"{mean - without:+.2f}"])
    title = (
        f"Forgetting: accuracy (%) on {reference} with the state adapted to another domain; without it {without:.2f}."
    )
    head = ["method", *[f"after {domain}" for domain in domains], "average", "change"]
    return Table([title], head, [("forgetting", lines)])
