"""The words of the command line: methods, settings, protocols, formats; and the version of the record.

Importing them needs no torch.
"""

from __future__ import annotations

METHODS = (
    "zero-shot",
    "linear-tca",
    "linear-tca:paper",
    "linear-tca:reference",
    "mlp2-tca",
    "mlp3-tca",
    "conditional-tca",
)
DEFAULT_METHODS = ("zero-shot", "linear-tca", "mlp2-tca", "mlp3-tca", "conditional-tca")

SETTINGS = ("transductive", "online", "episodic")

PROTOCOLS = {
    "full": "all images",
    "watt": "all images, last batch unseen",
    "kept": "images seen",
}
"""Protocols, and what each divides the number of correct predictions by."""

FORMATS = ("table", "json", "csv", "markdown", "latex")

SCHEMA = 1
"""Version of the JSON record."""
