"""An exported classifier predicts what the adapter predicts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from clip_tca import MLPTCA, ConditionalTCA, LinearClassifier, LinearTCA
from clip_tca.adapters.export import export

NAMES = ("ant", "bee", "cow", "dog")


@pytest.fixture(params=[LinearTCA, ConditionalTCA])
def by_text(request, shifted):
    """An adapter of prompts: rows are scaled to unit length."""
    return request.param(shifted.g.named(NAMES)).fit(shifted.z)


@pytest.fixture(params=[LinearTCA, ConditionalTCA])
def by_head(request, shifted):
    """An adapter of a head with a bias, for features as they come."""
    head = LinearClassifier(shifted.g.weight, torch.linspace(-3, 3, 4))
    return request.param(head).fit(1.5 * shifted.z + 0.1)


def tensors_of(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118 (not a dict)


def test_safetensors_are_those_of_a_linear_layer_for_unit_embeddings(by_text, shifted, tmp_path):
    export(by_text, tmp_path / "head.safetensors")
    tensors, metadata = tensors_of(tmp_path / "head.safetensors")
    assert metadata["normalize"] == "true"
    assert json.loads(metadata["classes"]) == list(NAMES)
    layer = torch.nn.Linear(24, 4)
    layer.load_state_dict(tensors)
    unit = torch.nn.functional.normalize(7 * shifted.z, dim=1)
    torch.testing.assert_close(layer(unit).detach(), by_text.logits(shifted.z), rtol=0, atol=1e-3)


def test_the_features_of_a_head_are_taken_as_they_come(by_head, shifted, tmp_path):
    export(by_head, tmp_path / "head.safetensors")
    tensors, metadata = tensors_of(tmp_path / "head.safetensors")
    assert metadata == {"normalize": "false"}
    z = 1.5 * shifted.z + 0.1
    logits = z @ tensors["weight"].T + tensors["bias"]
    torch.testing.assert_close(logits, by_head.logits(z), rtol=1e-4, atol=1e-3)


def test_onnx_scales_rows_itself_if_the_adapter_does(by_text, by_head, shifted, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    z = (1.5 * shifted.z + 0.1).numpy()
    for adapter, names in ((by_text, {"classes": json.dumps(NAMES)}), (by_head, {})):
        export(adapter, tmp_path / "head.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "head.onnx", providers=["CPUExecutionProvider"])
        logits, labels = session.run(None, {"embeddings": z})
        np.testing.assert_allclose(logits, adapter.logits(z), rtol=1e-4, atol=1e-3)
        assert np.array_equal(labels, adapter.predict(z))
        assert session.get_modelmeta().custom_metadata_map == names


def test_what_can_not_be_exported_is_said_and_nothing_is_written(by_text, shifted, tmp_path):
    with pytest.raises(ValueError, match=r"head\.pt; allowed are names that end with \.onnx or \.safetensors"):
        export(by_text, tmp_path / "head.pt")
    with pytest.raises(ValueError, match="MLPTCA is not linear"):
        MLPTCA(shifted.g, steps=1).fit(shifted.z).folded()
    assert not list(tmp_path.iterdir())
