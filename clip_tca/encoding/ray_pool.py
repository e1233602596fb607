"""Encoding on a cluster: a pool of Ray actors, each with the model and, where there are any, with a GPU.

The driver sends the loaded model once, and then shards: lists of pictures, which every machine must see under the same
paths. The embeddings come back to the driver, which keeps them in the store as if it had encoded them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from clip_tca.core.checks import one_line
from clip_tca.core.machine import choose_device, connect
from clip_tca.data.pictures import Domain
from clip_tca.encoding.base import Encoder
from clip_tca.encoding.embedder import Encoded, encode_batches

CPUS = 4
"""Cores of an actor without a GPU: a model for every core would fill the memory."""

RESTARTS = 3
"""How often a shard is encoded again when its actor dies."""


class ShardEncoder:
    """The actor: encodes one part of a domain at a time."""

    def __init__(self, device: str, workers: int | None) -> None:
        """Wait for the model: it comes with the first part, also after a restart."""
        import ray

        self.device, self.workers = choose_device(device), workers
        fetched: Callable[[Any], Any] = lru_cache(2)(ray.get)  # the model and the domain; not anew for every part
        self._fetched = fetched

    def encode(self, references: tuple[Any, Any], part: list[int]) -> tuple[list[int], np.ndarray, dict[int, str]]:
        """The images in ``part``, encoded; the ``references`` are to the loaded encoder and to the domain."""
        encoder: Encoder = self._fetched(references[0])
        domain: Domain = self._fetched(references[1])
        batches = list(encode_batches(encoder.to(self.device), domain, part, self.workers))
        reasons = {i: reason for _, _, bad in batches for i, reason in bad.items()}
        return part, torch.cat([z for _, z, _ in batches]).numpy(), reasons


class RayPool:
    """Encodes parts of domains by actors on the cluster at ``address``; empty starts Ray on this machine.

    Ray and the actors start with the first part, and end with the ``with`` block. ``gpus`` False leaves GPUs alone.
    ``workers`` are processes that decode for one actor, or its threads on a CPU; None shares the cores.
    """

    def __init__(self, address: str, encoder: Encoder, workers: int | None = None, gpus: bool = True) -> None:
        """Keep the options; nothing is started yet."""
        self.address, self.encoder, self.workers, self.gpus = address, encoder, workers, gpus
        self._open = ExitStack()
        self._actors: list[Any] = []
        self._model: Any = None

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *error: object) -> None:
        self._actors, self._model = [], None
        self._open.close()

    def __call__(self, domain: Domain, parts: list[list[int]]) -> Iterator[Encoded]:
        """Embeddings of whole parts, in the order in which they are finished."""
        if not self._actors:
            self._start()
        import ray
        from ray.util import ActorPool

        references = self._model, ray.put(domain)
        pool = ActorPool(self._actors)
        encoded = pool.map_unordered(lambda actor, part: actor.encode.remote(references, part), parts)
        try:
            for indices, z, reasons in encoded:
                yield indices, torch.tensor(z), reasons
        except ray.exceptions.RayTaskError as error:  # what the encoder raised, without Ray's trace
            raise ValueError(one_line(error.cause)) from error
        except ray.exceptions.RayActorError as error:
            raise RuntimeError(
                f"ray: an actor died {RESTARTS + 1} times ({one_line(error)}); encode without --ray to see why"
            ) from error

    def _start(self) -> None:
        ray = self._open.enter_context(connect(self.address or None))
        there, free = ray.cluster_resources(), ray.available_resources()
        gpus, cores = int(there.get("GPU", 0)) if self.gpus else 0, int(there.get("CPU", 1))
        needs = {"num_gpus": 1, "num_cpus": 1} if gpus else {"num_gpus": 0, "num_cpus": min(CPUS, cores)}
        workers = min(8, cores // gpus) if gpus and self.workers is None else self.workers
        own = self.encoder.device
        try:
            self._model = ray.put(self.encoder.to(torch.device("cpu")))
        finally:
            self.encoder.to(own)
        actor = ray.remote(ShardEncoder).options(**needs, max_restarts=RESTARTS, max_task_retries=RESTARTS)
        count = int(free.get("GPU", 0)) if gpus else int(free.get("CPU", 0)) // CPUS  # as many as can start now
        self._actors = [actor.remote("cuda" if gpus else "cpu", workers) for _ in range(max(1, count))]
