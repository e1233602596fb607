"""The tables beside accuracy: what methods cost (``--profile``) and what they forget (``--forgetting``)."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from clip_tca.results.names import PLAIN
from clip_tca.results.table import Table


def extra_tables(record: dict[str, Any]) -> list[Table]:
    """What the record holds of them."""
    tables = []
    if PLAIN in record["cost"]["methods"]:
        tables.append(profile_table(record))
    if "forgetting" in record:
        tables.append(forgetting_table(record))
    return tables


def profile_table(record: dict[str, Any]) -> Table:
    """Seconds for each image and memory against plain CLIP, with the share of TCA.

    An adapter's cost comes on top of plain CLIP, which has to embed the images first; a base method embeds them itself.
    """
    cost = record["cost"]["methods"]
    plain = cost[PLAIN]
    base = plain["base_seconds"] / plain["images"]
    lines = []
    for name, spent in cost.items():
        own = (spent["adapting_seconds"] + spent["predicting_seconds"]) / spent["images"]
        whole = own + spent["base_seconds"] / spent["images"] + (0 if spent["embeds"] else base)
        memory = spent["base_memory_bytes"]
        lines.append(
            [
                name,
                f"{1000 * whole:.2f}",
                f"{whole / base:.2f}",
                f"{1000 * own:.3f}" if name != PLAIN else "",
                "" if memory is None else f"{memory / 1e6:.0f}",
            ]
        )
    head = ["method", "ms/image", "of plain CLIP", "adapter, ms/image", "extra memory, MB"]
    where = f"{record['model']['model']}, {record['model']['device']}, batch {record['batch_size']}"
    notes = ["Extra memory is what a method needed beyond what was there: on a CPU by samples of resident memory."]
    return Table([f"Cost ({where}); decoding included."], head, [("cost", lines)], notes)


def forgetting_table(record: dict[str, Any]) -> Table:
    """Accuracy on the reference domain after adapting to each other one, and how much that is off zero-shot."""
    rows = record["forgetting"]
    reference, without = rows[0]["domain"], rows[0]["accuracy_without_state"]
    domains = list(dict.fromkeys(row["adapted_to"] for row in rows))
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        found = {row["adapted_to"]: row["accuracy_with_state"] for row in rows if row["method"] == method}
        mean = fmean(found.values())
        lines.append([method, *[f"{found[domain]:.2f}" for domain in domains], f"{mean:.2f}", f"{mean - without:+.2f}"])
    title = (
        f"Forgetting: accuracy (%) on {reference} with the state adapted to another domain; without it {without:.2f}."
    )
    head = ["method", *[f"after {domain}" for domain in domains], "average", "change"]
    return Table([title], head, [("forgetting", lines)])
