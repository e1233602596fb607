"""The fingerprint of a run of ``adapt``: two runs with the same one write the same bytes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from clip_tca.core.version import __version__

if TYPE_CHECKING:
    from clip_tca.bulk.job import Job


def run_fingerprint(job: Job) -> str | None:
    """Of inputs and options; None if the run can't be recognised: a stream, or rows that are learned in order."""
    source, adapter = job.layout.source, job.adapter
    stamps = [shard.stamp() for shard in source.shards]
    if job.batch is not None or None in stamps:
        return None
    content = [
        __version__,
        stamps,
        [[shard.path.name, shard.rows] for shard in source.shards],
        [source.dim, str(source.dtype), job.drop_bad],
        type(adapter).__name__,
        adapter.options(),
        adapter.classifier.fingerprint(),
        job.loaded,
        {kind: str(dtype) for kind, dtype in job.layout.dtypes.items()},
        None if job.labels is None else hashlib.sha256(job.labels.tobytes()).hexdigest(),
        job.device.type,
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
