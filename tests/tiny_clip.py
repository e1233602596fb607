"""A tiny CLIP in a folder, for tests that need some model and not a good one: a ViT, so with LayerNorm.

Its weights follow from their names. The bundled model, a convolutional tower with BatchNorm, is larger and slower.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import save_file

from tests.methods.small import EMBEDDING, TEXT, VIT, clip

FOLDER = Path(tempfile.mkdtemp(prefix="clip-tca-")) / "tiny"
atexit.register(shutil.rmtree, FOLDER.parent, ignore_errors=True)

MODEL = f"local-dir:{FOLDER}"
"""What ``--model`` takes."""

CONFIGURATION = {
    "model_cfg": {"embed_dim": EMBEDDING, "quick_gelu": True, "vision_cfg": VIT, "text_cfg": TEXT},
    "preprocess_cfg": {"size": VIT["image_size"], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
}

FOLDER.mkdir()
(FOLDER / "open_clip_config.json").write_text(json.dumps(CONFIGURATION), encoding="utf-8")
save_file(clip(VIT).state_dict(), FOLDER / "model.safetensors")
