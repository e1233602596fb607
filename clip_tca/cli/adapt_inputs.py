"""What ``clip-tca adapt`` reads: embeddings, the classifier, and the adapter, new or saved."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from clip_tca.adapters.registry import DEFAULT
from clip_tca.cli import options as shared
from clip_tca.core.remote import locate

if TYPE_CHECKING:
    import torch

    from clip_tca.adapters.base import Adapter
    from clip_tca.bulk.class_texts import GivenClassifier
    from clip_tca.bulk.shards import ShardedEmbeddings


def open_source(options: argparse.Namespace) -> ShardedEmbeddings:
    """The embeddings to read."""
    from clip_tca.bulk.shards import ShardedEmbeddings, open_embeddings

    if options.hub_id is not None:
        from clip_tca.bulk.hub_stream import open_hub

        return open_hub(options.hub_id, options.revision, options.split, options.column)
    if options.embeddings == "-":
        from clip_tca.datasets.formats.stream import open_stream

        return ShardedEmbeddings([open_stream(options.column)], single=True)
    return open_embeddings(options.embeddings, options.column)


def read_classifier(options: argparse.Namespace, device: torch.device) -> GivenClassifier:
    """The classifier: a head, or zero-shot from text embeddings or class names."""
    from clip_tca.bulk import class_texts

    if options.head is not None:
        from clip_tca.bulk.head_file import read_head

        for name in ("text_column", "scale", "model", "pretrained"):
            if getattr(options, name) is not None:
                raise ValueError(f"head: {options.head} is the whole classifier; leave out --{name.replace('_', '-')}")
        return read_head(locate(options.head), str(device))
    path = locate(options.text)
    if options.model is None:
        return class_texts.read_texts(path, options.text_column, options.scale, str(device))
    from clip_tca.encoding.registry import make_encoder
    from clip_tca.encoding.store import Store

    store = Store()
    encoder = make_encoder(options.model, options.pretrained, str(device), "auto", store, options.trust_pickle)
    return class_texts.encode_texts(path, options.prompts, encoder, store, options.scale)


def adapter(options: argparse.Namespace, given: GivenClassifier, device: torch.device) -> Adapter:
    """A new adapter, or a saved one."""
    from clip_tca.adapters.state import load_adapter
    from clip_tca.evaluation.method_spec import method_specs

    chosen_options = shared.method_options(options)
    if options.load_state is not None:
        if named := [*(["method"] if options.method else []), *chosen_options]:
            raise ValueError(f"load_state: {options.load_state} has its own options; leave out {', '.join(named)}")
        chosen: Adapter | None = load_adapter(locate(options.load_state), given.classifier, device)
    else:
        chosen = method_specs([options.method or DEFAULT], chosen_options)[0].adapter(given.classifier)
    if chosen is None or chosen.uses_labels:
        raise ValueError("shares: 'oracle' uses true labels and is for evaluation only; use clip-tca eval")
    return chosen
