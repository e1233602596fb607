"""The methods that a study may be told to measure: those that adapt, and of these none that uses labels."""

from __future__ import annotations

from clip_tca.evaluation.method_spec import MethodSpec
from clip_tca.methods.registry import METHODS, ON_EMBEDDINGS

ADAPTING = tuple(name for name in METHODS if name != "zero-shot" and not MethodSpec(name).uses_labels)
"""All of them."""

ADAPTING_EMBEDDINGS = tuple(name for name in ADAPTING if name in ON_EMBEDDINGS)
"""Adapters alone, without base methods."""

STORED = ("linear-tca", "conditional-tca", "t3a", "tda", "adanpc", "plc")
"""Those of the usual choice where methods are compared: quick, and stored embeddings are all they need."""
