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


def read_adapter(options: argparse.Namespace, device: torch.device) -> tuple[Adapter, GivenClassifier]:
    """The adapter, new or saved, and its classifier, with the names of --class-names."""
    chosen, given = _new(options, device) if options.load_state is None else _saved(options, device)
    if chosen is None or chosen.uses_labels:
        raise ValueError("shares: 'oracle' uses true labels and is for evaluation only; use clip-tca eval")
    return chosen, given


def _new(options: argparse.Namespace, device: torch.device) -> tuple[Adapter | None, GivenClassifier]:
    from clip_tca.evaluation.method_spec import method_specs

    given = _named(read_classifier(options, device), options)
    spec = method_specs([options.method or DEFAULT], shared.method_options(options))[0]
    return spec.adapter(given.classifier), given


def _saved(options: argparse.Namespace, device: torch.device) -> tuple[Adapter, GivenClassifier]:
    from clip_tca.adapters.state import load
    from clip_tca.bulk.class_texts import GivenClassifier
    from clip_tca.core.files import sha256

    for name in ("text", "head", "text_column", "scale", "model", "pretrained"):
        if getattr(options, name) is not None:
            raise ValueError(f"--load-state has its own classifier; leave out --{name.replace('_', '-')}")
    if named := [*(["method"] if options.method else []), *shared.method_options(options)]:
        raise ValueError(f"load_state: {options.load_state} has its own options; leave out {', '.join(named)}")
    path = locate(options.load_state)
    chosen = load(path, device)
    g = chosen.classifier
    about = {"file": path.name, "sha256": sha256(path), "classes": g.n_classes}
    given = GivenClassifier(g, None if g.classes is None else list(g.classes), about, kind="state")
    return chosen, _named(given, options)


def _named(given: GivenClassifier, options: argparse.Namespace) -> GivenClassifier:
    return given if options.class_names is None else given.named(locate(options.class_names))
