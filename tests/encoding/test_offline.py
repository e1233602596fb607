"""Models of the hub are found in its cache when the hub does not answer, whichever library loads them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from safetensors.torch import save_file

from tests.hub import Hub
from tests.small_networks import timm_network
from tests.tiny_clip import FOLDER
from tests.tiny_transformers import tiny

CODE = """
import json, sys, torch
from clip_tca.encoding.base import make_encoder
rows = {}
for name in ("hf-hub:me/clip", "timm:test_resnet.r160_in1k", "transformers:me/siglip"):
    encoder = make_encoder(name, device="cpu")
    rows[name] = [encoder.identity.weights, encoder.identity.configuration]
    if not name.startswith("timm"):
        rows[name].append(encoder.encode_texts(["a dog"]).sum().item())
tagged = make_encoder("timm:test_resnet", "r160_in1k", "cpu")
assert [tagged.identity.weights, tagged.head.classes[0]] == [rows["timm:test_resnet.r160_in1k"][0], "tench"]
print(json.dumps(rows))
"""


def test_the_cache_is_enough(tmp_path):
    pytest.importorskip("transformers")
    shutil.copytree(FOLDER, tmp_path / "clip")
    (tmp_path / "clip" / "model.safetensors").rename(tmp_path / "clip" / "open_clip_model.safetensors")
    (tmp_path / "timm").mkdir()
    save_file(timm_network("test_resnet", 1000).state_dict(), tmp_path / "timm" / "model.safetensors")
    tiny("siglip", tmp_path / "siglip")

    def run(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False
        )

    with Hub() as hub:
        hub.add_model("me/clip", tmp_path / "clip")
        hub.add_model("timm/test_resnet.r160_in1k", tmp_path / "timm")
        hub.add_model("me/siglip", tmp_path / "siglip")
        environment = hub.environment(tmp_path / "home")
        online = run(environment)
        assert online.returncode == 0, online.stderr
    offline = run(environment)
    assert offline.returncode == 0, offline.stderr
    assert json.loads(offline.stdout) == json.loads(online.stdout)
