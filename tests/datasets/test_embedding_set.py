"""A data set of embeddings is read back from its file, and other files are refused in one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from clip_tca.datasets.embeddings import load_embeddings, read_class_texts, synthetic
from clip_tca.datasets.formats import open_shard
from clip_tca.studies.frame import run_study


@pytest.mark.parametrize("name", ["text.single", "text.watt", "text.mine"])
def test_what_is_saved_can_be_loaded_without_a_word(name, tmp_path):
    made, path = synthetic(0, classes=3, dim=8, images=10), tmp_path / "made.safetensors"
    made.save(path, name)
    data = load_embeddings(path)
    assert torch.equal(data.text, made.text)
    assert data.scale == made.scale
    for domain, (z, y) in made.domains.items():
        assert torch.equal(data.domains[domain][0], z)
        assert torch.equal(data.domains[domain][1], y)
    assert torch.equal(read_class_texts(path, name).rows, made.text)
    blocks = open_shard(path, "clean.embeddings").blocks(7)
    assert torch.equal(torch.cat([torch.from_numpy(block.z) for block in blocks]), made.domains["clean"][0])


def test_other_files_are_refused_in_one_line(stored, tmp_path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_embeddings(path)
    save_file({"text.watt": torch.eye(3)}, path)
    with pytest.raises(ValueError, match="and a scale"):
        load_embeddings(path)
    with pytest.raises(ValueError, match=r"no text\.single, but text\.watt; choose one of those by --prompts"):
        load_embeddings(stored, text="text.single")
    tensors = load_file(stored)
    del tensors["clean.labels"]
    save_file(tensors, path, metadata={"scale": "30"})
    with pytest.raises(ValueError, match=r"a\.safetensors: not stored embeddings \('clean\.labels'\); it needs"):
        load_embeddings(path)
    for content in (stored.read_bytes()[:-100], b"no tensors here"):
        path.write_bytes(content)
        for read in (load_embeddings, open_shard, read_class_texts):
            with pytest.raises(ValueError, match=r"a\.safetensors: truncated or damaged \(.+\); copy or download it"):
                read(path)


@pytest.fixture
def with_head(stored) -> dict[str, torch.Tensor]:
    """Tensors of a file with a head: two domains, and source data."""
    data = load_embeddings(stored)
    (clean, clean_labels), (shifted, labels) = data.domains["clean"], data.domains["shifted"]
    return {
        "head.weight": data.classifier().weight.float(),
        "head.bias": torch.linspace(-1, 1, 7),
        "target.features": 5 * shifted,
        "target.labels": labels,
        "other.embeddings": 5 * clean,
        "other.labels": clean_labels,
        "source.features": 5 * clean,
        "source.labels": clean_labels.clone(),
    }


def test_a_file_may_hold_a_head_and_source_data_in_place_of_texts(with_head, tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(with_head, path, metadata={"classes": '["a", "b", "c", "d", "e", "f", "g"]'})
    for _ in range(2):
        data = load_embeddings(path, "text.single")
        assert sorted(data.domains) == ["other", "target"]
        assert torch.equal(data.source[0], with_head["source.features"])
        g = data.classifier()
        assert g.classes == tuple("abcdefg")
        assert not g.unit_rows
        z = with_head["target.features"].float()
        torch.testing.assert_close(g.logits(z), z @ with_head["head.weight"].T + with_head["head.bias"])
        data.save(path)  # what is saved again is read as the same
    record = run_study("upper-bound", str(path))
    assert record["reference"] == "source"
    right = (g.predict(with_head["target.features"]) == with_head["target.labels"]).double().mean()
    assert record["results"]["domains"]["target"]["zero-shot"] == pytest.approx(100 * float(right))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"head.weight": torch.ones(7, 16)}, "other: dimension 24, but the classifier has 16"),
        ({"head.weight": torch.ones(5, 24), "head.bias": torch.ones(5)}, "labels: values 0 to 6; allowed are 0 to 4"),
        ({"head.bias": torch.ones(5)}, r"bias: shape \(5,\), but the weight has 7 classes"),
        ({"target.features": torch.full((280, 24), torch.nan)}, "target: 280 of 280 rows hold NaN or infinity"),
        ({"source.features": torch.ones(280, 3)}, "source: dimension 3, but the classifier has 24"),
    ],
)
def test_a_head_or_features_that_do_not_fit_are_refused_in_one_line(change, says, with_head, tmp_path):
    save_file(with_head | change, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=says) as error:
        load_embeddings(tmp_path / "a.safetensors")
    assert "\n" not in str(error.value)


def test_an_array_is_not_called_damaged(tmp_path):
    np.save(tmp_path / "emb.npy", np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"emb.npy: not a .safetensors file .* LinearTCA\(g\).fit\(z\)"):
        load_embeddings(tmp_path / "emb.npy")
