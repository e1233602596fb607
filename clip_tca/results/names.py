"""The words of records and of the command line: settings, protocols, formats; and the version of the record.

Importing them needs no torch.
"""

from __future__ import annotations

PLAIN = "plain CLIP"
"""The model as it is, in tables of cost."""

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
