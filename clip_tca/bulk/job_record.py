"""The record of ``clip-tca adapt``: what was read, how it was adapted, what was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clip_tca.core.provenance import commit, peak_memory, versions

if TYPE_CHECKING:
    from clip_tca.bulk.class_texts import GivenClassifier
    from clip_tca.bulk.job import Job
    from clip_tca.bulk.tally import Tally

SCHEMA = 1
LISTED = 100
"""Rows left out that are listed, of each shard."""


def describe(job: Job, tally: Tally, method: str, given: GivenClassifier) -> dict[str, Any]:
    """The record as a JSON object; everything that changes from run to run is in ``cost``."""
    source, adapter = job.layout.source, job.adapter
    left_out = {
        source.shards[number].path.name: {"rows": len(rows), "first": rows[:LISTED]}
        for number, rows in sorted(tally.bad.items())
    }
    counts = getattr(adapter, "pseudo_source_counts_", None)
    scored = None
    if job.labels is not None and tally.rows:
        scored = {
            "images": tally.rows,
            "correct": tally.right,
            "correct_zero_shot": tally.right_before,
            "accuracy": 100 * tally.right / tally.rows,
            "accuracy_zero_shot": 100 * tally.right_before / tally.rows,
        }
    return {
        "schema_version": SCHEMA,
        "command": "adapt",
        "input": {
            "shards": [{"name": shard.path.name, "rows": shard.rows} for shard in source.shards],
            "dimensions": source.dim,
            "dtype": str(source.dtype),
        },
        given.kind: given.about,
        "classes": given.classes,
        "method": {"name": method, "parameters": adapter.options()},
        "setting": "online" if job.batch else "loaded" if job.loaded else "transductive",
        "batch_size": job.batch,
        "rows": tally.rows,
        "left_out": left_out,
        "pseudo_source_counts": None if counts is None else counts.tolist(),
        "written": {kind: str(dtype) for kind, dtype in job.layout.dtypes.items()},
        "scored": scored,
        "versions": versions(),
        "commit": commit(),
        "cost": {
            "device": job.device.type,
            "fitting_seconds": tally.fitting_seconds,
            "adapting_seconds": tally.adapting_seconds,
            "peak_memory_bytes": peak_memory(job.device),
        },
    }
