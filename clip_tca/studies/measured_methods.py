"""Names of the methods that a study can measure: those that adapt and use no labels."""

from __future__ import annotations

from clip_tca.evaluation.method_spec import MethodSpec
from clip_tca.methods.registry import METHODS, ON_EMBEDDINGS

ADAPTING = tuple(name for name in METHODS if name != "zero-shot" and not MethodSpec(name).uses_labels)
"""All such methods."""

ADAPTING_EMBEDDINGS = tuple(name for name in ADAPTING if name in ON_EMBEDDINGS)
"""Adapters only, without base methods."""

STORED = ("linear-tca", "conditional-tca", "t3a", "tda", "adanpc", "plc")
"""The default where methods are compared: fast, and they need stored embeddings only."""
