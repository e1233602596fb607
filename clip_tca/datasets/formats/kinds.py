"""What can be written of embeddings; apart from the rest, so that the command line knows it without torch."""

from __future__ import annotations

from typing import Literal

Kind = Literal["embeddings", "labels", "scores"]
KINDS: tuple[Kind, ...] = ("embeddings", "labels", "scores")
"""Adapted embeddings, predicted classes, and the probability of each predicted class."""
