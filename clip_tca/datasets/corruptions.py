"""The corruptions of Hendrycks and Dietterich (ICLR 2019), by their names and severities.

A corruption at a severity is a domain, written ``gaussian_noise:5``.
"""

from __future__ import annotations

COMMON = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The 15 of every published table, in its order."""

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four that the authors keep for validation."""

CORRUPTIONS = (*COMMON, *EXTRA)

SEVERITIES = (1, 2, 3, 4, 5)

USUAL_SEVERITY = 5
"""The severity of the published tables."""


def corrupted_domain(corruption: str, severity: int) -> str:
    """The name of a corruption at a severity as a domain."""
    return f"{corruption}:{severity}"
