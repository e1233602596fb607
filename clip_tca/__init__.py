"""clip-tca: adapt CLIP embeddings at test time, without labels, without source data, without touching the model.

>>> from clip_tca import LinearTCA, ZeroShotClassifier
>>> g = ZeroShotClassifier(text, scale=100.0)      # text embeddings of the class prompts
>>> adapted = LinearTCA(g).fit(z).predict(z)       # z: image embeddings of the test set

The names below are imported when first used, so that ``clip-tca --help`` need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clip_tca.core.version import __version__

if TYPE_CHECKING:
    from clip_tca.adapters.conditional import ConditionalTCA
    from clip_tca.adapters.label_free import label_free_score
    from clip_tca.adapters.linear import LinearTCA
    from clip_tca.adapters.mlp import MLPTCA
    from clip_tca.adapters.state import from_pretrained
    from clip_tca.bulk.one_shard import adapt_shard
    from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
    from clip_tca.core.errors import ClipTcaError, CorruptFileError, OfflineError
    from clip_tca.data.embeddings import load_embeddings
    from clip_tca.evaluation.runner import evaluate
    from clip_tca.labelling.change import estimate_change, sample_changed
    from clip_tca.labelling.label import encode, label
    from clip_tca.methods.base import Method, Task
    from clip_tca.methods.registry import register
    from clip_tca.results.rendering import render

_HOMES = {
    "ClipTcaError": "clip_tca.core.errors",
    "ConditionalTCA": "clip_tca.adapters.conditional",
    "CorruptFileError": "clip_tca.core.errors",
    "LinearClassifier": "clip_tca.classifier",
    "LinearTCA": "clip_tca.adapters.linear",
    "MLPTCA": "clip_tca.adapters.mlp",
    "Method": "clip_tca.methods.base",
    "OfflineError": "clip_tca.core.errors",
    "Task": "clip_tca.methods.base",
    "ZeroShotClassifier": "clip_tca.classifier",
    "adapt_shard": "clip_tca.bulk.one_shard",
    "encode": "clip_tca.labelling.label",
    "estimate_change": "clip_tca.labelling.change",
    "evaluate": "clip_tca.evaluation.runner",
    "from_pretrained": "clip_tca.adapters.state",
    "label": "clip_tca.labelling.label",
    "label_free_score": "clip_tca.adapters.label_free",
    "load_embeddings": "clip_tca.data.embeddings",
    "register": "clip_tca.methods.registry",
    "render": "clip_tca.results.rendering",
    "sample_changed": "clip_tca.labelling.change",
}
__all__ = [
    "MLPTCA", "ClipTcaError", "ConditionalTCA", "CorruptFileError", "LinearClassifier", "LinearTCA", "Method",
    "OfflineError", "Task", "ZeroShotClassifier", "__version__", "adapt_shard", "encode", "estimate_change", "evaluate",
    "from_pretrained", "label", "label_free_score", "load_embeddings", "register", "render",
    "sample_changed",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'clip_tca' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
