"""Encoding on a cluster: tasks of Ray that each encode a part of a domain, where there are any with a GPU.

The driver sends the loaded model once, and then parts: lists of pictures, which every machine must see under the same
paths. The embeddings come back to the driver, which keeps them in the store as if it had encoded them itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from clip_tca.core.machine import choose_device, connect, ray_map
from clip_tca.data.pictures import Domain
from clip_tca.encoding.base import Encoder
from clip_tca.encoding.embedder import Encoded, encode_batches

CPUS = 4  # cores of a task without a GPU: a model for every core would fill the memory


class RayPool:
    """Encodes parts of domains by tasks on the cluster at ``address``; empty starts Ray on this machine.

    Ray starts with the first part, and ends with the ``with`` block. ``gpus`` False leaves GPUs alone. ``workers`` are
    processes that decode for one task, or its threads on a CPU; None shares the cores.
    """

    def __init__(self, address: str, encoder: Encoder, workers: int | None = None, gpus: bool = True) -> None:
        self.address, self.encoder, self.workers, self.gpus = address, encoder, workers, gpus
        self._open = ExitStack()
        self._ray: Any = None
        self._model: Any = None

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *error: object) -> None:
        self._ray = self._model = None
        self._open.close()

    def __call__(self, domain: Domain, parts: list[list[int]]) -> Iterator[Encoded]:
        """Embeddings of whole parts, in order."""
        if self._ray is None:
            self._start()
        resources = self._ray.cluster_resources()
        gpus, cores = int(resources.get("GPU", 0)) if self.gpus else 0, int(resources.get("CPU", 1))
        workers = min(8, cores // gpus) if gpus and self.workers is None else self.workers
        references = self._model, self._ray.put(domain)  # in a tuple they are not fetched anew for every task
        arguments = references, "cuda" if gpus else "cpu", workers
        results = ray_map(encode_part, parts, *arguments, gpu=gpus > 0, cores=1 if gpus else min(CPUS, cores))
        for part, (z, reasons) in zip(parts, results, strict=True):
            yield part, torch.tensor(z), reasons

    def _start(self) -> None:
        self._ray = self._open.enter_context(connect(self.address or None))
        device = self.encoder.device
        try:
            self._model = self._ray.put(self.encoder.to(torch.device("cpu")))
        finally:
            self.encoder.to(device)


def encode_part(
    part: list[int], references: tuple[Any, Any], device: str, workers: int | None
) -> tuple[np.ndarray, dict[int, str]]:
    """Encode images in a worker process; the ``references`` are to the loaded encoder and to the domain."""
    encoder: Encoder = _fetched(references[0])
    domain: Domain = _fetched(references[1])
    batches = list(encode_batches(encoder.to(choose_device(device)), domain, part, workers))
    reasons = {i: reason for _, _, bad in batches for i, reason in bad.items()}
    return torch.cat([z for _, z, _ in batches]).numpy(), reasons


@lru_cache(2)  # the model and the domain: a worker process runs many tasks
def _fetched(reference: Any) -> Any:
    import ray

    return ray.get(reference)
