"""Unknown classes: their images stay in the stream, and their prompts (or rows of a head) are removed.

Labels are numbered anew, the known classes first: a label of at least the number of known classes is an unknown one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.datasets.embedding_set import EmbeddingSet
from clip_tca.encoding.store import checksum
from clip_tca.evaluation.inputs import Embedded
from clip_tca.results.schema import DataInfo, InputRecord, PromptInfo


def hidden_classes(wanted: int | str | Sequence[str], raw: list[str], readable: list[str]) -> list[int]:
    """Labels of the classes to hide: by names as the data set or the prompts have them, or that many, drawn once.

    Raises:
        ValueError: If a name is no class, or fewer than 2 classes would stay known.
    """
    if isinstance(wanted, str) and wanted.strip().isdecimal():
        wanted = int(wanted)
    if isinstance(wanted, int):
        count = wanted
        hidden = np.random.default_rng(0).permutation(len(raw))[:count].tolist()
    else:
        names = [name.strip() for name in (wanted.split(",") if isinstance(wanted, str) else wanted)]
        for name in names:
            if name not in raw and name not in readable:
                some = f"{', '.join(raw[:8])}{', …' if len(raw) > 8 else ''}"
                raise ValueError(f"unknown_classes: {name!r} is not a class of this data set ({some})")
        hidden = [raw.index(name) if name in raw else readable.index(name) for name in names]
        count = len(set(hidden))
    if not 1 <= count <= len(raw) - 2:
        raise ValueError(
            f"unknown_classes: {count} of {len(raw)} classes; at least 1 is needed, and at least 2 must stay known"
        )
    return sorted(set(hidden))


def hide(embedded: Embedded, wanted: int | str | Sequence[str]) -> Embedded:
    """The data set with a classifier that does not know the classes ``wanted``, and a record that says so."""
    data, info = embedded.data, embedded.about["data"]
    raw = info["classes"]
    readable = data.classes or raw
    hidden = hidden_classes(wanted, raw, readable)
    known = [label for label in range(len(raw)) if label not in hidden]
    places = torch.empty(len(raw), dtype=torch.long)
    places[torch.tensor([*known, *hidden])] = torch.arange(len(raw))
    prompts = embedded.prompts and replace(embedded.prompts, classes=tuple(embedded.prompts.classes[i] for i in known))
    text = None if data.text is None else data.text[..., known, :]
    reduced = EmbeddingSet(
        text,
        data.scale,
        {name: (z, places[labels]) for name, (z, labels) in data.domains.items()},
        [readable[i] for i in known],
        head=data.head and _rows(data.head, known),
        bias=data.bias,
    )
    about: InputRecord = {**embedded.about, "data": _data_info(info, known, hidden)}
    if about["prompts"] is not None and text is not None:
        about["prompts"] = _prompt_info(about["prompts"], known, text, prompts.fingerprint() if prompts else None)
    return replace(embedded, data=reduced, about=about, prompts=prompts)


def _rows(head: LinearClassifier, known: list[int]) -> LinearClassifier:
    names = None if head.classes is None else [head.classes[i] for i in known]
    return LinearClassifier(head.weight[known], head.bias[known], classes=names, normalize=head.normalize)


def _data_info(info: DataInfo, known: list[int], hidden: list[int]) -> DataInfo:
    changed: DataInfo = {
        **info,
        "classes": [info["classes"][i] for i in known],
        "unknown_classes": [info["classes"][i] for i in hidden],
        "domains": {name: domain.copy() for name, domain in info["domains"].items()},
    }
    for domain in changed["domains"].values():
        if "per_class" in domain:
            domain["per_class"] = [domain["per_class"][i] for i in known]
    return changed


def _prompt_info(told: PromptInfo, known: list[int], text: Tensor, fingerprint: str | None) -> PromptInfo:
    """What the record says of the prompts that are left; of stored embeddings the texts themselves are not known."""
    changed: PromptInfo = {**told, "embeddings_sha256": checksum(text.float())}
    if "classes" in told:
        changed["classes"] = [told["classes"][i] for i in known]
    changed.pop("texts_sha256", None)
    return changed if fingerprint is None else {**changed, "texts_sha256": fingerprint}
