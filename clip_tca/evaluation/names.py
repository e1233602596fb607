"""The words of the command line: methods, settings, protocols, formats; and the version of the record.

Importing them needs no torch.
"""

from __future__ import annotations

from clip_tca.methods import NAMES as BASES

PLUS = "+tca"
"""What stands behind a base method's name for LinearTCA on top of it."""

ADAPTERS = (
    "zero-shot",
    "linear-tca",
    "linear-tca:paper",
    "linear-tca:reference",
    "mlp2-tca",
    "mlp3-tca",
    "conditional-tca",
)
METHODS = (*ADAPTERS, *[name + plus for name in BASES for plus in ("", PLUS)])
EVERY = "all"
"""What stands for every method that uses no labels."""

ALLOWED = (
    f"{', '.join([*ADAPTERS, *BASES])}; NAME{PLUS} puts LinearTCA on top of {BASES[0]} and those after it; "
    f"{EVERY} is every method but the oracle"
)
DEFAULT_METHODS = ("zero-shot", "linear-tca", "mlp2-tca", "mlp3-tca", "conditional-tca")

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
